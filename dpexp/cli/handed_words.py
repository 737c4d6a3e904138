"""Settings handed over from Python, as words of a command line."""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpexp.cli.quoting import quoted
from dpexp.types import ConfigError

INFINITE = re.compile(r'"(?:[^"\\]|\\.)*"|(?P<sign>-?)Infinity')
"""JSON's texts, and its infinite numbers."""


def words_of(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield settings as Hydra's words, whatever characters they hold.

    Raises:
        ConfigError: for a value that is no number, word, list or mapping.
    """
    for key, value in values.items():
        try:
            yield f"{key}={quoted(value) if isinstance(value, str) else _written(value)}"
        except (TypeError, ValueError):
            raise ConfigError(
                f"Expected {key.lstrip('+')} to be a number, a word, or a list or mapping of them; "
                f"got {reprlib.repr(value)}. Set {key.lstrip('+')}."
            ) from None


def _written(value: Any) -> str:
    """Return a value as Hydra reads it: as JSON, whose Infinity would be a text to it."""
    return INFINITE.sub(
        lambda found: found[0] if found["sign"] is None else f"{found['sign']}inf",
        json.dumps(value),
    )


def simplified(value: Any) -> Any:
    """Return a setting without NumPy's and torch's numbers, and without paths."""
    if isinstance(value, np.generic | np.ndarray | torch.Tensor) and value.ndim == 0:
        return value.item()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {key: simplified(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [simplified(each) for each in value]
    return value
