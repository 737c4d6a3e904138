"""What a run's files say of private examples without noise: the one list of it.

All else in them follows from the releases, from public data and from the config: two runs whose
releases are the same write the same (tests/test_twins.py). docs/privacy.md names the same entries.
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
    "privacy.json": ("data_dependent_epsilon",),
    "released.jsonl": ("data", "surroundings.data", "surroundings.micro_batch"),
    "checkpoint.pt": (
        "position.data",
        "position.wall_s",
        "position.clipped",
        "position.nonfinite",
        "position.loss",
        "position.last.relative_loss",
        "position.last.nonfinite_outputs",
        "position.micro_batch",
        "metrics.train_loss",
        "metrics.clip_fraction",
        "metrics.nonfinite",
        "metrics.relative_loss",
        "metrics.nonfinite_outputs",
    ),
}
"""Entries by file; a dot stands before what is inside an entry. The owner of the data may read
them, and nobody else where the data are sensitive."""


def without_diagnostics(file: str, content: Any, at: str = "") -> Any:
    """Leave out of a file's content what is computed from private examples without noise.

    Args:
        file: its name, as in `DIAGNOSTICS`; of any other nothing is left out.
        content: one document or line of it.
        at: where the content stands in the file, with a dot at its end.
    """
    if isinstance(content, list):
        return [without_diagnostics(file, each, at) for each in content]
    if not isinstance(content, Mapping):
        return content
    named = DIAGNOSTICS.get(file, ())
    return {
        key: without_diagnostics(file, value, f"{at}{key}.")
        for key, value in content.items()
        if not any(fnmatch(f"{at}{key}", name) for name in named)
    }
