"""Image classification sets published as parquet files on the Hugging Face hub."""

from __future__ import annotations

import glob
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import datasets
import numpy as np
import pyarrow.parquet
import torch
from PIL import Image
from torch import Tensor

from dpexp.snapshots import parquet_files
from dpexp.tasks.cache import decoded
from dpexp.tasks.task import Examples, Task, assemble, subset
from dpexp.types import ConfigError, one_line

ROWS_AT_A_TIME = 1000


def hub_images(
    *,
    name: str,
    repo: str,
    config: str,
    image_column: str,
    label_column: str,
    train_splits: Sequence[str],
    test_splits: Sequence[str],
    num_classes: int,
    input_shape: Sequence[int],
    mean: Sequence[float],
    std: Sequence[float],
    train_size: int | None,
    subset_seed: int,
    dataset_size: int,
    delta: float,
    data_root: str,
) -> Task:
    """Load an image set into tensors; its files are decoded once and cached by content.

    Args:
        name: as in conf/task.
        repo: owner/name on the hub.
        config: a folder of the repository.
        image_column: the column that holds the encoded images.
        label_column: the column that holds the class indices.
        train_splits: the splits that make the training set, in order.
        test_splits: the splits that make the test set.
        num_classes: how many classes there are.
        input_shape: of one image, (channels, height, width), channels 1 or 3.
        mean: of the inputs in [0, 1], per channel.
        std: likewise, > 0.
        train_size: keep that many training examples, drawn from subset_seed; None keeps all.
        subset_seed: which ones; apart from a run's seed, so that all runs see the same ones.
        dataset_size: how many training examples there must be in the end.
        delta: of the (eps, delta) guarantee.
        data_root: a folder laid out like hub snapshots, looked at before the hub.

    Raises:
        ConfigError: data missing, corrupt, or not what was declared.
    """
    files = parquet_files(data_root, repo, config, [*train_splits, *test_splits])
    shape = tuple(input_shape)

    def load(splits: Sequence[str]) -> Examples:
        parts = [_load(files[split], image_column, label_column, shape) for split in splits]
        inputs, targets = (
            column[0] if len(column) == 1 else torch.cat(column)
            for column in zip(*parts, strict=True)
        )
        return Examples(inputs, targets, tuple(mean), tuple(std))

    return assemble(
        name,
        subset(load(train_splits), train_size, subset_seed),
        load(test_splits),
        num_classes=num_classes,
        delta=delta,
        dataset_size=dataset_size,
    )


def _load(
    files: list[Path], image_column: str, label_column: str, shape: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Give one split as uint8 images [n, c, h, w] and labels [n]."""
    recipe = f"images 1 {image_column} {label_column} {shape}"
    return decoded(files, recipe, lambda: _decode(files, image_column, label_column, shape))


def _decode(
    files: list[Path], image_column: str, label_column: str, shape: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Decode every row of some parquet files."""
    total = sum(_num_rows(path, (image_column, label_column)) for path in files)
    inputs = np.empty((total, *shape), dtype=np.uint8)
    targets = np.empty(total, dtype=np.int64)
    row = 0
    for path in files:
        for images, labels in _rows(path, image_column, label_column):
            for image, label in zip(images, labels, strict=True):
                inputs[row] = _pixels(image, shape, f"row {row} of {path}")
                targets[row] = label
                row += 1
    return torch.from_numpy(inputs), torch.from_numpy(targets)


def _num_rows(path: Path, columns: tuple[str, ...]) -> int:
    """Count a file's rows, once it is a parquet file that has the columns."""
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            present, rows = file.schema_arrow.names, file.metadata.num_rows
    except (pyarrow.ArrowException, OSError) as error:
        raise _corrupt(path, error) from None
    lacking = [column for column in columns if column not in present]
    if lacking:
        raise ConfigError(
            f"Expected columns {', '.join(columns)} in {path}; got {', '.join(present)}. "
            "Set task.image_column and task.label_column."
        )
    return rows


def _rows(path: Path, image_column: str, label_column: str) -> Iterator[tuple[list, list]]:
    """Stream encoded images and labels, some rows at a time and without a second copy on disk."""
    try:
        # Not load_dataset: that would report the load to the hub, and wait for it with no network.
        rows = datasets.IterableDataset.from_parquet(
            glob.escape(str(path)), columns=[image_column, label_column]
        )
        rows = rows.cast_column(image_column, datasets.Image(decode=False)).with_format("arrow")
        for table in rows.iter(batch_size=ROWS_AT_A_TIME):
            yield table[image_column].to_pylist(), table[label_column].to_pylist()
    except (pyarrow.ArrowException, OSError, datasets.exceptions.DatasetsError) as error:
        raise _corrupt(path, error) from None


def _pixels(image: dict | None, shape: tuple[int, ...], where: str) -> np.ndarray:
    """Decode one image to uint8 [c, h, w]."""
    channels, height, width = shape
    mode = "L" if channels == 1 else "RGB"
    try:
        picture = Image.open(io.BytesIO(image["bytes"]))
        pixels = np.asarray(picture if picture.mode == mode else picture.convert(mode))
    except (OSError, SyntaxError, TypeError, ValueError) as error:
        raise ConfigError(
            f"Expected an encoded image as {where}; it cannot be decoded ({error}). "
            "Fetch the file again."
        ) from None
    if pixels.shape[:2] != (height, width):
        raise ConfigError(
            f"Expected {height} x {width} pixels as {where}; got "
            f"{pixels.shape[0]} x {pixels.shape[1]}. Set task.input_shape."
        )
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _corrupt(path: Path, error: Exception) -> ConfigError:
    reason = one_line(error)
    return ConfigError(
        f"Expected a parquet file at {path}; it is corrupt ({reason}). Fetch it again."
    )
