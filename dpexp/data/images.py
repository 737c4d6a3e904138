"""Image classification sets published as parquet files on the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import PIL
import torch
from torch import Tensor

from dpexp.data import parquet
from dpexp.data.cache import decoded
from dpexp.data.examples import Examples, subset
from dpexp.data.hub import parquet_files
from dpexp.data.labels import check_names, class_indices
from dpexp.data.pixels import pixels
from dpexp.data.preprocessing import Images
from dpexp.data.task import Task, assemble, check_splits
from dpexp.types import ConfigError

SET_COLUMNS = "Set task.image_column and task.label_column."


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
    """Load an image set into tensors, decoded once and cached by content.

    Args:
        name: as in conf/task.
        repo: owner/name on the hub.
        config: a folder of the repository.
        image_column: the column that holds the encoded images.
        label_column: the column that holds the class indices.
        train_splits: splits of the training set, in order.
        test_splits: splits of the test set.
        num_classes: number of classes.
        input_shape: of one image, (channels, height, width), channels 1 or 3.
        mean: of the inputs in [0, 1], per channel.
        std: likewise, > 0.
        train_size: training examples to keep, drawn from subset_seed; None keeps all.
        subset_seed: seed of that draw, separate from a run's seed: all runs see the same ones.
        dataset_size: required number of training examples.
        delta: of the (eps, delta) guarantee.
        data_root: a folder laid out like hub snapshots, searched before the hub.

    Raises:
        ConfigError: data are missing, corrupt, or not as declared.
    """
    shape = require_shape(input_shape)
    check_splits(train_splits, test_splits)
    files = parquet_files(data_root, repo, config, [*train_splits, *test_splits])
    columns = image_column, label_column
    for path in (path for paths in files.values() for path in paths):
        parquet.count(path, columns, SET_COLUMNS)
    classes = check_names(name, files, label_column, num_classes)
    recipe = f"images 3 {columns} {num_classes} {shape} pillow {PIL.__version__}"

    def part(split: str) -> tuple[Tensor, ...]:
        shards = files[split]
        return decoded(shards, recipe, lambda: _decode(shards, columns, shape, num_classes))

    def load(splits: Sequence[str]) -> Examples:
        parts = [part(split) for split in splits]
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
        preprocessing=Images(shape, tuple(mean), tuple(std), classes),
    )


def require_shape(input_shape: Sequence[int]) -> tuple[int, ...]:
    """Return task.input_shape as a tuple; raise ConfigError if it is no shape of images."""
    shape = tuple(input_shape)
    if (
        len(shape) != 3
        or not all(type(side) is int for side in shape)
        or shape[0] not in (1, 3)
        or min(shape) < 1
    ):
        raise ConfigError(
            f"Expected task.input_shape to be channels (1 or 3), height, width; got {list(shape)}. "
            "Set task.input_shape."
        )
    return shape


def _decode(
    files: list[Path], columns: tuple[str, str], shape: tuple[int, ...], num_classes: int
) -> tuple[Tensor, Tensor]:
    """Return the uint8 images [n, c, h, w] and labels [n] of all rows of the files."""
    counts = [parquet.count(path, columns, SET_COLUMNS) for path in files]
    inputs = np.empty((sum(counts), *shape), dtype=np.uint8)
    targets = np.empty(sum(counts), dtype=np.int64)
    begin = 0
    for path, count in zip(files, counts, strict=True):
        for first, (images, labels) in parquet.batches(path, columns):
            rows = slice(begin + first, begin + first + len(labels))
            targets[rows] = class_indices(
                labels, num_classes, column=columns[1], path=path, first=first
            )
            for row, image in enumerate(images.to_pylist(), first):
                inputs[begin + row] = pixels(image, shape, f"row {row} of {path}")
        begin += count
    return torch.from_numpy(inputs), torch.from_numpy(targets)
