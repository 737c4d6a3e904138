"""What turns a raw image or text into a model's input, without the data that a model learnt from.

A task states it, a run that keeps its model writes it beside the weights, and who uses the model
reads it there.
"""

from __future__ import annotations

import io
import json
import reprlib
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from dpexp.data.examples import Examples
from dpexp.data.pixels import pixels
from dpexp.data.task import Preprocessing
from dpexp.data.text import Texts, Tokenizer, WordLevel
from dpexp.records.files import write_atomically
from dpexp.types import ConfigError

FILE = "preprocessing.json"
"""Where a run that keeps its model says how inputs are made."""


@dataclass(frozen=True)
class Images:
    """Images of one size.

    Attributes:
        input_shape: channels (1 or 3), height, width.
        mean: of the inputs in [0, 1], per channel or one for all; None: not normalised.
        std: likewise.
        classes: names by index; empty where they have none.
        is_resized: whether images of another size are resized to this one, or refused.
    """

    kind: ClassVar[str] = "images"
    input_shape: tuple[int, ...]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    classes: tuple[str, ...] = ()
    is_resized: bool = False

    def examples(self, raw: Sequence[Any]) -> Examples:
        """Return images as examples.

        Args:
            raw: paths, bytes of encoded images, or pictures of Pillow; or a tensor or array of
                shape [n, c, h, w] or several of [c, h, w], uint8 in [0, 255] or floats in [0, 1].

        Raises:
            ConfigError: naming the first that is no image of this shape.
        """
        arrays = Tensor | np.ndarray
        if isinstance(raw, arrays) or all(isinstance(one, arrays) for one in raw):
            inputs = self._tensor(raw)
        else:
            found = [self._pixels(one, index) for index, one in enumerate(raw)]
            inputs = self._tensor(np.stack(found) if found else ())
        return Examples(inputs, torch.zeros(len(inputs), dtype=torch.long), self.mean, self.std)

    def _tensor(self, raw: Any) -> Tensor:
        shape = self.input_shape
        if not len(raw):
            return torch.empty(0, *shape)
        for one in [raw[0]] if isinstance(raw, Tensor | np.ndarray) else raw:
            if tuple(one.shape) != tuple(shape):
                raise ConfigError(
                    f"Expected images of shape [n, {', '.join(map(str, shape))}]; got "
                    f"{[len(raw), *one.shape]}."
                )
        if not isinstance(raw, Tensor | np.ndarray):
            raw = torch.stack([torch.as_tensor(one) for one in raw])
        inputs = torch.as_tensor(raw)
        if inputs.dtype == torch.uint8:
            return inputs
        if not inputs.is_floating_point() or not bool(((inputs >= 0) & (inputs <= 1)).all()):
            raise ConfigError(
                "Expected images as uint8, or as floats in [0, 1]; got "
                f"{str(inputs.dtype).removeprefix('torch.')} from {inputs.min():g} to "
                f"{inputs.max():g}. Leave the normalisation to the model's preprocessing."
            )
        return inputs.float()

    def _pixels(self, one: Any, index: int) -> np.ndarray:
        if isinstance(one, str | Path):
            return self._decoded(_bytes_of(Path(one)), str(one))
        if isinstance(one, bytes):
            return self._decoded(one, f"image {index}")
        if hasattr(one, "save") and hasattr(one, "getbands"):
            buffer = io.BytesIO()
            one.save(buffer, format="PNG")
            return self._decoded(buffer.getvalue(), f"image {index}")
        raise ConfigError(
            f"Expected image {index} as a path, bytes, a picture of Pillow or a tensor; got "
            f"{type(one).__name__}."
        )

    def _decoded(self, encoded: bytes, where: str) -> np.ndarray:
        return pixels(encoded, self.input_shape, where, is_resized=self.is_resized)

    def settings(self) -> dict[str, Any]:
        """Return what is needed to make it again, in JSON's types."""
        return asdict(self)

    def save_files(self, folder: Path) -> None:
        """Images need no files."""


@dataclass(frozen=True)
class Sentences:
    """Texts, or pairs of texts.

    Attributes:
        tokenizer: encodes them.
        max_length: tokens to which a text is truncated.
        columns: 1, or 2 for pairs.
        names: of the columns in a file; empty where they have none.
        classes: names by index; empty where they have none.
    """

    kind: ClassVar[str] = "texts"
    tokenizer: Tokenizer | WordLevel = field(repr=False)
    max_length: int
    columns: int = 1
    classes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def examples(self, raw: Sequence[Any]) -> Texts:
        """Return texts as examples.

        Args:
            raw: texts, or pairs of texts.

        Raises:
            ConfigError: naming the first that is none, or a word that the model does not know.
        """
        rows = [one if isinstance(one, list | tuple) else (one,) for one in raw]
        for index, row in enumerate(rows):
            if len(row) != self.columns or not all(isinstance(text, str) for text in row):
                what = "a text" if self.columns == 1 else f"{self.columns} texts"
                raise ConfigError(f"Expected {what} as input {index}; got {reprlib.repr(row)}.")
        columns = [[row[place] for row in rows] for place in range(self.columns)]
        try:
            encoded = self.tokenizer.encode(*columns)
        except KeyError as error:  # a vocabulary of whole words
            raise ConfigError(
                f"Expected texts of the words that the model knows; it does not know {error}."
            ) from error
        if encoded.ids.shape[1] > self.max_length:
            raise ConfigError(
                f"Expected texts of at most {self.max_length} tokens; the longest has "
                f"{encoded.ids.shape[1]}."
            )
        return Texts(encoded, torch.zeros(len(rows), dtype=torch.long), self.max_length)

    def settings(self) -> dict[str, Any]:
        """Return what is needed to make it again, in JSON's types."""
        said = {key: getattr(self, key) for key in ("max_length", "columns", "classes", "names")}
        words = self.tokenizer.words if isinstance(self.tokenizer, WordLevel) else None
        return {**said, "words": words}

    def save_files(self, folder: Path) -> None:
        """Write the tokenizer's files."""
        if isinstance(self.tokenizer, Tokenizer):
            for path in self.tokenizer.files:
                shutil.copyfile(path, folder / path.name)


def save(preprocessing: Preprocessing, folder: Path) -> None:
    """Write what makes inputs into a run's directory, for `load`."""
    preprocessing.save_files(folder)
    said = {"kind": preprocessing.kind, **preprocessing.settings()}
    write_atomically(folder / FILE, json.dumps(said, indent=2, ensure_ascii=False) + "\n")


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"Expected an image in {path}; {error.strerror}.") from error
