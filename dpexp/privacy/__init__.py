"""The privacy mechanism of a run: sampler, noise and accountant from one frozen object.

What is named here is imported when it is first asked for: most of it needs torch, checks of a
budget do not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpexp.privacy.budget import num_steps
    from dpexp.privacy.calibration import build, whole_batch
    from dpexp.privacy.certificate import ANALYSED, PrivacyError, verify
    from dpexp.privacy.float_range import require_room, size_of_release
    from dpexp.privacy.mechanism import Mechanism

__all__ = [
    "ANALYSED",
    "Mechanism",
    "PrivacyError",
    "build",
    "num_steps",
    "require_room",
    "size_of_release",
    "verify",
    "whole_batch",
]

_MODULES = {
    "budget": ("num_steps",),
    "calibration": ("build", "whole_batch"),
    "certificate": ("ANALYSED", "PrivacyError", "verify"),
    "mechanism": ("Mechanism",),
    "float_range": ("require_room", "size_of_release"),
}


def __getattr__(name: str) -> Any:
    """Import what is named in `__all__`, and keep it."""
    for module, names in _MODULES.items():
        if name in names:
            found = getattr(import_module(f"{__name__}.{module}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
