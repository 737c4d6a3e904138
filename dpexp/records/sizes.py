"""How many examples the data of known tasks have, by a run's config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpexp.records.predictions import HELD_OUT

ACCURACY, OF_HELD_OUT = "test_accuracy", f"{HELD_OUT}accuracy"
"""The prefixes of the names of accuracies in percent."""

TEST_SIZES: Mapping[str, Mapping[str, int]] = {
    "mnist": {ACCURACY: 10_000},
    "cifar10": {ACCURACY: 10_000},
    "cifar100": {ACCURACY: 10_000},
    "svhn": {ACCURACY: 26_032},
    "svhn_extended": {ACCURACY: 26_032},
    "sst2": {ACCURACY: 872},
    "qqp": {ACCURACY: 40_430},
    "qnli": {ACCURACY: 5_463},
    "mnli": {ACCURACY: 9_815, f"{ACCURACY}_mm": 9_832},
}
"""Sizes of the official test sets (for GLUE, validation sets) by task and metric. Records of runs
without predictions do not state them."""

IMAGES, TEXTS = "dpexp.data.images.hub_images", "dpexp.data.glue.glue"
TRAINING_SIZES: Mapping[tuple[str, str], int] = {
    (IMAGES, "mnist"): 60_000,
    (IMAGES, "cifar10"): 50_000,
    (IMAGES, "cifar100"): 50_000,
    (IMAGES, "svhn"): 73_257,
    (IMAGES, "svhn_extended"): 604_388,
    (TEXTS, "sst2"): 67_349,
    (TEXTS, "qqp"): 363_846,
    (TEXTS, "qnli"): 104_743,
    (TEXTS, "mnli"): 392_702,
}
"""Sizes of the official training sets, by what reads them and the task."""

SCANNED, DIGITS = "dpexp.data.digits.digits", 1_797
"""scikit-learn's digits, which a run splits into training and test examples."""

GENERATED = (
    "dpexp.data.grammar.generated",
    "dpexp.data.regression.regression",
    "dpexp.data.shapes.shapes",
)
"""Tasks that make as many training examples as they are asked for."""


def most_training(config: Mapping[str, Any]) -> int | None:
    """Return how many training examples a run's data can have; None if that is not known.

    Of data that are made for the run it is what the config asks for.
    """
    task = config["task"]
    target, held = task.get("_target_"), config.get("holdout", {}).get("size") or 0
    if target in GENERATED:
        return int(task["dataset_size"])
    if target == SCANNED:
        return DIGITS - int(task.get("test_size") or 0) - held
    known = TRAINING_SIZES.get((str(target), str(task.get("name"))))
    return None if known is None else known - held


def tested(config: Mapping[str, Any], metric: str) -> int:
    """Return the number of a run's test examples; 0 if its config does not determine it.

    PATE's student may use half of a test set, and public images may be removed from it.
    """
    if metric.startswith(OF_HELD_OUT):
        return int(config.get("holdout", {}).get("size") or 0)
    task, public = config.get("task", {}), config.get("public", {})
    name = task.get("name")
    # A size that a config declares is that of the first test set.
    declared = task.get("test_size") if metric == ACCURACY else None
    size = declared or TEST_SIZES.get(str(name), {}).get(metric, 0)
    if not size:
        return 0
    if config.get("method", {}).get("public") == "test-half":
        size -= size // 2
    if public.get("of_task") and public.get("of_task") == name:
        size -= public["size"]
    return int(size)
