"""Cache the fingerprints of data that a run makes itself, so that a look-up need not make them.

What is read from files is read and compared each time. Data that dpexp makes follow from its code,
its libraries and the machine, which an entry's version holds.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import dpexp
from dpexp.records.caches import Kept

MADE = (
    "dpexp.data.digits.digits",
    "dpexp.data.shapes.shapes",
    "dpexp.data.regression.regression",
)
"""Tasks that read no file but those of libraries."""

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Variables by which sums of numpy's may round otherwise."""

LIBRARIES = ("torch", "numpy", "scipy", "scikit-learn")


def kept_for(config: Mapping[str, Any]) -> Kept | None:
    """Return where the fingerprint of these data is kept; None if files decide it.

    Args:
        config: the part of a run's that decides its data.
    """
    is_made = set(config) == {"task"} and config["task"].get("_target_") in MADE
    return Kept("fingerprints", _version()) if is_made else None


def fingerprint(kept: Kept | None, name: str) -> str:
    """Return the fingerprint that is kept under this name; "" if none is."""
    found = None if kept is None else kept.get(name)
    return found if isinstance(found, str) and re.fullmatch("[0-9a-f]{64}", found) else ""


@cache
def _version() -> bytes:
    """Return what decides the data: code, libraries and machine."""
    versions = [f"{each} {version(each)}" for each in LIBRARIES]
    machine = [platform.node(), platform.machine(), platform.python_version(), _processor()]
    machine += [f"{name}={os.environ.get(name)}" for name in THREADS] + [str(os.cpu_count())]
    data = Path(str(dpexp.__file__)).parent / "data"
    sources = [path.read_bytes() for path in sorted(data.rglob("*.py"))]
    return b"\0".join([*map(str.encode, (*versions, *machine)), *sources])


def _processor() -> str:
    """Return the processor's name, where Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("model name")), platform.processor())
