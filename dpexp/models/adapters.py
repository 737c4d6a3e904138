"""Low-rank adapters beside frozen layers (Hu et al. 2022, arXiv 2106.09685)."""

from __future__ import annotations

import copy
import json
import logging
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dpexp.grad_sample.freezing import trains
from dpexp.models.standardized import StandardizedConv2d
from dpexp.types import ConfigError

log = logging.getLogger("dpexp")

FOLDER = "adapter"
"""Where adapters are saved by themselves, in the form that the library peft loads."""


class Adapted(nn.Module):
    """A frozen layer and its adapter: W x + s B A x.

    B is zero at first, so that the model is what it was. A is drawn by Xavier's normal (Yu et al.
    2022, their code).

    Attributes:
        base_layer: a linear layer, or a convolution without groups.
        lora_A: to the rank; a convolution's has its kernel, stride and padding.
        lora_B: from the rank; a convolution's has a kernel of one.
        scale: s, alpha over the rank.
    """

    def __init__(self, base: nn.Linear | nn.Conv2d, rank: int, alpha: float) -> None:
        """Put an adapter beside a layer, on its device and in its precision.

        Args:
            base: the layer.
            rank: of the adapter, >= 1.
            alpha: the adapter is multiplied by alpha / rank.
        """
        super().__init__()
        self.base_layer, self.scale = base, alpha / rank
        weight = base.weight
        like = {"device": weight.device, "dtype": weight.dtype}
        if isinstance(base, nn.Conv2d):
            self.lora_A: nn.Module = nn.Conv2d(
                base.in_channels,
                rank,
                base.kernel_size,
                base.stride,
                base.padding,
                base.dilation,
                bias=False,
                **like,
            )
            self.lora_B: nn.Module = nn.Conv2d(rank, base.out_channels, 1, bias=False, **like)
        else:
            self.lora_A = nn.Linear(base.in_features, rank, bias=False, **like)
            self.lora_B = nn.Linear(rank, base.out_features, bias=False, **like)
        nn.init.xavier_normal_(self.lora_A.weight)
        nn.init.zeros_(self.lora_B.weight)

    @property
    def weight(self) -> Tensor:
        """Return the layer's weight with the adapter in it, for modules that read it."""
        a, b = self.lora_A.weight.flatten(1), self.lora_B.weight.flatten(1)
        return self.base_layer.weight + self.scale * (b @ a).view_as(self.base_layer.weight)

    @property
    def bias(self) -> Tensor | None:
        """Return the layer's bias."""
        return self.base_layer.bias

    def forward(self, x: Tensor) -> Tensor:
        """Map inputs as the layer does, and add the adapter's output."""
        return self.base_layer(x) + self.scale * self.lora_B(self.lora_A(x))

    @torch.no_grad()
    def merged(self) -> nn.Module:
        """Return the layer with the adapter in its weight; the module itself is used up."""
        self.base_layer.weight.copy_(self.weight)
        return self.base_layer


def is_adaptable(layer: nn.Module) -> bool:
    """Return whether a layer takes an adapter."""
    if type(layer) is nn.Conv2d:
        return layer.groups == 1 and layer.padding_mode == "zeros"
    return type(layer) is nn.Linear  # a subclass may compute something else


def adapt(model: nn.Module, rank: int, alpha: float, targets: str, head: str) -> nn.Module:
    """Put adapters beside a model's layers, in place.

    Args:
        model: any module; its classifier gets none, nor do layers whose weight is frozen or tied
            to another module's, which it would change where it is merged. A layer that stands in
            several places has one adapter in all of them.
        rank: of the adapters; a layer whose smaller side is not above it gets none.
        alpha: adapters are multiplied by alpha / rank.
        targets: a pattern that layers' names match, as in `fnmatch`; "*" for all.
        head: the classifier's name.

    Raises:
        ConfigError: if no layer gets one.
    """
    owners = Counter(id(each) for m in model.modules() for each in m.parameters(recurse=False))
    found: dict[str, nn.Module] = {}
    for layer, names in _places(model).items():
        if (
            is_adaptable(layer)
            and trains(layer.weight)
            and owners[id(layer.weight)] == 1
            and any(fnmatchcase(name, targets) for name in names)
            and not any(f"{name}.".startswith(f"{head}.") for name in names)
        ):
            found[names[0]] = layer
    if not found and any(isinstance(each, StandardizedConv2d) for each in model.modules()):
        raise ConfigError(
            "Expected layers whose weights adapters can be merged into; this model standardises "
            "its convolutions' weights. Leave model.weight_standardization out, or set another "
            "model."
        )
    if not found:
        raise ConfigError(
            f"Expected method.targets={targets} to match linear layers or convolutions besides the "
            f"classifier {head!r}; it matches none. Set method.targets, as '*.query'."
        )
    large = {k: each for k, each in found.items() if min(each.weight.flatten(1).shape) > rank}
    if not 1 <= rank or not large:
        most = max(min(layer.weight.flatten(1).shape) for layer in found.values()) - 1
        raise ConfigError(
            f"Expected method.rank in [1, {most}], below the smaller side of the largest layer; "
            f"got {rank}. Set method.rank."
        )
    for layer in large.values():
        _replace(model, layer, Adapted(layer, rank, alpha))
    return model


def merged(model: nn.Module) -> nn.Module:
    """Return a copy of a model with its adapters in the layers' weights, as it was built."""
    model = copy.deepcopy(model)
    for _, layer in list(_adapted(model)):
        _replace(model, layer, layer.merged())
    return model


def adapter_parameters(model: nn.Module) -> tuple[str, ...]:
    """Name the adapters' parameters."""
    return tuple(
        f"{name}.{part}.weight" for name, _ in _adapted(model) for part in ("lora_A", "lora_B")
    )


def save_adapters(model: nn.Module, folder: Path, base: str | None) -> None:
    """Write a model's adapters as the library peft reads them, into a folder of their own.

    A layer that stands in several places is written under each of its names. peft adapts the first
    place alone, unless it is a module around the layer that stands in several; a warning says so.

    Args:
        model: any; one without adapters writes nothing.
        folder: the run's.
        base: the pretrained model's name on the hub; None: there is none.
    """
    found = {each: names for each, names in _places(model).items() if isinstance(each, Adapted)}
    if not found:
        return
    for names in found.values():
        paths = [name.rpartition(".") for name in names]
        if len({(model.get_submodule(parent), own) for parent, _, own in paths}) > 1:
            log.warning(
                "%s/ has the adapter of %s, one layer, under each of these names; peft adapts the "
                "first alone. Load the run's own weights instead, which have it in all",
                FOLDER,
                " and ".join(names),
            )
    prefix = _of_transformers(model)
    layers = {name.removeprefix(prefix): each for each, names in found.items() for name in names}
    rank = next(iter(found)).lora_B.weight.shape[1]
    scale = next(iter(found)).scale
    settings = {
        "peft_type": "LORA",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": scale * rank,
        "target_modules": sorted(layers),
        "bias": "none",
        "task_type": None,
        "inference_mode": True,
    }
    (folder / FOLDER).mkdir(exist_ok=True)
    tensors = {
        f"base_model.model.{name}.{part}.weight": getattr(layer, part).weight.detach().cpu().clone()
        for name, layer in layers.items()
        for part in ("lora_A", "lora_B")
    }
    save_file(tensors, folder / FOLDER / "adapter_model.safetensors")
    path = folder / FOLDER / "adapter_config.json"
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _of_transformers(model: nn.Module) -> str:
    """Return what the names within a model of transformers begin with in a classifier around it."""
    is_around = hasattr(getattr(model, "encoder", None), "config") and not hasattr(model, "config")
    return "encoder." if is_around else ""


def _places(model: nn.Module) -> dict[nn.Module, list[str]]:
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
