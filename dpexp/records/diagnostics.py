"""Entries of a run's files that are computed on private examples without noise.

They are not covered by the guarantee, and of examples that were held out nothing is. All other
entries follow from the releases, public data and the config: two runs with equal releases write
equal files (tests/test_twins.py).
docs/privacy/unprotected.md lists the same entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatch
from typing import Any

DIAGNOSTICS: dict[str, tuple[str, ...]] = {
    "metrics.jsonl": (
        "train_loss",
        "clip_fraction",
        "nonfinite",
        "relative_loss",
        "holdout_*",
        "nonfinite_outputs",
    ),
    "result.json": (
        "wall_s",
        "examples_per_s",
        "peak_memory_mb",
        "micro_batch",
        "data_fingerprint",
        "test_fingerprint",
        "relative_loss",
        "holdout_*",
        "nonfinite_outputs",
        "teacher_accuracy",
        "label_accuracy",
        "asked",
        "answered",
        "attack_*",
        "audit_*",
        "unsaid_votes",
        "files.metrics.jsonl",
        "files.scores.npz",
        "files.analysis.npz",
        "files.privacy.json",
    ),
    "privacy.json": ("data_dependent_epsilon", "holdout.fingerprint"),
    "released.jsonl": ("data", "surroundings.data", "surroundings.micro_batch"),
    "checkpoint.pt": (
        "position.data",
        "position.wall_s",
        "position.examples",
        "position.drawn",
        "position.clipped",
        "position.nonfinite",
        "position.loss",
        "position.last.relative_loss",
        "position.last.holdout_*",
        "position.last.nonfinite_outputs",
        "position.micro_batch",
        "metrics.train_loss",
        "metrics.clip_fraction",
        "metrics.nonfinite",
        "metrics.relative_loss",
        "metrics.holdout_*",
        "metrics.nonfinite_outputs",
    ),
}
"""Entries by file; dots separate nested keys. Where the data are sensitive, only their owner may
read these entries."""


def without_diagnostics(file: str, content: Any, prefix: str = "") -> Any:
    """Return a file's content without the entries computed on private examples without noise.

    Args:
        file: name of the file; the content of a file that `DIAGNOSTICS` lacks stays whole.
        content: one document or line of it.
        prefix: path of the content within the file, ending in a dot.
    """
    if isinstance(content, list):
        return [without_diagnostics(file, item, prefix) for item in content]
    if not isinstance(content, Mapping):
        return content
    patterns = DIAGNOSTICS.get(file, ())
    return {
        key: without_diagnostics(file, value, f"{prefix}{key}.")
        for key, value in content.items()
        if not any(fnmatch(f"{prefix}{key}", pattern) for pattern in patterns)
    }
