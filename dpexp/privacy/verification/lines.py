"""Compare every line of metrics.jsonl with the config and the certificate.

Recomputed: the steps of evaluations, and the epochs and the epsilon of each line. Losses, clip
fractions and measurements before the last line depend on weights that no record has; only their
types are checked, and they are listed as unchecked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dpexp.privacy.accounting import PRVFailed, prv_epsilon
from dpexp.privacy.certificate import bands_of
from dpexp.privacy.laplace import pure_epsilon
from dpexp.privacy.rdp import rdp_epsilon
from dpexp.privacy.verification.epsilons import OF_A_VERSION, ROUNDING
from dpexp.privacy.verification.statements import TRAINING, VOTING
from dpexp.records import OF_A_LINE, Record

FILE = "metrics.jsonl"

NOT_RECOMPUTED = f"{FILE} train_loss, clip_fraction, nonfinite"

BEFORE_THE_LAST = f"{FILE} before its last line: "

STUDENT = 5
"""Evaluations of PATE's student, evenly spread (`dpexp.pate`)."""

MOST_LINES, MOST_DUE = 1000, 10**6
"""Largest number of lines whose epsilons are recomputed, and of evaluations of a config (ours)."""

MOST_SAID = 8
"""Largest number of findings of one kind that are reported (ours)."""


def verify_lines(record: Record, is_certified: bool) -> tuple[list[str], list[str]]:
    """Compare a record's evaluations; malformed entries may raise anything.

    Args:
        record: with at least one line of metrics.
        is_certified: whether its certificate holds. If not, only types are checked, as steps,
            epochs and epsilon depend on it.

    Returns:
        What differs, and what was not compared, in words.
    """
    lines, findings, unchecked = record.metrics, [], [NOT_RECOMPUTED]
    measured = [key for key in lines[-1] if key not in OF_A_LINE]
    if len(lines) > 1:
        unchecked.append(f"{BEFORE_THE_LAST}{', '.join(measured)}")
    for place, line in enumerate(lines, 1):
        findings += [f"{FILE} line {place}, {words}" for words in _malformed(line, measured)]
    if findings:
        return findings[:MOST_SAID], unchecked
    if not is_certified:
        return [], unchecked
    steps = [line["step"] for line in lines]
    due = _due(record)
    if due is None:
        unchecked.append(f"{FILE} step, epoch: when a loop that is not known evaluates")
        if any(a >= b for a, b in zip(steps, steps[1:], strict=False)):
            findings.append(f"{FILE} step: expected rising steps; got {steps[:MOST_SAID]}")
    elif steps != due and not _is_lost(record, steps, due):
        wrong = sorted({*steps} ^ {*due}) or steps
        findings.append(
            f"{FILE} step: config.yaml evaluates at {len(due)} steps; of another order, too many "
            f"or not there: {', '.join(map(str, wrong[:MOST_SAID]))}"
        )
    else:
        findings += _compare_epochs(record)
    if not findings:
        _compare_epsilons(record, findings, unchecked)
    return findings[:MOST_SAID], unchecked


def _malformed(line: Mapping[str, Any], measured: Sequence[str]) -> list[str]:
    """Return which entries a line lacks or has too many, and which have the wrong type."""
    expected = {*OF_A_LINE, *measured}
    faults = [f"{key}: missing" for key in sorted(expected - {*line})]
    faults += [f"{key}: not an entry of the last line" for key in sorted({*line} - expected)]
    for key, value in line.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if key in ("step", "nonfinite"):
            is_right = is_number and isinstance(value, int) and value >= 0
        elif key == "clip_fraction":
            is_right = value is None or (is_number and 0 <= value <= 1)
        else:
            is_right = is_number or (value is None and key != "epoch")
        faults += [] if is_right else [f"{key}: {value!r:.50} is of the wrong kind"]
    return faults


def _due(record: Record) -> list[int] | None:
    """Return the steps after which a run evaluates; None for a loop that is not ours."""
    config, loop = record.config, record.config.get("loop", TRAINING)
    if loop == VOTING:
        steps = config["method"]["student_steps"] if record.privacy["answers"] else 0
        return sorted({math.ceil(steps * k / STUDENT) for k in range(1, STUDENT + 1)})
    if loop != TRAINING:
        return None
    privacy = record.privacy
    per_epoch = privacy["dataset_size"] / privacy["batch_size"]
    every, last = max(1, round(config["eval_every"] * per_epoch)), privacy["steps"]
    if last // every > MOST_DUE:
        raise ValueError(f"{last // every:,} evaluations are more than can be looked at")
    return sorted({*range(every, last, every), last})


def _is_lost(record: Record, steps: list[int], due: list[int]) -> bool:
    """Return whether evaluations are missing because a kill lost their steps."""
    lost = record.privacy.get("lost_steps", 0)
    return bool(lost) and steps == [step for step in due if step in {*steps}]


def _compare_epochs(record: Record) -> list[str]:
    """Compare each line's epochs with its step."""
    config, privacy = record.config, record.privacy
    if config.get("loop", TRAINING) == VOTING:
        of_step = config["method"]["student_batch"] / max(1, privacy["answers"])
    else:
        of_step = privacy["q"]
    return [
        f"{FILE} line {place}, epoch: expected {line['step'] * of_step:.6g}; got {line['epoch']}"
        for place, line in enumerate(record.metrics, 1)
        if not math.isclose(line["epoch"], line["step"] * of_step, rel_tol=ROUNDING)
    ]


def _compare_epsilons(record: Record, findings: list[str], unchecked: list[str]) -> None:
    """Recompute each line's epsilon by the accountant that its certificate names."""
    stated = [line["epsilon"] for line in record.metrics]
    if len(stated) > MOST_LINES:
        unchecked.append(f"{BEFORE_THE_LAST}epsilon, of {len(stated):,} lines")
        return
    for place, (line, said) in enumerate(zip(record.metrics, stated, strict=True), 1):
        try:
            due = epsilon_after(record.privacy, line["step"], stated[-1])
        except PRVFailed:
            unchecked.append(f"{BEFORE_THE_LAST}epsilon, where its accountant fails")
            return
        if due is None or said is None:
            is_same = due is said
        else:
            # Lines of former code may state less than 0 where delta alone suffices.
            is_same = math.isclose(max(said, 0.0), due, rel_tol=OF_A_VERSION)
        if not is_same:
            findings.append(f"{FILE} line {place}, epsilon: expected {due}; got {said}")


def epsilon_after(privacy: Mapping[str, Any], step: int, last: float | None) -> float | None:
    """Return the epsilon spent after some steps; PATE spends all before its student's first.

    Args:
        privacy: the certificate.
        step: how many steps.
        last: a student's.

    Raises:
        PRVFailed: if the certificate's accountant fails.
    """
    by, sigma = privacy["calibrated_by"], privacy["effective_noise_multiplier"]
    if privacy["target_epsilon"] is None:
        return None
    if "answers" in privacy:
        return last
    if by == "pure":
        return pure_epsilon(privacy["q"], sigma, [1.0] * step)
    q, steps = privacy["q"], privacy["steps"]
    if "correlation" in privacy:
        bands = bands_of(privacy["correlation"])
        q, step, steps = min(1.0, bands * q), math.ceil(step / bands), math.ceil(steps / bands)
    if by == "rdp":
        return rdp_epsilon(q, sigma, step, privacy["delta"])
    return prv_epsilon(q, sigma, step, privacy["delta"], steps)
