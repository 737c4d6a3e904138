"""Read back what makes the inputs of a kept model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dpexp.data.features import Features
from dpexp.data.own_tables import Table
from dpexp.data.preprocessing import FILE, Images, Sentences
from dpexp.data.task import Preprocessing
from dpexp.data.text import Tokenizer, WordLevel
from dpexp.types import ConfigError, one_line


def load(folder: Path) -> Preprocessing:
    """Read what makes inputs of a kept model.

    Raises:
        ConfigError: if the file is missing or damaged.
    """
    path = folder / FILE
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        return _made(said.pop("kind"), said, folder)
    except ConfigError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"Expected how inputs are made in {path}; it cannot be read "
            f"({type(error).__name__}: {one_line(error)})."
        ) from error


def _made(kind: str, said: dict[str, Any], folder: Path) -> Preprocessing:
    if kind == Features.kind:
        return Features(_images(said["images"]), **said["encoder"])
    if kind == Images.kind:
        return _images(said)
    if kind == Table.kind:
        return Table(**said | {"classes": tuple(said["classes"])})
    if kind != Sentences.kind:
        raise ValueError(f"no kind of inputs is called {kind}")
    length = said["max_length"]
    tokenizer: Tokenizer | WordLevel
    if said["words"] is None:
        tokenizer = Tokenizer.load(folder.name, str(folder.parent), length, "the kept model")
    else:
        tokenizer = WordLevel(tuple(said["words"]))
    classes, names = tuple(said["classes"]), tuple(said["names"])
    return Sentences(tokenizer, length, said["columns"], classes, names)


def _images(said: dict[str, Any]) -> Images:
    mean, std = (None if said[key] is None else tuple(said[key]) for key in ("mean", "std"))
    return Images(tuple(said["input_shape"]), mean, std, tuple(said["classes"]), said["is_resized"])
