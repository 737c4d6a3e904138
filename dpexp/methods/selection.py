"""Which parameters a method trains."""

from __future__ import annotations

from collections.abc import Iterable

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


def vector_parameters(model: nn.Module, head: str) -> tuple[str, ...]:
    """Name the biases and the scales of norms outside the classifier.

    Raises:
        ConfigError: if the model has none there.
    """
    names = tuple(
        name
        for name, parameter in model.named_parameters()
        if parameter.ndim == 1 and not name.startswith(f"{head}.")
    )
    if not names:
        raise ConfigError(
            "Expected a model with biases or scales of norms besides the classifier; it has none. "
            "Set method.train=all."
        )
    return names


def require_rank(rank: int, model: nn.Module, matrices: Iterable[str]) -> None:
    """Check a rank against the weight matrices it is for.

    Raises:
        ConfigError: if no matrix is as large as the rank, or there is none.
    """
    sides = [min(model.get_parameter(name).flatten(1).shape) for name in matrices]
    if not sides:
        raise ConfigError(
            "Expected a model with weight matrices besides the classifier: carriers are of those. "
            "Set model, or method=dpsgd."
        )
    largest = max(sides)
    if not 1 <= rank <= largest:
        raise ConfigError(
            f"Expected rank in [1, {largest}], the smaller side of the largest layer; got "
            f"rank={rank}. Set method.rank."
        )
