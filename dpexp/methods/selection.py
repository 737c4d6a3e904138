"""Select a method's trained parameters, with their shapes and their joint release."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from math import prod

from torch import nn

from dpexp.grad_sample.freezing import trains
from dpexp.models.matrices import matrix_parameters, why_no_matrix
from dpexp.types import ConfigError, Key, LayerGrads, Release, full_name

OUTSIDE = "not the classifier's"


def all_parameters(model: nn.Module) -> tuple[str, ...]:
    """Name every parameter but those that the model's author froze (`requires_grad=False`).

    Raises:
        ConfigError: if all are frozen.
    """
    names = tuple(name for name, weight in model.named_parameters() if trains(weight))
    if not names:
        raise ConfigError(
            "Expected a model with parameters to train; all have requires_grad=False. Set model or "
            "method.freeze."
        )
    return names


def classifier(model: nn.Module, head: str) -> tuple[str, ...]:
    """Name the classifier's parameters, frozen or not.

    Raises:
        ConfigError: if the model has no parameter under that name.
    """
    names = tuple(name for name, _ in model.named_parameters() if name.startswith(f"{head}."))
    if not names and not head:
        if [*model.children()]:
            raise ConfigError(
                "Expected the model to hold a layer that gives the classes; none does. Set "
                "model.head to the name of one, or a method that trains all alike, such as dpsgd."
            )
        raise ConfigError(
            "Expected the model to hold a classifier; it is one layer as a whole. Wrap it in "
            "nn.Sequential."
        )
    if not names:
        raise ConfigError(
            f"Expected the model to hold a classifier named {head!r}; it has none."
            f"{_nearest_layer(model, head)} Set model.head."
        )
    return names


def _nearest_layer(model: nn.Module, name: str) -> str:
    """Return a sentence that suggests a layer with parameters of its own, or ""."""
    names = [own for own, each in model.named_modules() if own and each._parameters]
    near = get_close_matches(name, names, 1, 0.4)
    return f" Did you mean {near[0]}?" if near else ""


def head_parameters(model: nn.Module, head: str) -> tuple[str, ...]:
    """Name the classifier's parameters but those that the model's author froze.

    Raises:
        ConfigError: if the model has no parameter under that name, or all there are frozen.
    """
    names = tuple(name for name in classifier(model, head) if trains(model.get_parameter(name)))
    if not names:
        raise ConfigError(
            f"Expected the classifier {head!r} to train; all of its parameters have "
            "requires_grad=False. Set model, model.head or method.freeze."
        )
    return names


def matrix_of(layer: str, layer_grads: LayerGrads, matrices: Collection[str]) -> str | None:
    """Return which of some matrices a layer's gradients are of; None: of none.

    Args:
        layer: the layer's name.
        layer_grads: what a method is given of it, of one matrix at most.
        matrices: names of parameters.
    """
    names = (full_name(layer, own) for own in layer_grads.parameters)
    return next((name for name in names if name in matrices), None)


def matrices_and_head(model: nn.Module, head: str, *, embeddings: bool = False) -> tuple[str, ...]:
    """Name the weight matrices and the classifier; biases and norms stay frozen."""
    return matrix_parameters(model, head, embeddings=embeddings) + head_parameters(model, head)


def vector_parameters(model: nn.Module, head: str) -> tuple[str, ...]:
    """Name the biases and the scales of norms outside the classifier.

    Raises:
        ConfigError: if the model has none there that trains.
    """
    names = tuple(
        name
        for name, parameter in model.named_parameters()
        if trains(parameter) and parameter.ndim == 1 and not name.startswith(f"{head}.")
    )
    if not names:
        raise ConfigError(
            "Expected a model with biases or scales of norms to train besides the classifier; it "
            "has none. "
            "Set method.train=all."
        )
    return names


TRAINED = ("all", "matrices", "biases", "head")


def trained_parameters(model: nn.Module, train: str, head: str) -> tuple[str, ...]:
    """Name the parameters that a method trains, by one of the words `TRAINED`.

    Args:
        model: a model.
        train: "all"; the "head" alone; the "matrices" and the head; or "biases", those and the
            scales of norms, and the head.
        head: the classifier's name in the model.

    Raises:
        ConfigError: if there are none, or the model has no such classifier.
    """
    if train == "head":
        return head_parameters(model, head)
    if train == "matrices":
        return matrices_and_head(model, head)
    if train == "biases":
        return vector_parameters(model, head) + head_parameters(model, head)
    return all_parameters(model)


def why_outside(model: nn.Module, parameter: str, train: str) -> str:
    """Return why a parameter is not among those of a word of `TRAINED`."""
    if train == "biases":
        return f"{OUTSIDE}, and no bias or scale of a norm"
    return (why_no_matrix(model, parameter) if train == "matrices" else None) or OUTSIDE


def shapes_of(model: nn.Module, names: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Return some parameters' shapes by name."""
    return {name: tuple(model.get_parameter(name).shape) for name in names}


def one_release(
    name: str, blocks: Mapping[Key, tuple[int, ...]], clip_norm: float
) -> tuple[Release, ...]:
    """Return one release of all blocks, clipped jointly."""
    return (Release(name, sum(map(prod, blocks.values())), clip_norm),)


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
