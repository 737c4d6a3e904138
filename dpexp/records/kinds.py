"""Check the types of the entries of a record that tables, plans and look-ups read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KINDS = {
    **dict.fromkeys(("method", "model", "task", "profile", "metric", "device"), str),
    **dict.fromkeys(("wall_s", "examples_per_s", "peak_memory_mb"), int | float),
    "eps": int | float | None,
    "versions": dict,
    "data_fingerprint": str,
    "test_fingerprint": str,
    "pretrained_sha256": dict,
    "own_code_sha256": dict,
    "precision": str,
}
"""Type of each entry; that of the metric is number or null."""

NUMBER = int | float | None
OF_CERTIFICATES = {
    "epsilon": (dict, NUMBER, 'numbers by accountant, as {"prv": 7.9}'),
    "trainable": (dict, int, "sizes by parameter"),
    "frozen": (dict, int, "sizes by parameter"),
    "releases": (list, dict, "a list of releases, each with its sensitivity"),
    "deviations": (list, object, "a list of sentences"),
}
"""Of each entry of privacy.json that is made of others: its type, theirs, and both in words."""


NUMBERS = ("q", "steps", "dataset_size", "noise_multiplier", "target_epsilon", "delta")
"""Entries of privacy.json that are one number, or null."""


def wrong_kind_of_certificate(privacy: Mapping[str, Any]) -> str:
    """Return which entry of privacy.json has another form than a run writes; "" if none has.

    Args:
        privacy: a record's, which anyone may have written. Missing entries are not reported.
    """
    for name, (kind, of, words) in OF_CERTIFICATES.items():
        if name not in privacy:
            continue
        got = privacy[name]
        parts = got.values() if isinstance(got, dict) else got if isinstance(got, list) else ()
        if not isinstance(got, kind) or not all(isinstance(part, of) for part in parts):
            return f"{name}: expected {words}; got {got!r:.50}"
    for name in NUMBERS:
        if not isinstance(got := privacy.get(name), NUMBER) or isinstance(got, bool):
            return f"{name}: expected a number; got {got!r:.50}"
    return ""


def wrong_kinds(result: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each entry of result.json whose type is not the one a run writes.

    Args:
        result: a record's, which anyone may have written. Missing entries are not reported.
    """
    wanted: dict[str, Any] = {**KINDS}
    if isinstance(metric := result.get("metric"), str):
        wanted[metric] = int | float | None
    findings = [
        f"result.json {name}: {result[name]!r:.50} is of the wrong kind"
        for name, kind in wanted.items()
        if name in result and (isinstance(result[name], bool) or not isinstance(result[name], kind))
    ]
    for entry in ("pretrained_sha256", "own_code_sha256"):
        hashes = result.get(entry, {})
        if isinstance(hashes, dict) and not all(isinstance(each, dict) for each in hashes.values()):
            findings.append(f"result.json {entry}: expected hashes by name and file")
    return findings
