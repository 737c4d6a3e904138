"""Trials of a distinguishing game for a config's method, with the accounted epsilon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dpexp.attacks import distinguishing
from dpexp.pate.votes import build_votes
from dpexp.privacy import build, require_room
from dpexp.privacy.correlation import AUTO, Banded
from dpexp.training.parts import Parts
from dpexp.types import first_weight

SMALL_BATCH = 8
"""Nominal batch size, without real examples (ours); it cancels in a canary's score."""

BANDS = 2
"""Bands of correlated noise in a trial of a run that chooses them itself (ours)."""


class Trials(NamedTuple):
    """Scores of trials, and the privacy accounted for them.

    Attributes:
        without: scores of trials without the canary, [n].
        within: of trials with it, [n].
        epsilon: accounted for one trial; None without noise or clipping.
        delta: in [0, 1).
        is_gaussian: whether the mechanism claims to be Gaussian.
    """

    without: np.ndarray
    within: np.ndarray
    epsilon: float | None
    delta: float
    is_gaussian: bool


def small(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with batches of `SMALL_BATCH` examples."""
    method, more = dict(config["method"]), {}
    if "batch_size" in method:
        method["batch_size"] = SMALL_BATCH
    rule = config.get("clipping", {})
    if "count_noise" in rule:  # a share of the batch; the noise itself stays
        noise = rule["count_noise"] * config["batch_size"] / SMALL_BATCH
        more["clipping"] = {**rule, "count_noise": noise}
    return {**config, "batch_size": SMALL_BATCH, "method": method, **more}


def of_steps(config: Mapping[str, Any], parts: Parts, num_trials: int, num_steps: int) -> Trials:
    """Return trials of the training loop.

    Args:
        config: as returned by `small`.
        parts: built from it; the model is not changed.
        num_trials: without and with the canary each.
        num_steps: of each trial.
    """
    state, correlation, bands = parts.method.start(parts.model), parts.correlation, 1
    if correlation is not None:  # whose group is drawn whole
        bands = BANDS if correlation.bands == AUTO else int(correlation.bands)
        correlation = Banded(min(bands, num_steps))
        bands = int(correlation.bands)
    mechanism = build(
        config["privacy"],
        dataset_size=bands * SMALL_BATCH,
        batch_size=SMALL_BATCH,
        num_steps=num_steps,
        releases=parts.method.releases(state, config["privacy"]["clip_norm"]),
        seed=config["seed"],
        correlation=correlation,
    )
    require_room(mechanism, first_weight(parts.model).dtype, config)
    scores = distinguishing.of_steps(parts, mechanism, num_trials)
    return Trials(*scores, mechanism.epsilon(num_steps), mechanism.delta, not mechanism.is_laplace)


def of_votes(config: Mapping[str, Any], num_trials: int) -> Trials:
    """Return trials of PATE's votes on two classes.

    Args:
        config: of a run of PATE.
        num_trials: without and with the canary each.
    """
    method = config["method"]
    mechanism = build_votes(
        config["privacy"],
        dataset_size=config["task"]["dataset_size"],
        num_classes=2,
        threshold=method["threshold"] * method["teachers"],
        check_ratio=method["check_ratio"],
        max_checks=method["queries"],
        max_answers=method["answers"],
        seed=config["seed"],
    )
    scores = distinguishing.of_votes(mechanism, method["teachers"], num_trials)
    return Trials(*scores, mechanism.epsilon()["rdp"], mechanism.delta, True)
