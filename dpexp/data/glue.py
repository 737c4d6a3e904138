"""GLUE (Wang et al. 2018): sentences and pairs of sentences, as parquet files on the hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import tokenizers
import torch
import transformers
from torch import Tensor

from dpexp.data import parquet
from dpexp.data.cache import decoded
from dpexp.data.examples import subset
from dpexp.data.hub import parquet_files
from dpexp.data.labels import check_names, class_indices
from dpexp.data.preprocessing import Sentences
from dpexp.data.task import Task, assemble, check_splits
from dpexp.data.text import Encoded, Texts, Tokenizer

SET_COLUMNS = "Set task.text_columns and task.label_column."


def glue(
    *,
    name: str,
    repo: str,
    config: str,
    text_columns: Sequence[str],
    label_column: str,
    train_split: str,
    test_splits: Mapping[str, str],
    num_classes: int,
    max_length: int,
    train_size: int | None,
    subset_seed: int,
    dataset_size: int,
    delta: float,
    tokenizer: str | None,
    data_root: str,
    model_root: str,
) -> Task:
    """Load a task's texts as token ids, tokenised once and cached by content.

    Args:
        name: as in conf/task.
        repo: owner/name on the hub.
        config: a folder of the repository.
        text_columns: the column of sentences, or the two columns of pairs.
        label_column: the column that holds the class indices.
        train_split: the private examples.
        test_splits: a split for each metric; the first metric is the task's.
        num_classes: number of classes.
        max_length: tokens to which texts are truncated, special ones included.
        train_size: training examples to keep, drawn from subset_seed; None keeps all.
        subset_seed: seed of that draw, separate from a run's seed: all runs see the same ones.
        dataset_size: required number of training examples.
        delta: of the (eps, delta) guarantee.
        tokenizer: owner/name of the model whose tokenizer encodes the texts.
        data_root: a folder laid out like hub snapshots, searched before the hub.
        model_root: likewise, of models.

    Raises:
        ConfigError: data or tokenizer are missing, corrupt, or not as declared.
    """
    words = Tokenizer.load(tokenizer, model_root, max_length, name)
    check_splits([train_split], list(test_splits.values()))
    files = parquet_files(data_root, repo, config, [train_split, *test_splits.values()])
    columns = [*text_columns, label_column]
    for path in (path for paths in files.values() for path in paths):
        parquet.count(path, columns, SET_COLUMNS)
    classes = check_names(name, files, label_column, num_classes)
    versions = f"transformers {transformers.__version__} tokenizers {tokenizers.__version__}"
    recipe = f"text 2 {columns} {num_classes} {words.recipe} {versions}"

    def load(split: str) -> Texts:
        *encoded, targets = decoded(
            [*files[split], *words.files],
            recipe,
            lambda: _encode(files[split], columns, num_classes, words),
        )
        return Texts(Encoded(*encoded), targets, max_length, words.vocabulary)

    (metric, split), *others = test_splits.items()
    return assemble(
        name,
        subset(load(train_split), train_size, subset_seed),
        load(split),
        num_classes=num_classes,
        delta=delta,
        dataset_size=dataset_size,
        input_shape=(3, max_length),
        metric=metric,
        also={other: load(part) for other, part in others},
        preprocessing=Sentences(words, max_length, len(text_columns), classes, tuple(text_columns)),
    )


def _encode(
    files: list[Path], columns: Sequence[str], num_classes: int, words: Tokenizer
) -> tuple[Tensor, ...]:
    """Return token ids of the texts, and the labels, which are the last column."""
    texts: list[list[str]] = [[] for _ in columns[:-1]]
    labels = [np.empty(0, np.int64)]
    for path in files:
        for first, (*rows, indices) in parquet.batches(path, columns):
            for column, name, values in zip(texts, columns, rows, strict=False):
                column += parquet.texts(values, name, path, first, SET_COLUMNS)
            labels.append(
                class_indices(indices, num_classes, column=columns[-1], path=path, first=first)
            )
    return (*words.encode(*texts), torch.from_numpy(np.concatenate(labels)))
