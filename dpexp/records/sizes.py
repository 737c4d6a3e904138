"""How many training and test examples a run's config fixes: of data that everybody has alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpexp.records.predictions import HELD_OUT

SPLITS: Mapping[tuple[str, str], Mapping[str, int]] = {
    ("ylecun/mnist", "mnist"): {"train": 60_000, "test": 10_000},
    ("uoft-cs/cifar10", "plain_text"): {"train": 50_000, "test": 10_000},
    ("uoft-cs/cifar100", "cifar100"): {"train": 50_000, "test": 10_000},
    ("ufldl-stanford/svhn", "cropped_digits"): {
        "train": 73_257,
        "extra": 531_131,
        "test": 26_032,
    },
    ("nyu-mll/glue", "sst2"): {"train": 67_349, "validation": 872},
    ("nyu-mll/glue", "qqp"): {"train": 363_846, "validation": 40_430},
    ("nyu-mll/glue", "qnli"): {"train": 104_743, "validation": 5_463},
    ("nyu-mll/glue", "mnli"): {
        "train": 392_702,
        "validation_matched": 9_815,
        "validation_mismatched": 9_832,
    },
}
"""Examples of the published sets' splits, by repository and folder."""

HUB = ("dpexp.data.images.hub_images", "dpexp.data.glue.glue")
"""Tasks that read them."""

DIGITS, ALL_DIGITS = "dpexp.data.digits.digits", 1_797
"""The task of scikit-learn's digits, and how many there are."""

LOANS, ALL_LOANS = "dpexp.data.lending_club.lending_club", 9_578
"""The task of Lending Club's loans, and how many the extract has that is read by default."""

DRAWN = (
    "dpexp.data.grammar.generated",
    "dpexp.data.regression.regression",
    "dpexp.data.shapes.shapes",
)
"""Tasks that draw as many examples as their config says."""

HALF = "test-half"
"""PATE's public set that is half of a test set."""


def available(config: Mapping[str, Any]) -> int | None:
    """Return how many training examples a task's data hold; None where the config cannot tell."""
    task = config["task"]
    target = task.get("_target_")
    if target == DIGITS:
        return int(ALL_DIGITS - task["test_size"])
    if target == LOANS and task.get("csv") is None:
        return ALL_LOANS
    return _published(task, task.get("train_splits") or [task.get("train_split")])


def wrong_size(config: Mapping[str, Any]) -> tuple[str, bool]:
    """Compare N, before examples are held out, with the data that the config names.

    Returns:
        What differs, "" for nothing; and whether N is known to be that of the data. A copy of a
        published set may hold fewer, as epsilon is the larger then.
    """
    task = config["task"]
    target, kept, most = task.get("_target_"), task.get("train_size"), available(config)
    size = task["dataset_size"] + (config.get("holdout") or {}).get("size", 0)
    if kept is not None and size != kept:
        return f"expected {kept}, task.train_size; got {size}", False
    if target in DRAWN:
        return "", True
    if most is None:
        return "", False
    if size > most or (target == DIGITS and size != most):
        return f"expected {most}, as many as there are; got {size}", False
    return "", size == (kept or most)


def test_set(config: Mapping[str, Any], metric: str) -> int | None:
    """Return the size of a task's test set, without public examples; None where it is not fixed.

    Args:
        config: of a run.
        metric: whose test set.
    """
    task, public = config.get("task", {}), config.get("public") or {}
    size, splits = task.get("test_size"), task.get("test_splits")
    if not size and splits:
        size = _published(task, [splits.get(metric)] if isinstance(splits, Mapping) else splits)
        if size is not None and not wrong_size(config)[1]:  # a copy with fewer may lack tests, too
            return None
    if not size:
        return None
    if public.get("of_task") and public.get("of_task") == task.get("name"):
        size -= public["size"]
    return int(size)


def judged_examples(config: Mapping[str, Any], metric: str) -> int | None:
    """Return how many examples a metric is of; None where the config does not fix it.

    PATE's student takes half of a test set, and public images may be taken out of it.
    """
    if metric.startswith(HELD_OUT):
        return (config.get("holdout") or {}).get("size")
    size = test_set(config, metric)
    if size is not None and config.get("method", {}).get("public") == HALF:
        size -= size // 2
    return size


def _published(task: Mapping[str, Any], splits: Any) -> int | None:
    """Return how many examples splits of a published set have; None of another set."""
    known = SPLITS.get((str(task.get("repo")), str(task.get("config"))), {})
    if task.get("_target_") not in HUB or not all(split in known for split in splits):
        return None
    return sum(known[split] for split in splits)
