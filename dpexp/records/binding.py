"""Check that a record's files belong to one run and agree on its result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpexp.records.keeping import KEPT_FILES, WEIGHTS, changed
from dpexp.records.kinds import wrong_kinds
from dpexp.records.predictions import HELD_OUT, PREDICTIONS, unpacked
from dpexp.records.record import METRICS, NONFINITE, Record, contents, run_id
from dpexp.records.run import SCORES
from dpexp.records.safely import Damaged
from dpexp.records.series import ANALYSIS
from dpexp.types import ConfigError

OLDER = (
    "an older record, unless someone removed all that later code writes: its files do not name "
    "their run, nor result.json their contents"
)

OF_LATER: Mapping[str, frozenset[str]] = {
    "config": frozenset(
        "augmentation averaging clipping correlation denoise holdout tracking weights".split()
    ),
    "result": frozenset(
        "run files input_shape longest num_classes test_fingerprint holdout_fingerprint precision "
        "pretrained_sha256 model_as_run own_code_sha256".split()
    )
    | {NONFINITE, KEPT_FILES},
    "privacy": frozenset(
        "run weights_sha256 holdout correlation why_frozen last_clip_norm".split()
    ),
    "line": frozenset({NONFINITE}),
}
"""Entries that came when records named their runs, or after; no older record has any of them."""

NAMED = ("privacy.json", METRICS)
"""Files whose hashes result.json must hold."""

ARRAYS = (PREDICTIONS, ANALYSIS, SCORES)
"""Optional files; result.json must hold the hash of each one that exists."""

OF_A_LINE = ("step", "epoch", "epsilon", "train_loss", "clip_fraction", "nonfinite")
"""Entries of a line of metrics.jsonl that are no metric."""

CLOSE = 1e-9
"""Relative tolerance; both sides were written from one number."""

MEAN = "_mean"
"""Suffix of a metric's mean over test sets."""


@dataclass(frozen=True)
class Binding:
    """The result of comparing a record's files.

    Attributes:
        findings: differences, one sentence each.
        unchecked: descriptions of what could not be compared.
        tests: number of test examples counted, by metric; empty without predictions.
    """

    findings: tuple[str, ...]
    unchecked: tuple[str, ...]
    tests: Mapping[str, int]


def bind(record: Record) -> Binding:
    """Compare a record's files with each other; malformed content may raise any exception."""
    findings: list[str] = []
    unchecked: list[str] = []
    if is_older(record.config, record.result, record.privacy, record.metrics):
        unchecked.append(OLDER)
    else:
        _compare_names(record, findings)
        _compare_contents(record, findings)
    _compare_kinds(record, findings)
    _compare_last(record, findings)
    _compare_weights(record, findings)
    tests = _recount(record, findings, unchecked)
    equal = [key for key in record.metrics[-1] if key not in {*OF_A_LINE, *tests}]
    if equal := [key for key in equal if key != record.result["metric"] and MEAN not in key]:
        unchecked.append(f"{', '.join(equal)}: equal in result.json and {METRICS}, not recounted")
    files = [name for name in ARRAYS if name != PREDICTIONS and (record.directory / name).exists()]
    unchecked += [f"{name}: its contents" for name in files]
    return Binding(tuple(findings), tuple(unchecked), tests)


def is_older(
    config: Mapping[str, Any],
    result: Mapping[str, Any],
    privacy: Mapping[str, Any],
    metrics: Sequence[Mapping[str, Any]] = (),
) -> bool:
    """Return whether a record is of code whose files did not name their run.

    Args:
        config: contents of config.yaml.
        result: of result.json.
        privacy: of privacy.json.
        metrics: lines of metrics.jsonl.
    """
    files = [("config", config), ("result", result), ("privacy", privacy)]
    files += [("line", line) for line in metrics]
    return not any(OF_LATER[file] & {*content} for file, content in files)


def _compare_names(record: Record, findings: list[str]) -> None:
    name = run_id(record.config)
    for file, content in (("result.json", record.result), ("privacy.json", record.privacy)):
        if content.get("run") != name:
            findings.append(
                f"{file} belongs to run {content.get('run')}, config.yaml to run {name}"
            )


def _compare_contents(record: Record, findings: list[str]) -> None:
    """Compare every file with its hash in result.json."""
    files = record.result.get("files")
    if not isinstance(files, dict):
        findings.append("result.json files: expected the hashes of the record's other files")
        return
    present = {name for name in ARRAYS if (record.directory / name).exists()}
    for name in sorted({*NAMED, *present} - {*files}):
        findings.append(f"result.json files: expected {name} among them")
    for name, expected in files.items():
        if name not in (*NAMED, *ARRAYS):
            findings.append(f"result.json files: {name} is no file of a record")
            continue
        try:
            if contents(record.directory, name) != expected:
                findings.append(f"{name} does not match its hash in result.json")
        except Damaged as error:
            findings.append(f"{name} {error}")


def _compare_weights(record: Record, findings: list[str]) -> None:
    """Compare the weights with their hash, where they were kept."""
    if not (record.directory / WEIGHTS).exists():
        return
    from dpexp.records import weights  # with torch, which most records need not wait for

    try:
        found = weights.digest(weights.read(record.directory / WEIGHTS))
    except ConfigError as error:
        findings.append(str(error))
        return
    if found != record.result.get("weights_sha256"):
        findings.append(f"{WEIGHTS} does not match weights_sha256 in result.json")
    findings += changed(record.directory, record.result)


def _compare_kinds(record: Record, findings: list[str]) -> None:
    findings += wrong_kinds(record.result)
    words = record.privacy["deviations"]
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        findings.append("privacy.json deviations: expected a list of words")


def _compare_last(record: Record, findings: list[str]) -> None:
    """Compare result.json with the last evaluation."""
    result, last = record.result, record.metrics[-1]
    metric = result["metric"]
    if metric not in result or metric not in last:
        findings.append(f"result.json metric: {metric} is not evaluated in {METRICS}")
    if others := [key for key in last if key not in {*result, *OF_A_LINE}]:
        findings.append(f"{METRICS} ends with {others[0]}, which result.json lacks")
    shared = [key for key in last if key in result and key not in OF_A_LINE]
    pairs = {key: (result[key], last[key]) for key in shared}
    pairs["steps"] = result.get("steps"), last.get("step")
    if NONFINITE in {*last, *result}:
        pairs[NONFINITE] = result.get(NONFINITE), last.get(NONFINITE)
    if "asked" in result:  # a PATE student: its epochs count the answered queries
        pairs["epochs"] = result.get("epochs"), last.get("epoch")
    for name, (reported, logged) in pairs.items():
        if not _is_same(reported, logged):
            findings.append(f"result.json {name}: {METRICS} ends with {logged}; got {reported}")
    stated = record.privacy["epsilon"].get(record.privacy.get("calibrated_by"))
    spent = last.get("epsilon")
    if not (spent is None if stated is None else _is_same(spent, stated)):
        findings.append(f"{METRICS} ends with epsilon {spent}; privacy.json states {stated}")


def _is_same(a: Any, b: Any) -> bool:
    numbers = [v for v in (a, b) if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < 2:
        return a is None and b is None
    return math.isclose(*numbers, rel_tol=CLOSE)


def _recount(record: Record, findings: list[str], unchecked: list[str]) -> dict[str, int]:
    """Recount correct predictions; return the number of test examples by metric."""
    result, metric = record.result, record.result["metric"]
    if not (record.directory / PREDICTIONS).exists():
        unchecked.append(f"{metric} is compared with {METRICS}, not recounted: no {PREDICTIONS}")
        return {}
    try:
        run, right = unpacked(record.directory)
    except Damaged as error:
        findings.append(f"{PREDICTIONS} {error}")
        return {}
    if run != run_id(record.config):
        findings.append(f"{PREDICTIONS} belongs to run {run}")
    if metric not in right:
        findings.append(f"{PREDICTIONS}: expected predictions of {metric}")
    shares = {name: 100.0 * float(np.mean(correct)) for name, correct in right.items()}
    tests = [share for name, share in shares.items() if not name.startswith(HELD_OUT)]
    if len(tests) > 1 or f"{metric}{MEAN}" in result:
        shares[f"{metric}{MEAN}"] = sum(tests) / max(1, len(tests))
    for name in right:
        if name not in record.metrics[-1]:
            findings.append(f"{METRICS} ends without {name}, which {PREDICTIONS} counts")
    unchecked.append(f"{PREDICTIONS}: which examples are correct, only how many")
    for name, share in shares.items():
        if not _is_same(result.get(name), share):
            findings.append(f"result.json {name}: {share:.6g} counted; got {result.get(name)}")
    return {name: len(correct) for name, correct in right.items()}
