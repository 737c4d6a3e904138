"""One's own images: parquet files, or folders named after classes (`task=images data=...`)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import PIL
import pyarrow as pa
import torch
from torch import Tensor

from dpexp.data import classes as class_lists
from dpexp.data import own, parquet, rows
from dpexp.data.cache import decoded
from dpexp.data.classes import Classes
from dpexp.data.examples import Examples
from dpexp.data.images import require_shape
from dpexp.data.pixels import picture, pixels
from dpexp.data.preprocessing import Images
from dpexp.data.source import Found, find
from dpexp.data.task import Task, assemble
from dpexp.types import ConfigError


class Reader(NamedTuple):
    """Reads images with their labels.

    Attributes:
        found: the files.
        columns: of image and label; empty where each file is an image.
        classes: of the task.
        lists: each table's own class names.
    """

    found: Found
    columns: tuple[str, ...]
    classes: Classes
    lists: dict[Path, tuple[str, ...]]

    def read(self, files: Sequence[Path]) -> Iterator[tuple[str, Any, Any, Sequence[str]]]:
        """Yield each image's place, its cell, its label and the names its file gives labels."""
        for path in files:
            if self.found.are_images:
                yield str(path), _bytes(path), path.parent.name, ()
                continue
            for row in rows.read(path, self.columns, None):
                yield row.where, row.cells[0], row.cells[1], self.lists[path]

    @property
    def recipe(self) -> str:
        """What decides the decoded examples besides the files' bytes and the shape."""
        return f"own images 2 {self.columns} {self.classes.words} pillow {PIL.__version__}"


def images(
    *,
    name: str,
    data: str,
    config: str | None,
    image_column: str | None,
    label_column: str | None,
    train_splits: Sequence[str] | None,
    test_splits: Sequence[str] | None,
    test_size: int | None,
    split_seed: int,
    judged_on_training: bool | None = None,
    classes: Any,
    num_classes: int | None,
    input_shape: Sequence[int] | None,
    mean: Sequence[float],
    std: Sequence[float],
    dataset_size: int,
    delta: float,
    data_root: str,
) -> Task:
    """Load images of one's own, decoded once and cached by content.

    Nothing is learnt from training images. Size and channels are declared, or the test images';
    then an image of another size is refused. Where they are declared images are resized to them.

    Args:
        name: what records call the data.
        data: a file, a folder, or owner/name of the hub.
        config: of several configurations, the one to read; None: there is one.
        image_column: of a parquet file; None: the only one that can be.
        label_column: likewise.
        train_splits: of the training set; None: the one that is named so.
        test_splits: of the test set; None: the one that is named so.
        test_size: examples to split off for the test set, or None.
        split_seed: seed of that draw, separate from a run's seed.
        judged_on_training: whether test examples are training ones, which the certificate then
            says; False: they are others, though equal; None: they are refused.
        classes: words, "read", or None where folders or metadata name them.
        num_classes: of labels that are whole numbers from 0, or None.
        input_shape: (channels, height, width), or None.
        mean: of the inputs in [0, 1], one number a channel or one for all.
        std: likewise, > 0.
        dataset_size: the declared N.
        delta: of the (eps, delta) guarantee.
        data_root: a folder laid out like hub snapshots, searched before the hub.

    Raises:
        ConfigError: data are missing, corrupt, or not as declared.
    """
    shape = None if input_shape is None else require_shape(input_shape)
    found = find(
        data=data,
        config=config,
        train_splits=train_splits,
        test_splits=test_splits,
        test_size=test_size,
        judged_on_training=judged_on_training,
        data_root=data_root,
        takes_images=True,
    )
    reader = _reader(found, image_column, label_column, classes, num_classes)
    known = _shape(reader, test_size, split_seed) if shape is None else shape

    def load(files: list[Path]) -> Examples:
        places = hashlib.sha256("\0".join(_place(path) for path in files).encode()).hexdigest()
        recipe = f"{reader.recipe} {known} {shape is not None} {places * found.are_images}"
        inputs, targets = decoded(
            files, recipe, lambda: _decode(reader, files, known, shape is not None)
        )
        return Examples(inputs, targets, tuple(mean), tuple(std))

    test = load(found.test) if found.test else None
    return assemble(
        name,
        *own.parted(load(found.train), test, test_size, split_seed, judged_on_training),
        num_classes=len(reader.classes.words),
        delta=delta,
        dataset_size=dataset_size,
        size_word="dataset_size",
        preprocessing=Images(
            known, tuple(mean), tuple(std), tuple(reader.classes.words), shape is not None
        ),
    )


def _reader(
    found: Found,
    image_column: str | None,
    label_column: str | None,
    classes: Any,
    num_classes: int | None,
) -> Reader:
    if found.are_images:
        for setting, column in (("image", image_column), ("label", label_column)):
            if column is not None:
                raise ConfigError(
                    f"Expected no task.{setting}_column for folders of images; got {column}. Leave "
                    f"task.{setting}_column out."
                )
        chosen = class_lists.declared(classes, num_classes if classes else None)
        if classes == class_lists.READ:
            chosen = class_lists.read_off(path.parent.name for path in (*found.train, *found.test))
        chosen = chosen or Classes(found.classes)
        if num_classes not in (None, len(chosen.words)):
            raise ConfigError(
                f"Expected task.num_classes={len(chosen.words)}, one a class folder; got "
                f"{num_classes}. Leave task.num_classes out."
            )
        return Reader(found, (), chosen, {})
    columns = own.columns_of(found, None)
    path = found.train[0]
    if image_column is None:
        image_column = _image_column(path, columns)
    own.require_column("task.image_column", image_column, columns, path)
    label_column = label_column or own.label_column(found, columns, [image_column])
    own.require_column("task.label_column", label_column, columns, path)
    chosen, lists = own.classes_of(found, label_column, None, classes, num_classes)
    return Reader(found, (image_column, label_column), chosen, lists)


def _image_column(path: Path, columns: Sequence[str]) -> str:
    """Return the only column that can hold images: bytes, or bytes and a path."""
    schema = parquet.schema(path)
    able = [column for column in columns if _can_hold(schema.field(column).type)]
    if len(able) != 1:
        raise ConfigError(
            f"Expected one column of images in {path}; {', '.join(able) or 'none'} of its columns "
            f"{', '.join(columns)[:200]} can hold them. Set task.image_column."
        )
    return able[0]


def _can_hold(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return kind in (pa.binary(), pa.large_binary(), pa.binary_view())


def _shape(reader: Reader, test_size: int | None, split_seed: int) -> tuple[int, ...]:
    """Return the test images' shape; training images may not decide anything."""
    files, chosen = reader.found.test or reader.found.train, None
    if not reader.found.test:
        total = len(files)
        if not reader.found.are_images:
            total = sum(rows.count(path, None) for path in files)
        chosen = {*own.split_off(total, test_size, split_seed)[0].tolist()}

    def look() -> tuple[Tensor]:
        sizes: dict[tuple[int, int], str] = {}
        modes = set()
        for row, (where, cell, *_) in enumerate(reader.read(files)):
            if chosen is None or row in chosen:
                image = picture(cell, where)
                sizes.setdefault((image.height, image.width), where)
                modes.add(image.mode)
            if len(sizes) > 1:
                (one, where), (other, elsewhere) = sizes.items()
                raise ConfigError(
                    f"Expected test images of one size; {where} has {one[0]} x {one[1]} pixels, "
                    f"{elsewhere} {other[0]} x {other[1]}. Set task.input_shape, such as "
                    f"task.input_shape=[3,{one[0]},{one[1]}], to which images are then resized."
                )
        if not sizes:
            raise ConfigError(
                f"Expected at least one test image in {files[0] if files else 'the test split'}; "
                "there is none. Set task.test_splits, or task.test_size."
            )
        return (torch.tensor([1 if modes == {"L"} else 3, *next(iter(sizes))]),)

    recipe = f"shape of {reader.recipe} {test_size if chosen else None} {split_seed}"
    return tuple(decoded(files, recipe, look)[0].tolist())


def _decode(
    reader: Reader, files: Sequence[Path], shape: tuple[int, ...], is_resized: bool
) -> tuple[Tensor, Tensor]:
    """Return the uint8 images [n, c, h, w] and labels [n] of the files."""
    total = len(files)
    if not reader.found.are_images:
        total = sum(rows.count(path, None) for path in files)
    inputs = np.empty((total, *shape), dtype=np.uint8)
    targets = np.empty(total, dtype=np.int64)
    are_files = reader.found.are_images
    for row, (where, cell, label, names) in enumerate(reader.read(files)):
        place = "as the folder of" if are_files else f"in column {reader.columns[1]},"
        targets[row] = reader.classes.index(label, f"{place} {where}", names)
        inputs[row] = pixels(cell, shape, where, is_resized=is_resized)
    return torch.from_numpy(inputs), torch.from_numpy(targets)


def _place(path: Path) -> str:
    """Return what decides an image's label and order besides its bytes."""
    return f"{path.parent.name}/{path.name}".encode("utf-8", "surrogateescape").hex()


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"Expected a readable image at {path}; {error.strerror}. Fetch it again, or remove it."
        ) from None
