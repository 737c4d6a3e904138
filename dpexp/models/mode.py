"""Switch between training and eval mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def in_mode(model: nn.Module, *, is_training: bool) -> Iterator[None]:
    """Put a model in training or eval mode within a block; restore its mode afterwards."""
    before = model.training
    model.train(is_training)
    try:
        yield
    finally:
        model.train(before)
