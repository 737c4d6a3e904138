"""Training or eval mode for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def in_mode(model: nn.Module, *, is_training: bool) -> Iterator[None]:
    """Put a model in training or eval mode, and back afterwards, whatever happens."""
    before = model.training
    model.train(is_training)
    try:
        yield
    finally:
        model.train(before)
