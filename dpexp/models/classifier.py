"""The layer of a model that gives the classes, and parameters that a pattern freezes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from torch import nn

from dpexp.models.notes import note
from dpexp.types import ConfigError, counted

AUTO = "auto"
"""The value of model.head by which the layer is found."""

LAYERS = (nn.Linear, nn.Conv2d)


def find_head(model: nn.Module, num_classes: int) -> str:
    """Return the name of the layer that gives the classes.

    It is what the model's library says: timm by `pretrained_cfg`, transformers by what stands
    beside the encoder. Else it is the last linear layer or convolution with an output a class.

    Args:
        model: any module.
        num_classes: outputs.

    Returns:
        The name; "" for a model that is such a layer itself.

    Raises:
        ConfigError: if no layer has as many outputs.
    """
    modules = dict(model.named_modules())
    stated = (getattr(model, "pretrained_cfg", None) or {}).get("classifier")
    stated = stated[0] if isinstance(stated, list | tuple) else stated
    if isinstance(stated, str) and list(modules.get(stated, nn.Identity()).parameters()):
        return stated
    last = None
    for name, module in modules.items():
        outputs = getattr(module, "out_features", getattr(module, "out_channels", None))
        if isinstance(module, LAYERS) and outputs == num_classes:
            last = name
    if last is None:
        raise ConfigError(
            f"Expected the model to hold a layer that gives {num_classes} outputs, one a class; it "
            "has none. Set model.head to the name of its classifier."
        )
    encoder = getattr(model, "base_model_prefix", "")
    first = last.partition(".")[0]
    return first if encoder and first != encoder else last


def is_bare(model: nn.Module, num_classes: int) -> bool:
    """Return whether no one layer gives the classes, as where prototypes or several layers do.

    Args:
        model: any module.
        num_classes: outputs.
    """
    layers = [each for each in model.modules() if isinstance(each, LAYERS)]
    sizes = {getattr(each, "out_features", getattr(each, "out_channels", 0)) for each in layers}
    stated = (getattr(model, "pretrained_cfg", None) or {}).get("classifier")
    return num_classes not in sizes and not stated


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Freeze the parameters whose names match a pattern, or stand below a module that does.

    Args:
        model: changed in place.
        patterns: as in a shell: * stands for anything, ? for one character, [ab] for a or b.

    Raises:
        ConfigError: for a pattern that matches nothing, with the nearest name.
    """
    named = dict(model.named_parameters(remove_duplicate=False))
    modules = dict(model.named_modules(remove_duplicate=False))
    holders = [name for name, each in modules.items() if name and [*each.parameters()]]
    places = [*named, *holders]
    frozen: dict[int, str] = {}
    for pattern in patterns:
        found = [
            name
            for name in named
            if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")
        ]
        if not found:
            near = get_close_matches(pattern.strip("*."), places, 1, 0.0)
            raise ConfigError(
                f"Expected method.freeze to match parameters' names; {pattern!r} matches none."
                f"{f' Did you mean {near[0]}?' if near else ''} Set method.freeze."
            )
        for name in found:
            frozen.setdefault(id(named[name]), name)
            named[name].requires_grad_(False)
    names = list(frozen.values())
    total = sum(named[name].numel() for name in names)
    numbers = counted(total, "number", ",")
    note(model, "frozen_by_pattern", names, f"frozen by method.freeze, {numbers}")


def say_head(model: nn.Module, head: str) -> None:
    """Print which layer was found to give the classes."""
    shapes = [
        f"{name} {list(each.shape)}" for name, each in model.get_submodule(head).named_parameters()
    ]
    note(model, "classifier", f"{head} ({', '.join(shapes)})", "classifier (or model.head=NAME)")


def say_frozen(model: nn.Module) -> None:
    """Print which parameters the model's author froze."""
    names = [name for name, each in model.named_parameters() if not each.requires_grad]
    if names:
        note(model, "frozen_by_model", names, "frozen by the model")


def check_head_std(std: float | None) -> None:
    """Refuse a standard deviation of a classifier's weights below 0.

    Raises:
        ConfigError: naming the setting.
    """
    if std is not None and not 0 <= std < math.inf:
        raise ConfigError(
            f"Expected model.head_std to be a number >= 0, or null for what the library draws; "
            f"got {std}. Set model.head_std."
        )


def begin(model: nn.Module, names: Sequence[str], num_classes: int, std: float | None) -> None:
    """Draw a new classifier's weights, and set its biases to 0.

    Libraries may draw them for many classes. EfficientNet's have ten times the usual size where
    there are ten classes: a loss of 18 in place of 2.3, by which training begins with the loss of
    what was pretrained.

    Args:
        model: it.
        names: of its classifiers, or of modules that hold one; layers with other outputs stay, and
            an encoder has none of these.
        num_classes: outputs.
        std: of a normal distribution, >= 0; None: they stay as they are.
    """
    if std is None:
        return
    for head in (module for name, module in model.named_modules() if name in names):
        for layer in head.modules():
            outputs = getattr(layer, "out_features", getattr(layer, "out_channels", None))
            if isinstance(layer, LAYERS) and outputs == num_classes:
                nn.init.normal_(layer.weight, std=std)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
