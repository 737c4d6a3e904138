"""Opacus's formulas of Renyi divergence, without the rest of Opacus.

Importing Opacus imports its optimizers, scipy.stats and more, a second that no run needs: the
formulas are one file that needs numpy and scipy.special.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

NAME = "opacus.accountants.analysis.rdp"


@cache
def opacus_rdp() -> ModuleType:
    """Return Opacus's module with `compute_rdp` and `get_privacy_spent`.

    It is read from its file under a name of ours, so that a later import of Opacus is whole; where
    Opacus has been imported, its own module is returned.

    Raises:
        ImportError: if Opacus is not installed.
    """
    if NAME in sys.modules:
        return sys.modules[NAME]
    top, *inner = NAME.split(".")
    found = find_spec(top)  # imports nothing
    if found is None or found.origin is None:
        raise ImportError("Opacus is not installed: python -m pip install opacus")
    path = Path(found.origin).parent.joinpath(*inner).with_suffix(".py")
    spec = spec_from_file_location("dpexp.privacy._opacus_rdp", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
