"""What transformers and timm read beside a model's weights, so that they load a kept one."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from dpexp.data.hub import PREPROCESSOR, model_folder
from dpexp.models.adapting import takes_texts
from dpexp.models.fixing import FixedNorm
from dpexp.types import ConfigError, one_line

TRANSFORMERS, TIMM = "transformers", "timm"

SETTINGS = "config.json"

TEXTS = "texts"
"""Value of `model.reads` of a run whose model was given tokens as a dict."""

OF_FIXED = {"mean": "running_mean", "var": "running_var"}
"""Names of a `FixedNorm`'s buffers, and those of the BatchNorm that it stands for."""


def library_of(model: nn.Module) -> str | None:
    """Return the library that loads a model of this class, transformers or timm; None: neither."""
    base = ("PreTrainedModel", "transformers.modeling_utils")
    if any((kind.__name__, kind.__module__) == base for kind in type(model).__mro__):
        return TRANSFORMERS
    is_of_timm = type(model).__module__.startswith(f"{TIMM}.")
    return TIMM if is_of_timm and isinstance(getattr(model, "pretrained_cfg", None), dict) else None


def why_other(node: Mapping[str, Any], notes: Mapping[str, Any]) -> str:
    """Return why a library's own model of these weights would compute something else, or "".

    Args:
        node: the run's config of the model.
        notes: what was done to it before it trained (`dpexp.models.notes`).
    """
    if node.get("fix") is True and isinstance(notes.get("fixed"), list):
        return "model.fix=true put other norms in place of its own"
    if node.get("weight_standardization"):
        return "its convolutions standardise their weights"
    return ""


def names_in_library(model: nn.Module) -> Callable[[str], str]:
    """Return what maps a name in a model's state to the one that its library reads.

    A `FixedNorm` is the library's BatchNorm; in place of timm's, it is the first of a sequence.
    """
    places = {}
    for name, module in model.named_modules():
        if isinstance(module, FixedNorm):
            parent, _, own = name.rpartition(".")
            is_first = own == "0" and type(model.get_submodule(parent)) is nn.Sequential
            around = model.get_submodule(parent) if is_first else None
            is_ours = around is not None and getattr(around, "stands_for_norm", False)
            places[name] = parent if is_ours else name

    def rename(name: str) -> str:
        module, _, own = name.rpartition(".")
        if module not in places:
            return name
        return f"{places[module]}.{OF_FIXED.get(own, own)}"

    return rename


def save_settings(
    model: Any, folder: Path, node: Mapping[str, Any], classes: Sequence[str]
) -> None:
    """Write what a model's library reads beside its weights; nothing for other models.

    Args:
        model: any module.
        folder: the run's.
        node: the run's config of the model.
        classes: names by index; empty where they have none.
    """
    library = library_of(model)
    if library == TRANSFORMERS:
        _of_transformers(model, folder, node, classes)
    elif library == TIMM:
        _of_timm(model, folder, classes)


def _of_transformers(
    model: Any, folder: Path, node: Mapping[str, Any], classes: Sequence[str]
) -> None:
    settings = copy.deepcopy(model.config)
    settings.architectures = [type(model).__name__]
    if len(classes) == settings.num_labels:
        settings.id2label = dict(enumerate(classes))
        settings.label2id = {name: index for index, name in enumerate(classes)}
    settings.save_pretrained(folder)
    if {"model_root", "repo"} <= node.keys():
        source = model_folder(node["model_root"], node["repo"]) / PREPROCESSOR
        if source.is_file():
            shutil.copyfile(source, folder / PREPROCESSOR)


def _of_timm(model: Any, folder: Path, classes: Sequence[str]) -> None:
    from timm.models._hub import save_config_for_hf

    named = {"label_names": list(classes)} if len(classes) == model.num_classes else {}
    save_config_for_hf(model, str(folder / SETTINGS), named)


def reads_texts(model: nn.Module) -> None:
    """Have a classifier of transformers take tokens [n, 3, t]: ids, mask, second text.

    Raises:
        ConfigError: it is of another library.
    """
    if library_of(model) != TRANSFORMERS:
        raise ConfigError(
            "Expected a model of transformers for inputs as a dict of tokens; got "
            f"{type(model).__name__}. Pass one tensor as the model takes it."
        )
    takes_texts(model, model.config)


def built(target: str, folder: Path) -> nn.Module | None:
    """Return a library's model by the settings in a folder, with random weights; None: of neither.

    Only classes of the installed library are called, and no code of the folder.

    Args:
        target: dotted name of the model's class.
        folder: that `save_settings` wrote to.

    Raises:
        ConfigError: the folder's settings are not of such a model.
    """
    if not (folder / SETTINGS).is_file():
        return None
    try:
        if target.startswith("transformers.models."):
            import transformers

            kind = getattr(transformers, target.rpartition(".")[2])
            if issubclass(kind, transformers.PreTrainedModel):
                return kind(kind.config_class.from_pretrained(folder))
        elif target.startswith("timm.models."):
            import timm

            return timm.create_model(f"local-dir:{folder}", pretrained=False)
    except Exception as error:  # damaged files raise many kinds of errors
        raise ConfigError(
            f"Expected {folder / SETTINGS} to describe a {target}; {one_line(error)[:200]}. Fetch "
            "the folder again, or pass the model: dpexp.load(directory, model)."
        ) from error
    return None
