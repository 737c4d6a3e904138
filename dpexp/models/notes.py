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


def note(model: nn.Module, what: str, said: str | list[str]) -> None:
    """Print what was done to a model, and keep it for the run's record.

    Args:
        model: the whole one.
        what: a word for it.
        said: in words, or one entry for each module or parameter.
    """
    _NOTES.setdefault(model, {})[what] = said
    log.info("%s: %s", what, said if isinstance(said, str) else shown(said))


def notes_of(model: nn.Module) -> dict[str, Any]:
    """Return what was noted of a model."""
    return dict(_NOTES.get(model, {}))


def shown(names: Sequence[str]) -> str:
    """Return a list in few words."""
    more = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
    return "; ".join(names[:MOST_SHOWN]) + more
