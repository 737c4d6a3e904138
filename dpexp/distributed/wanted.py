"""Checks of the words that choose a device and a number of ranks; they import no torch."""

from __future__ import annotations

import re
from typing import Any

from dpexp.types import ConfigError


def require_device_word(wanted: str) -> None:
    """Refuse a device of a kind that a run cannot take.

    A number has two digits at most: torch keeps it in eight bits, and takes 999 for -25.

    Raises:
        ConfigError: naming device.
    """
    if not re.fullmatch(r"auto|(cpu|cuda)(:\d{1,2})?", wanted):
        raise ConfigError(
            f"Expected device auto, cpu, cuda or cuda:N; got device={wanted}. Set device."
        )


def require_ranks_word(ranks: Any) -> None:
    """Refuse a number of ranks that is neither auto nor a whole number from 1.

    Raises:
        ConfigError: naming ranks.
    """
    is_number = isinstance(ranks, int) and not isinstance(ranks, bool)
    if ranks != "auto" and not (is_number and ranks >= 1):
        raise ConfigError(
            f"Expected ranks to be auto or a number from 1; got ranks={ranks}. Set ranks."
        )
