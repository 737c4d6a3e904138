"""Any image classifier of torchvision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import nn

from dpexp.data.encoders import read_weights, torchvision_weights
from dpexp.models.adapting import (
    check_resize,
    nearest_argument,
    require_images,
    set_dropouts,
    takes_images,
)
from dpexp.models.classifier import begin, check_head_std, find_head
from dpexp.types import ConfigError, one_line


def classifier(
    *,
    architecture: str,
    pretrained: bool,
    args: Mapping[str, Any],
    dropout: float | None,
    resize: int | None,
    normalise: str,
    channels_last: bool | str,
    model_root: str,
    num_classes: int,
    input_shape: Sequence[int],
    max_length: int | None,
    task_mean: Sequence[float] | None,
    task_std: Sequence[float] | None,
    head_std: float | None = None,
    is_bare: bool = False,
) -> nn.Module:
    """Return a classifier of the task's images.

    Args:
        architecture: torchvision's name, "resnet18".
        pretrained: whether to load its weights. The layer that gives the classes is new either
            way.
        args: further arguments of the architecture.
        dropout: of every dropout, in [0, 1); None: as torchvision sets it.
        resize: side that images are resized to, in pixels; None: not.
        normalise: see `takes_images`.
        channels_last: see `takes_images`.
        model_root: the folder that holds torchvision/<architecture>, searched before the network.
        num_classes: outputs.
        input_shape: of one example.
        max_length: None: the task is of images.
        task_mean: of the task's images; None: they are not normalised.
        task_std: likewise.
        head_std: of the normal distribution that the weights of a new classifier are drawn from,
            >= 0; its biases begin at 0. None: as torchvision draws them.
        is_bare: whether the weights are put in afterwards, as a kept model's: none are looked for.

    Raises:
        MissingData: its weights were not found.
        ConfigError: torchvision has no such model, or the task is not of images.
    """
    check_resize(resize)
    require_images(architecture, input_shape, max_length)
    check_head_std(head_std)
    known = torchvision.models.list_models(torchvision.models)
    if architecture not in known:
        near = get_close_matches(str(architecture), known, 1, 0.0)[0]
        raise ConfigError(
            f"Expected the name of an image classifier of torchvision; got {architecture}. Did you "
            f"mean {near}? Set name."
        )
    more: dict[str, Any] = {"num_classes": num_classes}
    if architecture in WITH_AUXILIARY:  # classifiers within it, whose outputs nothing here reads
        more |= {"aux_logits": False, "init_weights": True}
    if architecture.startswith("vit_"):
        more["image_size"] = input_shape[1] if resize is None else resize
    try:
        model = torchvision.models.get_model(architecture, weights=None, **(more | {**args}))
    except Exception as error:  # an architecture may refuse its arguments in any way
        raise ConfigError(
            f"Expected torchvision's {architecture} to be built; "
            f"{one_line(error)[:200].rstrip('.')}.{nearest_argument(error)} Set "
            "model.args, or model.resize to the side that it was made for."
        ) from error
    if pretrained and not is_bare:
        _load(model, num_classes, weights_of(architecture, model_root))
    if head_std is not None:
        begin(model, [find_head(model, num_classes)], num_classes, head_std)
    set_dropouts(model, dropout)
    takes_images(
        model,
        size=input_shape[1:],
        channels=input_shape[0],
        reads=None,
        resize=resize,
        normalise=normalise,
        channels_last=channels_last,
        own=_constants(architecture) if pretrained else None,
        task=(task_mean, task_std),
    )
    return model.train()


WITH_AUXILIARY = ("googlenet", "inception_v3")


def weights_of(architecture: str, model_root: str) -> Path:
    """Return the path of an architecture's weights: in model_root, else torchvision's own.

    Raises:
        MissingData: they were not found.
    """
    return torchvision_weights(architecture, model_root)


def _load(model: nn.Module, num_classes: int, path: Path) -> None:
    """Load all weights but those of the layer that gives the classes."""
    head = find_head(model, num_classes)
    try:
        weights = read_weights(path)
        model_has = model.state_dict()
        kept = {k: v for k, v in weights.items() if k in model_has and not _is_of(head, k)}
        wrong = [k for k, v in kept.items() if v.shape != model_has[k].shape]
    except Exception as error:  # damaged files raise many kinds of errors
        raise ConfigError(
            f"Expected readable weights in {path}; {one_line(error)[:200].rstrip('.')}. Fetch the "
            "file again."
        ) from error
    lacking = [k for k in model_has if k not in kept and not _is_of(head, k)]
    if wrong or lacking:
        name = (wrong or lacking)[0]
        found = f"of shape {tuple(kept[name].shape)}" if wrong else "none"
        raise ConfigError(
            f"Expected {name} of shape {tuple(model_has[name].shape)} in {path}; found {found}. "
            "Put the weights of this architecture there, or set model.resize as it was trained."
        )
    with torch.no_grad():
        model.load_state_dict(kept, strict=False)


def _is_of(head: str, name: str) -> bool:
    return name.startswith(f"{head}.")


def _constants(architecture: str) -> tuple[Sequence[float], Sequence[float]]:
    """Return the mean and std of the inputs that an architecture's weights are for."""
    made_for = torchvision.models.get_model_weights(architecture).DEFAULT.transforms()
    return made_for.mean, made_for.std
