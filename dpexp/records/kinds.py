"""Whether what tables, plans and look-ups read of a result is of the kind that a run writes."""

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
}
"""Of entries of result.json that are read elsewhere; its metric is a number or null."""


def wrong_kinds(result: Mapping[str, Any]) -> list[str]:
    """Say which entries of result.json are of another kind than a run writes.

    Args:
        result: of a record, which anyone may have written. An entry that it lacks is none of these.
    """
    wanted: dict[str, Any] = {**KINDS}
    if isinstance(metric := result.get("metric"), str):
        wanted[metric] = int | float | None
    said = [
        f"result.json {name}: {result[name]!r:.50} is of the wrong kind"
        for name, kind in wanted.items()
        if name in result and (isinstance(result[name], bool) or not isinstance(result[name], kind))
    ]
    hashes = result.get("pretrained_sha256", {})
    if isinstance(hashes, dict) and not all(isinstance(each, dict) for each in hashes.values()):
        said.append("result.json pretrained_sha256: expected hashes by model and file")
    return said
