"""Refuse a metric that no run of a cell can have, before hours are spent on the runs."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dpexp.reporting.collect.cells import Job
from dpexp.reporting.schema.artifact import CURVES, MAPS, Artifact
from dpexp.types import ConfigError

OF_RUNS = ("wall_s", "examples_per_s", "peak_memory_mb", "micro_batch", "ranks", "epochs", "steps",
           "eps", "delta", "seed", "nonfinite_outputs", "num_classes", "longest")  # fmt: skip
"""Numbers of result.json whatever the run is of (`dpexp.records.provenance.describe`)."""

OF_LINES = ("step", "epoch", "epsilon", "train_loss", "clip_fraction", "nonfinite",
            "nonfinite_outputs")  # fmt: skip
"""Numbers of a line of metrics.jsonl."""

OF_TESTS = ("test_accuracy", "test_accuracy_mm", "test_accuracy_mean", "test_absolute_error",
            "test_mse", "relative_loss")  # fmt: skip
"""Metrics of dpexp's own tasks; `holdout_` in place of `test_` for those of held-out examples."""

OF_PARTS: Mapping[str, tuple[str, ...]] = {
    "attack": ("attack_success", "attack_success_se", "attack_threshold", "attack_found_on",
               "attack_scored_on"),
    "audit": ("audit_canaries", "audit_guesses", "audit_right", "audit_confidence",
              "audit_epsilon_lower", "audit_epsilon_lower_curve", "audit_epsilon_accounted"),
    "loop": ("asked", "answered", "teacher_accuracy", "label_accuracy", "unsaid_votes"),
}  # fmt: skip
"""Numbers of result.json that a run has with a choice of these groups."""

REMEDY = "Set the analysis, attack, audit or holdout that it is of, or another metric."


def require_named(artifact: Artifact, jobs: Iterable[Job]) -> None:
    """Check that every cell and claim names a number that its runs can have.

    Runs of the user's own task, attack, audit, analysis or loop may have others, and are let pass.

    Raises:
        ConfigError: naming the cell or the claim, and the nearest name that there is.
    """
    configs = {job.cell: job for job in jobs if job.config is not None}
    for job in configs.values():
        _require(job.metric, job.config or {}, artifact.kind, f"'{job.name}'")
        if artifact.figure is not None and artifact.kind == CURVES:
            _require([artifact.figure.x], job.config or {}, CURVES, f"x of '{job.name}'")
    for claim in artifact.claims:
        if not claim.metric:
            continue
        for pair in claim.pairs(column.key for column in artifact.measured_columns):
            for side in pair:
                if not isinstance(side, float) and side in configs:
                    config = configs[side].config or {}
                    _require([claim.metric], config, "", f"claim '{claim.says}'")


def _require(names: Sequence[str], config: Mapping[str, Any], kind: str, where: str) -> None:
    if _has_own(config):
        return
    exact, prefixes = _known(config, kind)
    every = set(exact).union(*OF_PARTS.values(), OF_TESTS, map(_held_out, OF_TESTS))
    wrong = [n for n in names if not (n in exact or n.startswith(prefixes))]
    misspelt = [n for n in wrong if n not in every]
    # Some of several may be missing: a paper's task may have two test sets, and its stand-in one.
    if not misspelt and len(wrong) < len(names):
        return
    name = (misspelt or wrong)[0]
    near = difflib.get_close_matches(name, sorted(exact), n=1, cutoff=0.6)
    what = {CURVES: "a series", MAPS: "an array"}.get(kind, "a number")
    hint = f"Did you mean {near[0]}?" if near else REMEDY
    raise ConfigError(f"Expected metric of {where} to be {what} of its runs; got {name}. {hint}")


def _known(config: Mapping[str, Any], kind: str) -> tuple[set[str], tuple[str, ...]]:
    """Return the names that a run can have, and the beginnings of names of its analyses."""
    analyses = tuple(config.get("analysis") or ())
    tests = {*OF_TESTS, *(map(_held_out, OF_TESTS) if config.get("holdout") else ())}
    if kind == MAPS:
        return set(), tuple(f"{name}/" for name in analyses)
    if kind == CURVES:
        return {*OF_LINES, *tests}, tuple(f"{name}/" for name in analyses)
    parts = [name for group, names in OF_PARTS.items() if config.get(group) for name in names]
    return {*OF_RUNS, *tests, *parts}, tuple(f"{name}_" for name in analyses)


def _held_out(name: str) -> str:
    return f"holdout_{name.removeprefix('test_')}"


def _has_own(config: Mapping[str, Any]) -> bool:
    """Return whether code of the user's own may name numbers of this run."""
    parts = [config.get(group) for group in ("task", "attack", "audit")]
    parts += (config.get("analysis") or {}).values()
    targets = [str(part.get("_target_", "")) for part in parts if isinstance(part, Mapping)]
    targets += [str(config["loop"])] if config.get("loop") else []
    return not all(target.startswith("dpexp.") for target in targets)
