"""Keep a finished run's model: weights, how inputs are made, and a card that says what it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from torch import nn

from dpexp.data import preprocessing
from dpexp.models import libraries
from dpexp.models.adapter_files import save_adapters
from dpexp.records import write_atomically
from dpexp.records.keeping import WEIGHTS, place
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
) -> list[str]:
    """Write a model into its run's directory.

    The folder then holds model.safetensors, README.md, and preprocessing.json if the task says how
    inputs are made. A model of transformers or timm brings its config.json, and a tokenizer its
    files.

    Args:
        directory: the run's.
        model: after the last step.
        task: that it trained on.
        config: the run's.
        result: contents of result.json.
        certificate: contents of privacy.json.

    Returns:
        The names of the files that the model is loaded with, but its weights.

    Raises:
        RecordError: if a file cannot be written.
    """
    rename: Callable[[str], str] = str
    loads = ""
    made = task.preprocessing
    classes = () if made is None else made.classes
    names: list[str] = []
    if isinstance(model, Publishable):
        rename = cast(Publishable, model).name_in_library
        names += place(directory, lambda folder: model.save_settings(folder, classes))
    else:
        other = libraries.why_other(config["model"], result.get("model_as_run", {}))
        library = libraries.library_of(model)
        if not other or library == libraries.TRANSFORMERS:  # whose settings `dpexp.load` reads
            names += place(
                directory,
                lambda folder: libraries.save_settings(model, folder, config["model"], classes),
            )
        if not other:
            rename = libraries.names_in_library(model)
        loads = model_card.loading(library, type(model).__name__, other)
    if made is not None:
        names += place(directory, lambda folder: preprocessing.save(made, folder))
    write(directory / WEIGHTS, model.state_dict(), rename)
    card = model_card.text(directory.name, config, result, certificate, classes, loads)
    write_atomically(directory / model_card.FILE, card)
    return names


def keep_adapters(
    directory: Path,
    model: nn.Module,
    config: Mapping[str, Any],
    result: Mapping[str, Any],
    certificate: Mapping[str, Any],
) -> list[str]:
    """Write a model's adapters and classifier by themselves, where the model has adapters.

    Args:
        directory: the run's.
        model: after the last step, with its adapters.
        config: the run's.
        result: contents of result.json.
        certificate: contents of privacy.json.

    Returns:
        The names of the files; none where nothing is written.
    """
    node = config["model"]
    changed = libraries.why_other(node, result.get("model_as_run", {}))
    if config.get("warm_start"):
        changed = "the warm start trained the weights beneath the adapters, too"
    base, trained = node.get("repo"), certificate["trainable"]
    return place(directory, lambda folder: save_adapters(model, folder, base, trained, changed))
