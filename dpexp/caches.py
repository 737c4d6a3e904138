"""Where files are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """Give the folder: DPEXP_CACHE, else dpexp in XDG_CACHE_HOME, else ~/.cache/dpexp."""
    try:
        if chosen := os.environ.get("DPEXP_CACHE"):
            return Path(chosen).expanduser()
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dpexp"
    except RuntimeError:  # nobody's home: a place where nothing can be written
        return Path(os.devnull) / "dpexp"
