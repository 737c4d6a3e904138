"""Check the types of the result.json entries that tables, plans and look-ups read."""

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
