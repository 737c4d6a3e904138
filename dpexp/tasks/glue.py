"""GLUE (Wang et al. 2018): sentences and pairs of sentences, as parquet files on the hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import datasets
import torch
from torch import Tensor, tensor

from dpexp.snapshots import parquet_files
from dpexp.tasks.cache import decoded
from dpexp.tasks.task import Task, assemble, subset
from dpexp.tasks.text import Encoded, Texts, Tokenizer
from dpexp.types import ConfigError, one_line


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
    """Load a task's texts as token ids; they are tokenised once and cached by content.

    Args:
        name: as in conf/task.
        repo: owner/name on the hub.
        config: a folder of the repository.
        text_columns: the column of sentences, or the two columns of pairs.
        label_column: the column that holds the class indices.
        train_split: the private examples.
        test_splits: a split for each metric; the first metric is the task's.
        num_classes: how many classes there are.
        max_length: tokens at which texts are cut, special ones included.
        train_size: keep that many training examples, drawn from subset_seed; None keeps all.
        subset_seed: which ones; apart from a run's seed, so that all runs see the same ones.
        dataset_size: how many training examples there must be in the end.
        delta: of the (eps, delta) guarantee.
        tokenizer: owner/name of the model whose tokenizer encodes the texts.
        data_root: a folder laid out like hub snapshots, looked at before the hub.
        model_root: likewise, of models.

    Raises:
        ConfigError: data or tokenizer missing, corrupt, or not what was declared.
    """
    words = Tokenizer.load(tokenizer, model_root, max_length, name)
    files = parquet_files(data_root, repo, config, [train_split, *test_splits.values()])

    def load(split: str) -> Texts:
        recipe = f"text 1 {list(text_columns)} {label_column} {words.recipe}"
        *encoded, targets = decoded(
            [*files[split], *words.files],
            recipe,
            lambda: _encode(files[split], text_columns, label_column, words),
        )
        return Texts(Encoded(*encoded), targets, max_length, words.vocabulary)

    (metric, first), *rest = test_splits.items()
    return assemble(
        name,
        subset(load(train_split), train_size, subset_seed),
        load(first),
        num_classes=num_classes,
        delta=delta,
        dataset_size=dataset_size,
        input_shape=(3, max_length),
        metric=metric,
        also={other: load(split) for other, split in rest},
    )


def _encode(
    files: list[Path], text_columns: Sequence[str], label_column: str, words: Tokenizer
) -> tuple[Tensor, ...]:
    wanted = [*text_columns, label_column]
    datasets.disable_progress_bars()  # a mistake is one line, with none of theirs before it
    try:
        rows = datasets.Dataset.from_parquet([str(path) for path in files], keep_in_memory=True)
    except Exception as error:  # a damaged file fails in as many ways as it can be damaged
        reason = one_line(error)
        raise ConfigError(
            f"Expected readable parquet in {', '.join(map(str, files))}; {reason}."
        ) from error
    lacking = [column for column in wanted if column not in rows.column_names]
    if lacking:
        raise ConfigError(
            f"Expected columns {', '.join(wanted)} in {files[0]}; it has "
            f"{', '.join(rows.column_names)}. Set task.text_columns and task.label_column."
        )
    values = {column: rows[column][:] for column in wanted}
    for column, some in values.items():
        kind, named = (int, "class indices") if column == label_column else (str, "texts")
        wrong = next((k for k, value in enumerate(some) if not isinstance(value, kind)), None)
        if wrong is not None:
            raise ConfigError(
                f"Expected {named} in column {column} of {files[0]}; row {wrong} holds "
                f"{some[wrong]!r}. Set task.text_columns and task.label_column."
            )
    labels = tensor(values.pop(label_column), dtype=torch.int64)
    return (*words.encode(*values.values()), labels)
