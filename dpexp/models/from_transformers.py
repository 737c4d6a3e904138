"""Any classifier of transformers: of texts or of images, by its name on the hub."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from dpexp.data.hub import PREPROCESSOR, model_folder
from dpexp.models.adapting import (
    COLOURS,
    check_resize,
    require_images,
    set_dropouts,
    takes_images,
    takes_texts,
)
from dpexp.models.classifier import find_head
from dpexp.types import ConfigError, one_line

FROM_PADDING_ON = ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "xmod", "data2vec-text",
                   "mpnet", "longformer", "ibert", "esm", "luke")  # fmt: skip
"""Models that count positions from the padding token's id on, and so have two less than rows."""


def classifier(
    *,
    repo: str,
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
    is_bare: bool = False,
) -> nn.Module:
    """Return a classifier of the task's texts or images.

    Args:
        repo: owner/name on the hub.
        pretrained: whether to load its weights; else its config.json is read alone. The layer that
            gives the classes is random either way.
        args: settings of its config.json to change.
        dropout: of every dropout, in [0, 1); None: as its config.json says.
        resize: side that images are resized to, in pixels; None: not.
        normalise: see `takes_images`.
        channels_last: see `takes_images`.
        model_root: a folder laid out like hub snapshots, searched before the hub.
        num_classes: outputs.
        input_shape: of one example.
        max_length: tokens of the longest text; None: the task is of images.
        task_mean: of the task's images; None: they are not normalised.
        task_std: likewise.
        is_bare: whether the weights are put in afterwards, as a kept model's: none are looked for.

    Raises:
        MissingData: it was not found.
        ConfigError: it is no classifier of such examples, or lacks weights.
    """
    check_resize(resize)
    folder = model_folder(model_root, repo)
    config = _config(folder, args)
    is_said = bool({"num_labels", "id2label"} & args.keys())
    if is_said and not is_bare and config.num_labels != num_classes:
        raise ConfigError(
            f"Expected model.args to have {num_classes} labels, the task's classes; got "
            f"{config.num_labels}. Leave num_labels and id2label out: the task gives them."
        )
    config.num_labels = num_classes
    config.architectures = config.architectures or []  # read where there are several, as of DeiT
    auto = _kind(repo, config, is_text=max_length is not None)
    if max_length is not None:
        config.use_cache = False
        _check_length(repo, config, max_length)
    else:
        require_images(repo, input_shape, max_length)
        config.num_channels = COLOURS
        if not pretrained and hasattr(config, "image_size"):
            config.image_size = input_shape[1] if resize is None else resize
    is_loaded = pretrained and not is_bare
    model = _loaded(folder, config, auto) if is_loaded else auto.from_config(config)
    model = model.float().train()
    set_dropouts(model, dropout)
    if max_length is not None:
        takes_texts(model, model.config)
    else:
        takes_images(
            model,
            size=input_shape[1:],
            channels=input_shape[0],
            reads="pixel_values",
            resize=resize,
            normalise=normalise,
            channels_last=channels_last,
            own=_constants(folder) if pretrained else None,
            task=(task_mean, task_std),
        )
    if is_loaded:
        _draw_again(model, num_classes)
    return model


def _config(folder: Path, args: Mapping[str, Any]) -> Any:
    """Read a model's settings, and change some."""
    try:
        config = transformers.AutoConfig.from_pretrained(folder)
    except Exception as error:  # damaged files raise many kinds of errors
        raise ConfigError(
            f"Expected a config.json that transformers can read in {folder}; {_short(error)}."
        ) from error
    known = config.to_dict()
    for key, value in args.items():
        if key not in known and not hasattr(config, key):
            near = get_close_matches(key, known, 1, 0.4)
            raise ConfigError(
                f"Expected model.args to hold settings of config.json; {key} is none of a "
                f"{config.model_type}.{f' Did you mean {near[0]}?' if near else ''} Set model.args."
            )
        setattr(config, key, value)
    return config


def _kind(repo: str, config: Any, *, is_text: bool) -> Any:
    """Return transformers' class for the task's kind of examples."""
    kinds: dict[str, Any] = {
        "texts": transformers.AutoModelForSequenceClassification,
        "images": transformers.AutoModelForImageClassification,
    }
    word = "texts" if is_text else "images"
    has = [each for each, auto in kinds.items() if type(config) in auto._model_mapping]
    if word not in has:
        found = f"classifies {' and '.join(has)} alone" if has else "has no classifier there"
        raise ConfigError(
            f"Expected a model that classifies {word}, as the task has them; {repo} is a "
            f"{config.model_type}, which {found}. Set another repo, or another task."
        )
    return kinds[word]


def _check_length(repo: str, config: Any, max_length: int) -> None:
    """Refuse texts that are longer than a model's table of positions."""
    most = getattr(config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(most, int) or most < 1:  # -1: relative positions alone
        return
    room = most - (2 if config.model_type in FROM_PADDING_ON else 0)
    if max_length > room:
        raise ConfigError(
            f"Expected task.max_length <= {room}, the positions that {repo} supports; got "
            f"{max_length}. Set task.max_length."
        )


def _loaded(folder: Path, config: Any, auto: Any) -> nn.Module:
    """Load a classifier's weights; all but those beside its encoder must be there."""
    # Its report of unused weights and its progress bar would hide an error's one line.
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        model, loading = auto.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, by name
            local_files_only=True,
        )
    except Exception as error:
        raise ConfigError(
            f"Expected readable weights in {folder}; {_short(error)}. Fetch the folder again, or "
            "set model.args as it was trained."
        ) from error
    encoder = f"{model.base_model_prefix}."
    own = [name for name in model.state_dict() if name.startswith(encoder)]
    lacking = sorted(
        name
        for name in loading["missing_keys"]
        if (name.startswith(encoder) or not own) and "pooler." not in name
    )
    if lacking:
        raise ConfigError(
            f"Expected all weights of the encoder in {folder}; it lacks {len(lacking)}, "
            f"{lacking[0]} among them. Put the files of the whole model there, or set model.args "
            "as it was trained."
        )
    for name, actual, expected in sorted(loading["mismatched_keys"]):
        if name.startswith(encoder):
            raise ConfigError(
                f"Expected {name} of shape {tuple(expected)}, as in config.json, in {folder}; its "
                f"weights have {tuple(actual)}. Put config.json and weights of one model there, or "
                "set model.args as it was trained."
            )
    return model


def _draw_again(model: nn.Module, num_classes: int) -> None:
    """Draw the layer that gives the classes: what a published one was trained on is not known."""
    head = model.get_submodule(find_head(model, num_classes))
    std = getattr(model.config, "initializer_range", None) or 0.02
    for module in head.modules():
        if isinstance(module, nn.Linear) and module.out_features == num_classes:
            nn.init.normal_(module.weight, std=std)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def _constants(folder: Path) -> tuple[Sequence[float], Sequence[float]] | None:
    """Return the mean and std of a model's inputs, from its preprocessor_config.json."""
    try:
        read = json.loads((folder / PREPROCESSOR).read_text(encoding="utf-8"))
        mean, std = ([float(each) for each in read[key]] for key in ("image_mean", "image_std"))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return mean, std


def _short(error: BaseException) -> str:
    return one_line(error)[:200].rstrip(".")
