"""What was done to a model before it trained: printed as it is done, and kept for the record."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

log = logging.getLogger("dpexp")

_NOTES: WeakKeyDictionary[nn.Module, dict[str, Any]] = WeakKeyDictionary()

MOST_SHOWN = 4
"""Names that a line shows (ours); the record has all."""


def note(model: nn.Module, key: str, value: str | list[str], said: str = "") -> None:
    """Keep what was done to a model for the run's record, and print it.

    Args:
        model: the whole one.
        key: of the record's entry.
        value: in words, or one entry for each module or parameter.
        said: what is printed before the value; "": the key.
    """
    _NOTES.setdefault(model, {})[key] = value
    log.info("%s: %s", said or key, value if isinstance(value, str) else shown(value))


def notes_of(model: nn.Module) -> dict[str, Any]:
    """Return what was noted of a model."""
    return dict(_NOTES.get(model, {}))


def shown(names: Sequence[str]) -> str:
    """Return a list in few words."""
    more = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
    return "; ".join(names[:MOST_SHOWN]) + more
