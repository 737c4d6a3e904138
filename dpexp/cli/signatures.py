"""What the calls of a class from elsewhere take, held to what the loop will give them."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

LIKE = {
    "method": ("dpexp.types", "Method"),
    "denoise": ("dpexp.types", "Method"),
    "clipping": ("dpexp.privacy.clipping", "Clipping"),
    "averaging": ("dpexp.training.averaging", "Averaging"),
    "augmentation": ("dpexp.data.augmentation", "Augmentation"),
    "analysis": ("dpexp.training.observation", "Analysis"),
    "attack": ("dpexp.training.parts", "Attack"),
    "audit": ("dpexp.training.parts", "Attack"),
}
"""By kind, the class that says what its calls get: module and name."""


def require_signatures(kind: str, made: Any) -> None:
    """Refuse a call that does not take what it will get, before anything is trained.

    Args:
        kind: of `LIKE`; any other one is not looked at.
        made: of a class from anywhere; calls that dpexp defines are not looked at.

    Raises:
        ConfigError: naming the call, what it gets and what it takes.
    """
    from dpexp.types import ConfigError

    if kind not in LIKE or _is_ours(type(made)):
        return
    module, name = LIKE[kind]
    like = getattr(importlib.import_module(module), name)
    for call, theirs in vars(like).items():
        own = getattr(made, call, None)  # what has none is not of the kind
        if call.startswith("_") or not inspect.isfunction(theirs):
            continue
        if not callable(own) or _is_ours(own):
            continue
        _, *gets = inspect.signature(theirs).parameters
        try:
            takes = inspect.signature(own)
        except ValueError:  # what is written in C may not say
            continue
        try:
            takes.bind(*gets)
        except TypeError:
            said = ", ".join(takes.parameters)
            raise ConfigError(
                f"Expected {type(made).__name__}.{call} to take {', '.join(gets)}, as "
                f"{module}.{name} has it; it takes {said or 'nothing'}. Correct it."
            ) from None


def _is_ours(found: Any) -> bool:
    return str(getattr(found, "__module__", "")).partition(".")[0] == "dpexp"
