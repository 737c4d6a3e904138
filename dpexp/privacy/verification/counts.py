"""Compare N, and the number of test examples, with the data that a config names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpexp.privacy.certificate import ON_TRAINING
from dpexp.privacy.stated import is_ours
from dpexp.records.predictions import HELD_OUT, PREDICTIONS
from dpexp.records.sizes import judged_examples, wrong_size

ACCURACIES = ("test_accuracy", f"{HELD_OUT}accuracy")
"""Prefixes of the names of metrics whose predictions our own tasks keep."""


def compare(
    config: Mapping[str, Any], result: Mapping[str, Any], tests: Mapping[str, int]
) -> tuple[list[str], list[str]]:
    """Return what differs, and what was not compared, in words.

    Args:
        config: of the run.
        result: contents of result.json.
        tests: how many test examples were counted, by metric; {} where none were.
    """
    task = config["task"]
    is_known_task = is_ours(str(task.get("_target_")))
    differs, is_known = wrong_size(config) if is_known_task else ("", False)
    findings = [f"config.yaml task.dataset_size, N: {differs}"] if differs else []
    unchecked = (
        []
        if differs or is_known
        else ["config.yaml task.dataset_size, N: that the data have so many"]
    )
    open_sizes = []
    for name, count in tests.items():
        due = judged_examples(config, name) if is_known_task or name.startswith(HELD_OUT) else None
        if due is None:
            open_sizes.append(name)
        elif count != due:
            findings.append(
                f"{PREDICTIONS}: expected {due} examples of {name}, as config.yaml has; it counts "
                f"{count}"
            )
    if open_sizes:
        unchecked.append(
            f"{PREDICTIONS} {', '.join(open_sizes)}: that all test examples are among them"
        )
    if tests and is_known_task:
        findings += [
            f"{PREDICTIONS}: expected predictions of {name}"
            for name in result
            if name.startswith(ACCURACIES) and not name.endswith("_mean") and name not in tests
        ]
    return findings, unchecked


def keeps_predictions(config: Mapping[str, Any], result: Mapping[str, Any]) -> bool:
    """Return whether a run of this task and metric writes predictions."""
    target = str(config["task"].get("_target_"))
    metric = str(result.get("metric"))
    return metric.startswith(ACCURACIES) and is_ours(target) and target not in ON_TRAINING
