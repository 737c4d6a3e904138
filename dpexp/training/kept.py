"""Keep a finished run's model: weights, how inputs are made, and a card that says what it is."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from torch import nn

from dpexp.data import preprocessing
from dpexp.data.hub import PREPROCESSOR, model_folder
from dpexp.records import write_atomically
from dpexp.records.keeping import WEIGHTS
from dpexp.records.weights import write
from dpexp.training import model_card


@runtime_checkable
class Publishable(Protocol):
    """A model that its library can load from a folder."""

    def name_in_library(self, name: str) -> str:
        """Return the library's name of a parameter or buffer."""

    def save_settings(self, folder: Path, classes: tuple[str, ...]) -> None:
        """Write the library's own settings, such as config.json."""


def keep(
    directory: Path,
    model: nn.Module,
    task: Any,
    config: Mapping[str, Any],
    result: Mapping[str, Any],
    certificate: Mapping[str, Any],
) -> None:
    """Write a model into its run's directory.

    The folder then holds model.safetensors, README.md, and preprocessing.json if the task says how
    inputs are made. A model of transformers brings its config.json, and its tokenizer's files.

    Args:
        directory: the run's.
        model: after the last step.
        task: that it trained on.
        config: the run's.
        result: contents of result.json.
        certificate: contents of privacy.json.

    Raises:
        RecordError: if a file cannot be written.
    """
    rename: Callable[[str], str] = str
    made = task.preprocessing
    classes = () if made is None else made.classes
    if isinstance(model, Publishable):
        rename = cast(Publishable, model).name_in_library
        model.save_settings(directory, classes)
    elif hasattr(getattr(model, "config", None), "save_pretrained"):
        _save_settings(model, directory, config["model"], classes)
    if made is not None:
        preprocessing.save(made, directory)
    write(directory / WEIGHTS, model.state_dict(), rename)
    card = model_card.text(directory.name, config, result, certificate, classes)
    write_atomically(directory / model_card.FILE, card)


def _save_settings(
    model: Any, directory: Path, node: Mapping[str, Any], classes: tuple[str, ...]
) -> None:
    """Write what transformers reads beside the weights of its own model."""
    settings = copy.deepcopy(model.config)
    settings.architectures = [type(model).__name__]
    if len(classes) == settings.num_labels:
        settings.id2label = dict(enumerate(classes))
        settings.label2id = {name: index for index, name in enumerate(classes)}
    settings.save_pretrained(directory)
    if "repo" not in node:  # handed over in memory
        return
    source = model_folder(node["model_root"], node["repo"]) / PREPROCESSOR
    if source.is_file():
        shutil.copyfile(source, directory / PREPROCESSOR)
