"""Low-rank adapters beside frozen layers (Hu et al. 2022, arXiv 2106.09685)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpexp.grad_sample.composed import composed
from dpexp.models import low_rank
from dpexp.models.copies import copied
from dpexp.models.matrices import matrix_parameters
from dpexp.models.transformers_layers import is_transposed
from dpexp.types import ConfigError, full_name


class Adapted(nn.Module):
    """A frozen layer and its adapter: W x + s B A x.

    A convolution computes (W + s B A) x, one convolution in place of three: its images are large
    beside its kernels.

    B is zero at first, so that the model is what it was. A is drawn by Xavier's normal (Yu et al.
    2022, their code).

    Attributes:
        base_layer: a linear layer, GPT-2's transposed one, or a convolution without groups.
        lora_A: to the rank; a convolution's has its kernel, stride and padding.
        lora_B: from the rank; a convolution's has a kernel of one.
        scale: s, alpha over the rank.
    """

    base_layer: Any
    lora_A: nn.Conv2d | nn.Linear
    lora_B: nn.Conv2d | nn.Linear

    def __init__(self, base: nn.Module, rank: int, alpha: float) -> None:
        """Put an adapter beside a layer, on its device and in its precision.

        Args:
            base: the layer, for which `is_adaptable` holds.
            rank: of the adapter, >= 1.
            alpha: the adapter is multiplied by alpha / rank.
        """
        super().__init__()
        self.base_layer, self.scale = base, alpha / rank
        weight = base.get_parameter("weight")
        like: dict[str, Any] = {"device": weight.device, "dtype": weight.dtype}
        if isinstance(base, nn.Conv2d):
            window: dict[str, Any] = {
                "kernel_size": base.kernel_size,
                "stride": base.stride,
                "padding": base.padding,
                "dilation": base.dilation,
            }
            self.lora_A = nn.Conv2d(base.in_channels, rank, **window, bias=False, **like)
            self.lora_B = nn.Conv2d(rank, base.out_channels, 1, bias=False, **like)
        else:
            outputs, inputs = weight.T.shape if is_transposed(base) else weight.shape
            self.lora_A = nn.Linear(inputs, rank, bias=False, **like)
            self.lora_B = nn.Linear(rank, outputs, bias=False, **like)
        nn.init.xavier_normal_(self.lora_A.weight)
        nn.init.zeros_(self.lora_B.weight)

    @property
    def is_merging(self) -> bool:
        """Return whether it computes with the weight that has the adapter in it."""
        return isinstance(self.base_layer, nn.Conv2d)

    @property
    def weight(self) -> Tensor:
        """Return the layer's weight with the adapter in it, for modules that read it."""
        a, b = self.lora_A.weight.flatten(1), self.lora_B.weight.flatten(1)
        both = (b @ a).T if is_transposed(self.base_layer) else b @ a
        return self.base_layer.weight + self.scale * both.view_as(self.base_layer.weight)

    @property
    def bias(self) -> Tensor | None:
        """Return the layer's bias."""
        return self.base_layer.bias

    def __getattr__(self, name: str) -> Any:
        """Return what the module lacks of the layer, as its `out_features`, which models read."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base_layer"), name)

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs as the layer does, and add the adapter's output."""
        if self.is_merging:
            return self.base_layer._conv_forward(x, self.weight, self.base_layer.bias)
        inner = self.lora_A(x)
        inner = inner if self.scale == 1 else self.scale * inner  # B(s A x): the smaller tensor
        return self.base_layer(x) + self.lora_B(inner)

    @torch.no_grad()
    def merged(self) -> nn.Module:
        """Return the layer with the adapter in its weight; the module itself is used up."""
        self.base_layer.weight.copy_(self.weight)
        return self.base_layer


@composed(Adapted, ("lora_A", "lora_B"), fits=lambda layer: layer.is_merging)
def _within(layer: Adapted, x: Tensor, dh: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Return what A and B read, and the gradients at what they return: of s A x, and s B^T dh."""
    inner = layer.lora_A(x)
    back = F.conv2d(dh, layer.lora_B.weight.transpose(0, 1))
    if layer.scale != 1:
        inner, back = layer.scale * inner, layer.scale * back
    return {"lora_A": (x, back), "lora_B": (inner, dh)}


def is_adaptable(layer: nn.Module) -> bool:
    """Return whether a layer's adapter is two layers beside it; else it is in its parameter."""
    if not low_rank.is_of_its_type(layer):
        return False  # hooks would not see what the adapter adds
    if type(layer) is nn.Conv2d:
        return layer.groups == 1 and layer.padding_mode == "zeros"
    # A subclass may compute something else.
    return type(layer) is nn.Linear or is_transposed(layer)


def adapt(
    model: nn.Module,
    rank: int,
    alpha: float,
    targets: str,
    head: str,
    *,
    embeddings: bool = False,
) -> nn.Module:
    """Put adapters beside a model's matrices, in place.

    Args:
        model: any module; its classifier gets none, nor do matrices that are frozen or tied to
            another module's, which it would change where it is merged, nor those of an attention
            that drops out, which could not be run again. A layer that stands in several places has
            one adapter in all of them.
        rank: of the adapters; a matrix whose smaller side is not above it gets none.
        alpha: adapters are multiplied by alpha / rank.
        targets: a pattern that layers' or parameters' names match, as in `fnmatch`; "*" for all.
        head: the classifier's name.
        embeddings: whether tables of embeddings are matrices, too.

    Raises:
        ConfigError: if no matrix gets one.
    """
    found = _found(model, targets, head, embeddings=embeddings)
    if not found and not _found(model, "*", head, embeddings=embeddings):
        raise ConfigError(
            f"Expected a model with weight matrices besides the classifier {head!r} that can take "
            "adapters; it has none. Set model, or method=dpsgd."
        )
    if not found:
        raise ConfigError(
            f"Expected method.targets={targets} to match layers with weight matrices besides the "
            f"classifier {head!r}; it matches none. Set method.targets, as '*.query'."
        )
    sides = {key: min(key[0].get_parameter(key[1]).flatten(1).shape) for key in found}
    large = [key for key in found if sides[key] > rank]
    if not 1 <= rank or not large:
        raise ConfigError(
            f"Expected method.rank in [1, {max(sides.values()) - 1}], below the smaller side of "
            f"the largest layer; got {rank}. Set method.rank."
        )
    for layer, own in large:
        if is_adaptable(layer) and own == "weight":
            _replace(model, layer, Adapted(layer, rank, alpha))
        else:
            low_rank.put_in(layer, own, rank, alpha)
    return model


def _found(
    model: nn.Module, targets: str, head: str, *, embeddings: bool
) -> list[tuple[nn.Module, str]]:
    """Return the modules and their own matrices that get adapters, whatever their size."""
    owners = Counter(id(each) for m in model.modules() for each in m.parameters(recurse=False))
    places, dropping = places_of(model), _dropping(model)
    found = []
    for name in matrix_parameters(model, head, embeddings=embeddings):
        layer, own = model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]
        names = places[layer]
        named = [*names, *(full_name(each, own) for each in names)]
        if (
            owners[id(model.get_parameter(name))] == 1
            and id(layer) not in dropping
            and any(fnmatchcase(each, targets) for each in named)
            and not any(f"{each}.".startswith(f"{head}.") for each in names)
        ):
            found.append((layer, own))
    return found


def _dropping(model: nn.Module) -> set[int]:
    """Return attentions that drop out, and their last projections."""
    attentions = [m for m in model.modules() if isinstance(m, nn.MultiheadAttention) and m.dropout]
    return {id(each) for attention in attentions for each in attention.modules()}


def why_bare(model: nn.Module, parameter: str, targets: str) -> str:
    """Return why a matrix of an adapted model is frozen.

    Args:
        model: with its adapters.
        parameter: the matrix's name there.
        targets: as in `adapt`.
    """
    layer, _, own = parameter.rpartition(".")
    if layer.rpartition(".")[2] == "base_layer" or own == "original":
        return "trained by the adapter beside it"
    if id(model.get_submodule(layer)) in _dropping(model):
        return "an attention's, which would be run again and drops out; set its dropout to 0"
    if not any(fnmatchcase(each, targets) for each in (layer, parameter)):
        return "not matched by method.targets"
    return "tied to another module's, or of a side that is not above method.rank"


def merged(model: nn.Module) -> nn.Module:
    """Return a copy of a model with its adapters in the layers' weights, as it was built."""
    model = copied(model)
    for _, layer in list(_adapted(model)):
        _replace(model, layer, layer.merged())
    for _, module, own in list(low_rank.adapted(model)):
        low_rank.take_out(module, own)
    return model


def adapter_parameters(model: nn.Module) -> tuple[str, ...]:
    """Name the adapters' parameters."""
    parts = ("lora_A", "lora_B")
    beside = [f"{name}.{part}.weight" for name, _ in _adapted(model) for part in parts]
    within = [f"{name}.{part}" for name, _, _ in low_rank.adapted(model) for part in parts]
    return (*beside, *within)


def places_of(model: nn.Module) -> dict[nn.Module, list[str]]:
    """Return every module's names, several where it stands in several places."""
    found: dict[nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        found.setdefault(module, []).append(name)
    return found


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put a module in place of another, wherever that one stands."""
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is old and parent is not new:
                setattr(parent, name, new)


def _adapted(model: nn.Module) -> Iterator[tuple[str, Adapted]]:
    return ((name, each) for name, each in model.named_modules() if isinstance(each, Adapted))
