"""Labelled public texts, for tasks with the same classes."""

from __future__ import annotations

import torch

from dpexp.data.grammar import GRAMMARS, draw, phrases
from dpexp.data.task import Task, with_public
from dpexp.data.text import Encoded, Texts, Tokenizer, WordLevel
from dpexp.types import ConfigError

FILM_REVIEWS = ("sst2",)
"""Tasks of single texts, negative (0) or positive (1), with a pretrained model's tokenizer."""

SETS = {"film_reviews": FILM_REVIEWS, "texts": tuple(GRAMMARS)}
"""Public sets of conf/public, and the tasks that each is for."""


def film_reviews(
    task: Task, *, name: str, size: int, data_seed: int, tokenizer: str | None, model_root: str
) -> Task:
    """Generate phrases of film reviews with our grammar (`dpexp.data.grammar`).

    Args:
        task: sst2.
        name: as in conf/public.
        size: number of phrases, >= 1.
        data_seed: seed of the phrases, the same for every run.
        tokenizer: owner/name on the hub, the model's.
        model_root: a folder laid out like hub snapshots, searched before the hub.

    Raises:
        ConfigError: for another task, size below 1, or a model without a tokenizer.
    """
    longest = _longest(task, name, size, FILM_REVIEWS)
    words = Tokenizer.load(tokenizer, model_root, longest, task.name)
    texts, labels = phrases(size, data_seed)
    return _with_texts(task, words.encode(texts), labels, longest)


def generated(
    task: Task, *, name: str, size: int, data_seed: int, tokenizer: str | None, model_root: str
) -> Task:
    """Generate further texts of the kind of a generated task.

    Some short texts may also be private: both come from one small grammar.

    Args:
        task: sentiment or entailment.
        name: as in conf/public.
        size: number of texts, >= 1.
        data_seed: seed of the texts, the same for every run.
        tokenizer: owner/name of the model whose tokenizer encodes the task; None: one id per word.
        model_root: a folder laid out like hub snapshots, searched before the hub.

    Raises:
        ConfigError: for another task, or size below 1.
    """
    longest = _longest(task, name, size, tuple(GRAMMARS))
    grammar = GRAMMARS[task.name]
    words: WordLevel | Tokenizer = WordLevel(grammar.words)
    if tokenizer is not None:
        words = Tokenizer.load(tokenizer, model_root, longest, task.name)
    ((texts, labels),) = draw(grammar, f"public {task.name} {data_seed}", size)
    return _with_texts(task, words.encode(*zip(*texts, strict=True)), [*labels], longest)


def _longest(task: Task, name: str, size: int, tasks: tuple[str, ...]) -> int:
    """Return the most tokens a text may have, after checking task and size."""
    if task.name not in tasks or not isinstance(task.train, Texts):
        raise ConfigError(
            f"Expected task to be one of {', '.join(tasks)} for public={name}; got {task.name}. "
            "Leave public out, or set another task."
        )
    if size < 1:
        raise ConfigError(f"Expected public.size >= 1; got {size}. Set public.size.")
    return task.train.longest


def _with_texts(task: Task, encoded: Encoded, labels: list[int], longest: int) -> Task:
    return with_public(task, Texts(encoded, torch.tensor(labels), longest))
