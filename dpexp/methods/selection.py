"""Which parameters a method trains."""

from __future__ import annotations

from torch import nn

from dpexp.types import ConfigError

MATRIX_LAYERS = (nn.Linear, nn.Conv2d)


def head_parameters(model: nn.Module, head: str) -> tuple[str, ...]:
    """Name the classifier's parameters.

    Raises:
        ConfigError: if the model has no parameter under that name.
    """
    names = tuple(name for name, _ in model.named_parameters() if name.startswith(f"{head}."))
    if not names:
        raise ConfigError(
            f"Expected the model to hold a classifier named {head!r}; it has none. Set model.head."
        )
    return names


def matrix_parameters(model: nn.Module, head: str) -> tuple[str, ...]:
    """Name the weights of linear and convolution layers outside the classifier."""
    return tuple(
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, MATRIX_LAYERS) and name != head and not name.startswith(f"{head}.")
    )
