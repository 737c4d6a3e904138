"""Where files are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path

from dpexp.records import at_home


def cache_dir() -> Path:
    """Give the folder: DPEXP_CACHE, else dpexp in XDG_CACHE_HOME, else ~/.cache/dpexp.

    Raises:
        ConfigError: DPEXP_CACHE is to lie in a home, or a variable, that there is not.
    """
    if chosen := os.environ.get("DPEXP_CACHE"):
        return Path(at_home("DPEXP_CACHE", chosen))
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dpexp"
    except RuntimeError:  # nobody's home: a place where nothing can be written
        return Path(os.devnull) / "dpexp"
