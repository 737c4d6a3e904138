"""The classifier of low-rank methods: its full gradient, multiplied by a constant.

It is part of the one vector that `rgp`, `lsg` and similar methods clip. The optimizer uses its
release unchanged, as in rgp's authors' code: it is not divided by the constant after the noise.
Under plain gradient descent the constant therefore multiplies the classifier's learning rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

from dpexp.types import Key, LayerGrads, PerExampleGrads, full_name


def head_grads(
    release: str, layer: str, layer_grads: LayerGrads, scale: float
) -> dict[Key, PerExampleGrads]:
    """Return the gradients of one of the classifier's layers, scaled."""
    scaled = layer_grads.scaled(scale)
    return {
        Key(release, full_name(layer, name)): scaled.gradient(name)
        for name in layer_grads.parameters
    }


def head_blocks(release: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[Key, tuple[int, ...]]:
    """Return the shapes of the classifier's blocks."""
    return {Key(release, name): shape for name, shape in shapes.items()}


def head_gradients(
    release: str, noisy: Mapping[Key, Tensor], names: Iterable[str]
) -> dict[str, Tensor]:
    """Return the classifier's released gradients by parameter name."""
    return {name: noisy[Key(release, name)] for name in names}
