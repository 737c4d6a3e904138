"""One's own texts, or pairs of texts: parquet, CSV, TSV or JSONL (`task=texts data=...`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from torch import Tensor

from dpexp.data import own, rows
from dpexp.data.cache import decoded
from dpexp.data.classes import Classes
from dpexp.data.preprocessing import Sentences
from dpexp.data.source import find
from dpexp.data.task import Task, assemble
from dpexp.data.text import Encoded, Texts, Tokenizer
from dpexp.types import ConfigError


def texts(
    *,
    name: str,
    data: str,
    config: str | None,
    text_columns: Sequence[str] | None,
    label_column: str | None,
    delimiter: str | None,
    train_splits: Sequence[str] | None,
    test_splits: Sequence[str] | None,
    test_size: int | None,
    split_seed: int,
    judged_on_training: bool | None = None,
    classes: Any,
    num_classes: int | None,
    max_length: int,
    dataset_size: int,
    delta: float,
    tokenizer: str | None,
    data_root: str,
    model_root: str,
) -> Task:
    """Load texts of one's own as token ids, tokenised once and cached by content.

    Args:
        name: what records call the data.
        data: a file, a folder, or owner/name of the hub.
        config: of several configurations, the one to read; None: there is one.
        text_columns: the column of texts, or the two columns of pairs; None: the only one beside
            the labels.
        label_column: None: the one that metadata give classes, or called label.
        delimiter: between a CSV or TSV file's cells; None: a comma in CSV, a tab in TSV.
        train_splits: of the training set; None: the one that is named so.
        test_splits: of the test set; None: the one that is named so.
        test_size: examples to split off for the test set, or None.
        split_seed: seed of that draw, separate from a run's seed.
        judged_on_training: whether test examples are training ones, which the certificate then
            says; False: they are others, though equal; None: they are refused.
        classes: words, "read", or None where metadata name them.
        num_classes: of labels that are whole numbers from 0, or None.
        max_length: tokens to which texts are truncated, special ones included.
        dataset_size: the declared N.
        delta: of the (eps, delta) guarantee.
        tokenizer: owner/name of the model whose tokenizer encodes the texts.
        data_root: a folder laid out like hub snapshots, searched before the hub.
        model_root: likewise, of models.

    Raises:
        ConfigError: data or tokenizer are missing, corrupt, or not as declared.
    """
    words = Tokenizer.load(tokenizer, model_root, max_length, name)
    found = find(
        data=data,
        config=config,
        train_splits=train_splits,
        test_splits=test_splits,
        test_size=test_size,
        judged_on_training=judged_on_training,
        data_root=data_root,
        takes_images=False,
    )
    columns, path = own.columns_of(found, delimiter), found.train[0]
    label = label_column or own.label_column(found, columns, text_columns or ())
    own.require_column("task.label_column", label, columns, path)
    of_texts = _text_columns(path, columns, text_columns, label)
    chosen, lists = own.classes_of(found, label, delimiter, classes, num_classes)
    versions = f"transformers {transformers.__version__} tokenizers {tokenizers.__version__}"
    recipe = f"own texts 2 {of_texts} {label} {chosen.words} {delimiter} {words.recipe} {versions}"

    def load(files: list[Path]) -> Texts:
        named = [lists[path] for path in files]
        *encoded, targets = decoded(
            [*files, *words.files],
            f"{recipe} {named}",
            lambda: _encode(files, [*of_texts, label], delimiter, chosen, lists, words),
        )
        return Texts(Encoded(*encoded), targets, max_length, words.vocabulary)

    test = load(found.test) if found.test else None
    return assemble(
        name,
        *own.parted(load(found.train), test, test_size, split_seed, judged_on_training),
        num_classes=len(chosen.words),
        delta=delta,
        dataset_size=dataset_size,
        size_word="dataset_size",
        input_shape=(3, max_length),
        preprocessing=Sentences(
            words, max_length, len(of_texts), tuple(chosen.words), tuple(of_texts)
        ),
    )


def _text_columns(
    path: Path, columns: Sequence[str], chosen: Sequence[str] | None, label: str
) -> list[str]:
    """Return the columns of texts: those chosen, or the only one there is."""
    if chosen is None:
        left = [c for c in columns if c != label and own.is_text(path, c)]
        if len(left) != 1:
            raise ConfigError(
                f"Expected one column of texts beside {label} in {path}; got "
                f"{', '.join(left)[:200] or 'none'}. Set task.text_columns=[COLUMN], or two for "
                "pairs of texts."
            )
        return left
    if not 1 <= len(chosen) <= 2 or len({*chosen, label}) != len(chosen) + 1:
        raise ConfigError(
            f"Expected task.text_columns to be one or two columns beside {label}; got "
            f"{list(chosen)}. Set task.text_columns."
        )
    return [own.require_column("task.text_columns", c, columns, path) for c in chosen]


def _encode(
    files: Sequence[Path],
    columns: Sequence[str],
    delimiter: str | None,
    classes: Classes,
    lists: dict[Path, tuple[str, ...]],
    words: Tokenizer,
) -> tuple[Tensor, ...]:
    """Return token ids of the texts, and the labels, which are the last column."""
    held: list[list[str]] = [[] for _ in columns[:-1]]
    labels: list[int] = []
    for path in files:
        for where, (*cells, label) in rows.read(path, columns, delimiter):
            for column, name, cell in zip(held, columns, cells, strict=False):
                column.append(_text(cell, name, where, path))
            labels.append(classes.index(label, f"in column {columns[-1]}, {where}", lists[path]))
    return (*words.encode(*held), torch.from_numpy(np.array(labels, np.int64)))


def _text(cell: Any, column: str, where: str, path: Path) -> str:
    """Return a cell's text; an empty cell of CSV or TSV may be a missing one, and is refused."""
    if not isinstance(cell, str):
        held = "null" if cell is None else f"{type(cell).__name__} {str(cell)[:40]}"
    elif not cell and path.suffix.lower() in rows.DELIMITERS:
        held = "nothing"
    elif not cell.isascii() and any("\ud800" <= letter <= "\udfff" for letter in cell):
        held = "half of a surrogate pair, which is no character"
    else:
        return cell
    raise ConfigError(
        f"Expected a text in column {column}, {where}; it holds {held}. Remove the row, write the "
        "text in, or set task.text_columns."
    )
