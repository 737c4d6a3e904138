"""The classifier beside reparametrized layers: whole, its gradient multiplied by a constant.

It joins the one clipped vector of `rgp`, `lsg` and their kin. What is released of it is what the
optimizer takes, as in rgp's authors' code: nothing is divided by the constant after the noise, so
that under plain steps it is a factor on the classifier's learning rate too.
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
    """Take what was released of the classifier as it is."""
    return {name: noisy[Key(release, name)] for name in names}
