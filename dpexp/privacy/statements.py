"""What the papers' methods release at a step, stated a second time and not asked of the methods.

A method is known by its whole path; another one of the same name is not it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dpexp.privacy import certificate as words

PACKAGE = Path(__file__).resolve().parents[1]

TRAINING, VOTING = "dpexp.training.train", "dpexp.pate"
"""The loops, of which a config without one takes the first."""

PATE = "dpexp.pate.PATE"

REMARKS = ("accounted_apart", "data_dependent_epsilon", "column_norms", "paper")
"""Of a certificate; no claim rests on them."""

OF_BOTH = {
    *("neighbouring", "sampling", "q", "dataset_size", "steps", "noise_draws", "noise_multiplier"),
    *("effective_noise_multiplier", "releases", "epsilon", "target_epsilon", "delta", "public"),
    *("calibrated_by", "replayable", "trainable", "frozen", "deviations", "run"),
}
OF_STEPS = {"batch_size", "planned_steps", "lost_steps"}
OF_VOTES = {"mechanism", "answers", "threshold"}
"""Entries of a certificate."""

REGRESSION = "dpexp.data.regression.regression"
"""A task that is judged on its training set."""

OPTIMIZERS = re.compile(r"torch\.optim\.\w+")


@dataclass(frozen=True)
class Stated:
    """One release of a step.

    Attributes:
        name: None: any will do.
        clip_norm: bound on one example's contribution.
        sensitivity: in clip norms; in l1 under Laplace noise.
    """

    name: str | None
    clip_norm: float
    sensitivity: float = 1.0


@dataclass(frozen=True)
class Statement:
    """What is known of a method.

    Attributes:
        releases: maps a config and the number of trained parameters to what leaves at a step.
        is_laplace: whether its noise is Laplace's, and coordinates are clipped.
        is_whole: whether it releases a number per trained parameter.
        public: maps its settings to how many public examples it needs.
    """

    releases: Callable[[Mapping[str, Any], int], list[Stated]]
    is_laplace: bool = False
    is_whole: bool = False
    public: Callable[[Mapping[str, Any]], int] = lambda _: 0


def _one(name: str | None) -> Callable[[Mapping[str, Any], int], list[Stated]]:
    return lambda config, _: [Stated(name, float(config["privacy"]["clip_norm"]))]


def _gep(config: Mapping[str, Any], _: int) -> list[Stated]:
    """Give both vectors, which are clipped apart, on one subsample (gep, Algorithm 1)."""
    expected = [Stated("embedding", float(config["privacy"]["clip_norm"]))]
    if config["method"]["residual"]:
        expected.append(Stated("residual", float(config["method"]["residual_clip"])))
    return expected


def _compressive(config: Mapping[str, Any], size: int) -> list[Stated]:
    """Give how much the sum over a batch may change in l1 (`dpexp.methods.compressive`)."""
    method, clip_norm = config["method"], float(config["privacy"]["clip_norm"])
    if method["bound"] == "example":
        change = size * method["xi"]
    else:
        kappa = size if method["kappa"] is None else method["kappa"]
        change = 2 * kappa * method["batch_size"] * method["xi"]
    return [Stated("measurements", clip_norm, change / clip_norm)]


def _examples(method: Mapping[str, Any]) -> int:
    return method["public_examples"]


UNKNOWN = Statement(_one(None))
"""What is taken on trust of any other method: one clipped vector, under Gaussian noise."""

KNOWN = {
    "dpexp.methods.dpsgd.DPSGD": Statement(_one("gradient"), is_whole=True),
    "dpexp.methods.powersgd.PowerSGD": Statement(_one("gradient"), is_whole=True),
    "dpexp.methods.sparse_dpsgd.SparseDPSGD": Statement(_one("gradient")),
    "dpexp.methods.rgp.RGP": Statement(_one("carriers")),
    "dpexp.methods.rgp_public.PublicRGP": Statement(_one("carriers"), public=_examples),
    "dpexp.methods.rgp_core.CoreRGP": Statement(_one("core"), public=_examples),
    "dpexp.methods.lsg.LSG": Statement(_one("carriers")),
    "dpexp.methods.gep.GEP": Statement(
        _gep, public=lambda method: method["m"] if method["basis"] == "anchor" else 0
    ),
    "dpexp.methods.compressive.Compressive": Statement(_compressive, is_laplace=True),
}

PUBLIC_OF_ANALYSES = {
    "dpexp.analysis.gradient_rank.GradientRank": "m",
    "dpexp.analysis.projection.Projection": "m",
}
"""Analyses that take public examples, and the setting that says how many."""


def statement_of(config: Mapping[str, Any]) -> Statement:
    """Give what is known of a config's method, or taken on trust of it."""
    return KNOWN.get(config["method"]["_target_"], UNKNOWN)


def public_examples(config: Mapping[str, Any]) -> int:
    """Count the public examples that a run of this config needs; 0 where it loads none."""
    needs = [statement_of(config).public(config["method"])]
    for node in (config.get("analysis") or {}).values():
        setting = PUBLIC_OF_ANALYSES.get(node["_target_"])
        needs.append(node[setting] if setting else 0)
    if config.get("warm_start"):
        needs.append(config["warm_start"]["examples"])
    return max(needs)


def test_examples(config: Mapping[str, Any]) -> int | None:
    """Count a task's test examples before any are taken for public ones; None: no config says."""
    return config["task"].get("test_size")


def due_words(
    config: Mapping[str, Any], privacy: Mapping[str, Any], is_vote: bool
) -> dict[str, bool]:
    """Give the words that certificates may say of themselves, and whether this one has to."""
    wanted = config["privacy"]
    is_private = bool(wanted["noise"] and (wanted["clip"] or is_vote))
    return {
        words.NO_NOISE: not wanted["noise"],
        words.NO_CLIPPING: not wanted["clip"] and not is_vote,
        words.SHUFFLED: wanted["sampling"] == "shuffle" and not is_vote,
        words.SECRET: wanted["noise"] == "secret",
        words.BY_RDP: privacy["calibrated_by"] == "rdp" and not is_vote,
        words.LOST: privacy.get("lost_steps", 0) > 0,
        words.ANALYSED: bool(config.get("analysis")),
        words.TEST_HALF: is_vote and config["method"]["public"] == "test-half",
        words.JUDGED_ON_TRAINING: config["task"].get("_target_") == REGRESSION,
        words.UNRELEASED: is_vote,
        words.LARGE_DELTA: is_private and privacy["delta"] * privacy["dataset_size"] >= 1,
    }


def trusted(config: Mapping[str, Any]) -> list[str]:
    """Name the parts of a run that are not dpexp's own, and what is taken on trust of them."""
    said = []
    target, loop = config["method"]["_target_"], config.get("loop", TRAINING)
    if target not in (*KNOWN, PATE):
        said.append(
            f"method {target} is not known here: that it releases one vector a step, and that one "
            "example moves it by no more than the clip norm"
        )
    if loop not in (TRAINING, VOTING):
        said.append(f"loop {loop} is not known here: all that it does with the examples")
    for place, other in _targets(config):
        if place != "method" and not is_ours(other):
            said.append(f"{place} {other} is not of dpexp: that it keeps to what its kind may do")
    return said


def _targets(node: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """List all that a config has made, and where."""
    if isinstance(node, Mapping):
        if "_target_" in node:
            yield place, str(node["_target_"])
        for key, inner in node.items():
            yield from _targets(inner, f"{place}.{key}" if place else str(key))
    elif isinstance(node, list):
        for inner in node:
            yield from _targets(inner, place)


@cache
def is_ours(target: str) -> bool:
    """Tell whether something is defined in dpexp's own files, or an optimizer of torch."""
    if OPTIMIZERS.fullmatch(target):
        return True
    if not re.fullmatch(r"dpexp(\.\w+)+", target):
        return False
    _, *folders, name = target.split(".")
    place = PACKAGE.joinpath(*folders)
    for path in (place.with_suffix(".py"), place / "__init__.py"):
        if folders and path.is_file():
            return bool(
                re.search(rf"^(class|def|from .*import.*)\b.*\b{name}\b", path.read_text(), re.M)
            )
    return False
