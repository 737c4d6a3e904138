"""Which parameters are matrices, that low-rank methods reparametrize or put adapters beside."""

from __future__ import annotations

from torch import nn

from dpexp.grad_sample.freezing import trains
from dpexp.types import ConfigError

LAYERS = (nn.Linear, nn.modules.conv._ConvNd)
"""Layers whose weight is a matrix even where it has one row or one column."""

TABLES = (nn.Embedding, nn.EmbeddingBag)
"""Layers whose weight has a row an entry; low-rank methods leave it as it is unless told to."""

TABLE = "the table of an embedding, which method.embeddings=true takes as a matrix"
VECTOR = "no matrix: a bias, a scale, or of a single row or column"


def matrix_parameters(model: nn.Module, head: str, *, embeddings: bool = False) -> tuple[str, ...]:
    """Name the weight matrices outside the classifier, frozen ones not.

    They are the weights of linear layers and convolutions, and all other parameters of at least two
    axes, flattened to [p, d] as kernels are, of which neither is one, as a recurrent layer's.

    Args:
        model: any module.
        head: the classifier's name in the model.
        embeddings: whether tables of embeddings are matrices, too. rgp and lsg leave them frozen.
    """
    return tuple(
        name
        for name, weight in model.named_parameters()
        if trains(weight)
        and not is_within(name, head)
        and why_no_matrix(model, name, embeddings=embeddings) is None
    )


def is_within(parameter: str, module: str) -> bool:
    """Return whether a parameter is a module's, or of a module within it."""
    owner = parameter.rpartition(".")[0]
    return owner == module or owner.startswith(f"{module}.")


def why_no_matrix(model: nn.Module, parameter: str, *, embeddings: bool = False) -> str | None:
    """Return why a parameter is not taken as a matrix; None if it is.

    Args:
        model: any module.
        parameter: its name there.
        embeddings: as in `matrix_parameters`.
    """
    layer, _, own = parameter.rpartition(".")
    module, weight = model.get_submodule(layer), model.get_parameter(parameter)
    if isinstance(module, TABLES) and own == "weight" and not embeddings:
        return TABLE
    if isinstance(module, LAYERS) and own == "weight":
        return None
    return None if weight.ndim > 1 and min(weight.flatten(1).shape) > 1 else VECTOR


def require_embeddings(value: bool) -> bool:
    """Return the setting of whether tables of embeddings are matrices.

    Raises:
        ConfigError: if it is neither true nor false.
    """
    if not isinstance(value, bool):
        raise ConfigError(
            f"Expected method.embeddings to be true or false; got {value!r}. Set method.embeddings."
        )
    return value
