"""Any image classifier of timm."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from torch import nn

from dpexp.data.hub import model_folder
from dpexp.models.adapting import (
    COLOURS,
    check_resize,
    nearest_argument,
    require_images,
    set_dropouts,
    takes_images,
)
from dpexp.models.classifier import begin, check_head_std
from dpexp.models.notes import note
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
        architecture: timm's name, with or without the tag of its weights: "resnet18.a1_in1k".
        pretrained: whether to load its weights. The layer that gives the classes is new either
            way, unless the weights are for as many classes.
        args: further arguments of `timm.create_model`.
        dropout: of every dropout, in [0, 1); None: as timm sets it.
        resize: side that images are resized to, in pixels; None: not.
        normalise: see `takes_images`.
        channels_last: see `takes_images`.
        model_root: a folder laid out like hub snapshots, searched before the hub.
        num_classes: outputs.
        input_shape: of one example.
        max_length: None: the task is of images.
        task_mean: of the task's images; None: they are not normalised.
        task_std: likewise.
        head_std: of the normal distribution that the weights of a new classifier are drawn from,
            >= 0; its biases begin at 0. None: as timm draws them.
        is_bare: whether the weights are put in afterwards, as a kept model's: none are looked for.

    Raises:
        MissingData: its weights were not found.
        ConfigError: timm is not installed or has no such model, or the task is not of images.
    """
    timm = _timm()
    check_resize(resize)
    require_images(architecture, input_shape, max_length)
    stated = _stated(timm, architecture)
    more: dict[str, Any] = {"in_chans": COLOURS, "num_classes": num_classes}
    if stated.fixed_input_size:  # as vision transformers, whose positions are made for one size
        more["img_size"] = tuple(input_shape[1:]) if resize is None else resize
    check_head_std(head_std)
    is_loaded = pretrained and not is_bare
    if is_loaded:
        more["pretrained_cfg_overlay"] = {"file": str(weights_of(architecture, model_root))}
    try:
        model = timm.create_model(architecture, pretrained=is_loaded, **(more | {**args}))
    except Exception as error:  # an architecture may refuse its arguments in any way
        raise ConfigError(
            f"Expected timm's {architecture} to be built for images of "
            f"{_size(input_shape, resize)}; {one_line(error)[:200].rstrip('.')}."
            f"{nearest_argument(error)} Set model.resize to the side that it was made for, or "
            "model.args."
        ) from error
    if not (is_loaded and num_classes == stated.num_classes):
        named = stated.classifier or ()
        begin(model, [named] if isinstance(named, str) else named, num_classes, head_std)
    note(model, "library", f"timm {timm.__version__}")
    set_dropouts(model, dropout)
    takes_images(
        model,
        size=input_shape[1:],
        channels=input_shape[0],
        reads=None,
        resize=resize,
        normalise=normalise,
        channels_last=channels_last,
        own=(stated.mean, stated.std) if pretrained else None,
        task=(task_mean, task_std),
    )
    _state_inputs(
        model,
        stated if normalise == "own" and pretrained else None,
        input_shape,
        resize,
        (task_mean, task_std),
    )
    return model.train()


def _state_inputs(
    model: Any,
    stated: Any,
    input_shape: Sequence[int],
    resize: int | None,
    task: tuple[Sequence[float] | None, Sequence[float] | None],
) -> None:
    """Have a model say, as timm keeps it, how its inputs are made here.

    Args:
        model: changed in place.
        stated: what timm says of it, whose mean and std they are normalised by; None: the task's.
        input_shape: of one example.
        resize: see `classifier`.
        task: mean and std of the task's images.
    """
    height, width = input_shape[1:] if resize is None else (resize, resize)
    mean, std = (stated.mean, stated.std) if stated else (task[0] or [0.0], task[1] or [1.0])
    constants = [tuple(each) * (COLOURS // len(tuple(each))) for each in (mean, std)]
    own = {"mean": constants[0], "std": constants[1], "input_size": (COLOURS, height, width)}
    model.pretrained_cfg = {
        **model.pretrained_cfg,
        **own,
        "interpolation": "bilinear",
        "crop_pct": 1.0,
    }


def weights_of(architecture: str, model_root: str) -> Path:
    """Return the path of an architecture's weights.

    Raises:
        MissingData: they were not found.
        ConfigError: timm has no such model.
    """
    stated = _stated(_timm(), architecture)
    if not stated.hf_hub_id:
        raise ConfigError(
            f"Expected an architecture that timm has weights of; {architecture} has none. Set "
            "model.pretrained=false."
        )
    folder = model_folder(model_root, stated.hf_hub_id)
    path = folder / "model.safetensors"
    if not path.is_file():
        raise ConfigError(f"Expected model.safetensors in {folder}; found none. Put it there.")
    return path


def _timm() -> Any:
    try:
        import timm
    except ImportError as error:
        raise ConfigError(
            f"Expected timm to be installed for model=timm; it cannot be imported "
            f"({one_line(error)}). Set it up with: pip install -e '.[timm]'."
        ) from error
    logging.getLogger("timm").setLevel(logging.WARNING)  # it tells of every file that it loads
    return timm


def _stated(timm: Any, architecture: str) -> Any:
    """Return what timm says of an architecture.

    Raises:
        ConfigError: it has none of that name.
    """
    try:
        found = timm.models.get_pretrained_cfg(architecture)
    except Exception:  # one that it does not know, or a tag that it lacks
        found = None
    if found is not None:
        return found
    known = [*timm.list_models(), *timm.list_pretrained()]
    near = get_close_matches(str(architecture), known, 1, 0.0)
    raise ConfigError(
        f"Expected the name of a model of timm; got {architecture}. Did you mean {near[0]}? Set "
        "name."
    )


def _size(input_shape: Sequence[int], resize: int | None) -> str:
    height, width = input_shape[1:] if resize is None else (resize, resize)
    return f"{height} x {width} pixels"
