"""The deviations and entries that a config's certificate must have, and what is assumed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dpexp.privacy import certificate as words
from dpexp.privacy.stated import class_of, is_ours, statement_of

TRAINING, VOTING = "dpexp.training.train", "dpexp.pate"
"""The loops; the first is the default."""

REMARKS = (
    "accounted_apart",
    "data_dependent_epsilon",
    "column_norms",
    "paper",
    "last_clip_norm",
    "why_frozen",
)
"""Entries of a certificate that no claim depends on."""

WEIGHTS = "weights_sha256"
"""Entry of result.json, and of certificates but for older ones: the hash of the final weights."""

OF_BOTH = {
    "holdout",
    *("neighbouring", "sampling", "q", "dataset_size", "steps", "noise_draws", "noise_multiplier"),
    *("effective_noise_multiplier", "releases", "epsilon", "target_epsilon", "delta", "public"),
    *("calibrated_by", "replayable", "trainable", "frozen", "deviations", "run", WEIGHTS),
}
OF_STEPS = {"batch_size", "planned_steps", "lost_steps", "correlation"}
OF_VOTES = {"mechanism", "answers", "threshold"}
"""Entries of a certificate."""


def due_words(
    config: Mapping[str, Any], privacy: Mapping[str, Any], is_vote: bool
) -> dict[str, bool]:
    """Return the possible deviations of a certificate, and whether this one must have each."""
    wanted = config["privacy"]
    is_judged, task = words.is_judged_on_training(config), str(config["task"].get("_target_"))
    is_private = bool(wanted["noise"] and (wanted["clip"] or is_vote))
    return {
        words.NO_NOISE: not wanted["noise"],
        words.NO_CLIPPING: not wanted["clip"] and not is_vote,
        words.SHUFFLED: wanted["sampling"] == "shuffle" and not is_vote,
        words.SECRET: wanted["noise"] == "secret",
        words.BY_RDP: privacy["calibrated_by"] == "rdp" and not is_vote,
        words.LOST: privacy.get("lost_steps", 0) > 0,
        **words.learnt_from_data(config),
        words.ANALYSED: bool(config.get("analysis")),
        words.TEST_HALF: is_vote and config["method"]["public"] == "test-half",
        **({words.JUDGED_ON_TRAINING: is_judged} if is_judged or is_ours(task) else {}),
        words.UNRELEASED: is_vote,
        words.LARGE_DELTA: is_private and privacy["delta"] >= 1 / privacy["dataset_size"],
    }


def trusted(config: Mapping[str, Any]) -> list[str]:
    """Return the parts of a run that are not dpexp's own, and what is assumed of them."""
    assumptions = []
    target, loop = config["method"]["_target_"], config.get("loop", TRAINING)
    if not statement_of(config).is_known:
        what = "is not known here" if class_of(target) is None else "states no releases"
        assumptions.append(
            f"method {target} {what}: that it releases one vector a step, and that one "
            "example moves it by no more than the clip norm"
        )
    if loop not in (TRAINING, VOTING):
        assumptions.append(f"loop {loop} is not known here: all that it does with the examples")
    for place, other in _targets(config):
        if place != "method" and not is_ours(other):
            weights = ", and that the weights it began with tell nothing of the examples"
            began = weights if place == "model" and config["model"].get("initial_weights") else ""
            assumptions.append(
                f"{place} {other} is not of dpexp: that it keeps to what its kind may do{began}"
            )
    return assumptions


def foreign_code(config: Mapping[str, Any]) -> list[str]:
    """Return what is assumed of a method that states its releases and is not of dpexp.

    Files cannot show that code keeps to a statement of its own; `scripts.check_method` can refute
    it. It stands apart from `trusted`, beside which a certificate's words are not compared.
    """
    target = config["method"]["_target_"]
    if is_ours(target) or not statement_of(config).is_known:
        return []
    return [
        f"method {target} is not of dpexp: that its code keeps to its own statement, which "
        "`python -m scripts.check_method` tries to refute"
    ]


def _targets(node: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Yield the place and the dotted path of every `_target_` of a config."""
    if isinstance(node, Mapping):
        if "_target_" in node:
            yield place, str(node["_target_"])
        for key, inner in node.items():
            yield from _targets(inner, f"{place}.{key}" if place else str(key))
    elif isinstance(node, list):
        for inner in node:
            yield from _targets(inner, place)
