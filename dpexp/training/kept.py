"""Keep a finished run's model: weights, how inputs are made, and a card that says what it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from glob import escape
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from torch import nn

from dpexp.data import preprocessing
from dpexp.models import libraries
from dpexp.models.adapter_files import save_adapters
from dpexp.records import read, write_atomically
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
    inputs are made. A model of transformers or timm brings its config.json, and a tokenizer its
    files.

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
    loads = ""
    made = task.preprocessing
    classes = () if made is None else made.classes
    if isinstance(model, Publishable):
        rename = cast(Publishable, model).name_in_library
        model.save_settings(directory, classes)
    else:
        other = libraries.why_other(config["model"], result.get("model_as_run", {}))
        library = libraries.library_of(model)
        if not other or library == libraries.TRANSFORMERS:  # whose settings `dpexp.load` reads
            libraries.save_settings(model, directory, config["model"], classes)
        if not other:
            rename = libraries.names_in_library(model)
        loads = model_card.loading(library, type(model).__name__, other)
    if made is not None:
        preprocessing.save(made, directory)
    write(directory / WEIGHTS, model.state_dict(), rename)
    before = _trained_before(directory, config)
    card = model_card.text(directory.name, config, result, certificate, classes, loads, before)
    write_atomically(directory / model_card.FILE, card)


def _trained_before(
    directory: Path, config: Mapping[str, Any]
) -> dict[str, Mapping[str, Any] | None]:
    """Return the certificates of the runs that had trained a run's model, by id, the last first.

    They are looked for where the run is; None stands for one that is not there or damaged.
    """
    found: dict[str, Mapping[str, Any] | None] = {}
    results, run = directory.resolve().parents[2], config["model"].get("trained_in")
    while run and run not in found:
        paths = sorted(results.glob(f"*/runs/{escape(str(run))}"))
        record = next(filter(None, map(read, paths)), None)
        found[run] = None if record is None else record.privacy
        run = None if record is None else record.config["model"].get("trained_in")
    return found


def keep_adapters(
    directory: Path,
    model: nn.Module,
    config: Mapping[str, Any],
    result: Mapping[str, Any],
    certificate: Mapping[str, Any],
) -> None:
    """Write a model's adapters and classifier by themselves, where the model has adapters.

    Args:
        directory: the run's.
        model: after the last step, with its adapters.
        config: the run's.
        result: contents of result.json.
        certificate: contents of privacy.json.
    """
    node = config["model"]
    changed = libraries.why_other(node, result.get("model_as_run", {}))
    if config.get("warm_start"):
        changed = "the warm start trained the weights beneath the adapters, too"
    save_adapters(model, directory, node.get("repo"), certificate["trainable"], changed)
