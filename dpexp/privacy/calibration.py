"""Build a run's mechanism from its budget and releases: checks, step counts, calibrated noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dpexp.privacy.accounting import calibrate
from dpexp.privacy.budget import check_privacy, require, require_sizes
from dpexp.privacy.certificate import CYCLIC
from dpexp.privacy.correlation import Banded, banded
from dpexp.privacy.laplace import calibrate_laplace
from dpexp.privacy.mechanism import Mechanism
from dpexp.privacy.pld import Part, gaussian_epsilon, is_composable
from dpexp.privacy.releases import shared_multiplier
from dpexp.privacy.seeds import new_secret
from dpexp.records.rounded import at_most
from dpexp.types import ConfigError, Release, counted, is_laplace, require_word
from dpexp.warned import warn_caller

SURE = 1e-8
"""Least delta at which both accountants resolve any run of ours (up to a million steps)."""

BUDGETS = ("total", "per_step")
"""Whether eps is the budget of the run or of each step."""


def whole_batch(
    size: int, releases: Sequence[Release], noise_multiplier: float = 0.0, *, clip: bool = True
) -> Mechanism:
    """Return a mechanism for one step on every example, with noise that fits no budget.

    For timing a step or comparing it with an algorithm box, never for private data.

    Args:
        size: number of examples, all of which are drawn.
        releases: of the step.
        noise_multiplier: >= 0; 0 for no noise.
        clip: whether examples' contributions are clipped.
    """
    return Mechanism(
        dataset_size=size,
        batch_size=size,
        num_steps=1,
        sampling="poisson",
        target_epsilon=None,
        delta=1e-5,
        noise=noise_multiplier > 0,
        clip=clip,
        noise_multiplier=noise_multiplier,
        releases=tuple(releases),
        seed=0,
        calibrated_by="none",
    )


def build(
    privacy: Mapping[str, Any],
    *,
    dataset_size: int,
    batch_size: int,
    num_steps: int,
    releases: tuple[Release, ...],
    seed: int,
    correlation: Banded | None = None,
) -> Mechanism:
    """Return the run's frozen mechanism, with noise calibrated to the budget.

    Args:
        privacy: eps (> 0; may be None without noise), delta, noise (True, False or "secret"),
            clip (bool), sampling ("poisson" or "shuffle"); under Laplace noise also budget, eps for
            the run ("total") or for each step ("per_step"; refused under Gaussian noise).
        dataset_size: training examples.
        batch_size: expected size of a logical batch, at most dataset_size.
        num_steps: number of steps that the budget is for.
        releases: of every step.
        seed: of a reproducible experiment.
        correlation: of Gaussian noise across steps; None: it is fresh at every step.

    Raises:
        ConfigError: for an invalid budget, size or name.
    """
    _check(privacy, dataset_size, batch_size, num_steps)
    require_releases(releases)
    noise, clip = privacy["noise"], privacy["clip"]
    epsilon = None if privacy["eps"] is None else float(privacy["eps"])
    delta, laplace = float(privacy["delta"]), is_laplace(releases)
    if correlation is not None:
        require_correlation(privacy, releases)
    if laplace:
        delta = 0.0
        require_word("privacy.budget", privacy["budget"], BUDGETS)
        if epsilon is not None and privacy["budget"] == "per_step":
            epsilon *= num_steps
    elif privacy.get("budget", "total") != "total":
        raise ConfigError(
            "Expected privacy.budget=total under Gaussian noise, where epsilons of steps do not "
            f"add up; got {privacy['budget']}. Set privacy.budget=total, or Laplace noise."
        )
    sigma, calibrated_by, factorisation = 0.0, "none", None
    if not noise and epsilon is not None:
        warn_caller(f"eps={privacy['eps']:g} has no effect: noise is off, so is privacy.")
    q = batch_size / dataset_size
    if noise and laplace:
        assert epsilon is not None  # checked above
        sigma, calibrated_by = calibrate_laplace(q, epsilon / num_steps), "pure"
        if clip:
            _require_composable((Part(q, sigma, num_steps),), epsilon)
    elif noise:
        assert epsilon is not None
        target, count = epsilon, num_steps
        if correlation is not None:
            factorisation = banded(
                correlation.bands, q, num_steps, lambda p, k: calibrate(p, k, delta, target)[0]
            )
            q = min(1.0, factorisation.bands * q)
            count = factorisation.participations(num_steps)
        sigma, calibrated_by = calibrate(q, count, delta, epsilon)
        if clip:
            confirm((Part(q, sigma, count),), delta, epsilon)
    shared = _shared(sigma, releases, batch_size) if noise else 0.0
    return Mechanism(
        dataset_size=dataset_size,
        batch_size=batch_size,
        num_steps=num_steps,
        sampling=privacy["sampling"] if factorisation is None else CYCLIC,
        target_epsilon=epsilon if noise and clip else None,
        delta=delta,
        noise=noise,
        clip=clip,
        noise_multiplier=shared,
        releases=tuple(releases),
        seed=seed,
        calibrated_by=calibrated_by,
        correlation=factorisation,
        _secret=new_secret() if noise == "secret" else None,
    )


def require_correlation(privacy: Mapping[str, Any], releases: Sequence[Release]) -> None:
    """Check that noise can be correlated across the steps of a run.

    Raises:
        ConfigError: naming what stands against it.
    """
    noise, sampling = privacy["noise"], privacy["sampling"]
    require(
        noise is not False,
        "Expected a run with noise beside noise=correlated; got noise=false. Leave one of them "
        "out.",
    )
    require(
        noise != "secret",
        "Expected noise=correlated alone; got secret beside it: secret noise would lie in "
        "checkpoints, as later steps need it. Leave one of them out.",
    )
    require(
        sampling == "poisson",
        f"Expected sampling=poisson beside noise=correlated, whose steps draw from groups in turn; "
        f"got {sampling}. Set sampling.",
    )
    require(
        all(each.noise == "gaussian" and each.clip == "norm" for each in releases),
        "Expected Gaussian noise on gradients alone beside noise=correlated. Leave Laplace noise "
        "and clipping=adaptive out, or noise=correlated.",
    )


def _shared(sigma: float, releases: tuple[Release, ...], batch_size: int) -> float:
    """Return the noise multiplier of the releases that share their noise.

    Raises:
        ConfigError: if the others' own noise is so small that it spends the whole budget.
    """
    try:
        return shared_multiplier(sigma, releases)
    except ValueError:
        own = next(each for each in releases if each.noise_multiplier is not None)
        least, got = (
            each * own.clip_norm / batch_size
            for each in (sigma * own.sensitivity, own.multiplier(0.0))
        )
        raise ConfigError(
            f"Expected noise on the {own.name} that leaves some of the budget to the gradients, "
            f"above {least:.4g} of the batch; got {got:.4g}. Set clipping.count_noise, or a larger "
            "batch_size."
        ) from None


def require_releases(releases: Sequence[Release]) -> None:
    """Check that a step's releases can be accounted for: a sensitivity of 0 would ask for no noise.

    Raises:
        ConfigError: naming the release.
    """
    if not releases:
        raise ConfigError("Expected the method to declare a release; `releases` returned none.")
    names = [release.name for release in releases]
    for release in releases:
        place = f"of release {release.name}"
        if names.count(release.name) > 1:
            raise ConfigError(f"Expected every release once; got {release.name} twice.")
        require_word(f"noise {place}", release.noise, ("gaussian", "laplace"))
        require_word(f"clip {place}", release.clip, ("norm", "coordinates", "count"))
        for field in ("clip_norm", "sensitivity", "dimension", "noise_multiplier"):
            value = getattr(release, field)
            if field == "noise_multiplier" and value is None:
                continue
            if not 0 < value < math.inf:
                raise ConfigError(f"Expected {field} {place} to be above 0; got {value}.")
    if len({release.noise for release in releases}) > 1:
        raise ConfigError("Expected one noise for all releases of a method; got both.")
    if all(release.noise_multiplier is not None for release in releases):
        raise ConfigError("Expected a release that takes the noise of the budget; got none.")
    if is_laplace(tuple(releases)) and any(r.noise_multiplier is not None for r in releases):
        raise ConfigError("Expected one noise multiplier for all releases under Laplace noise.")


def confirm(parts: tuple[Part, ...], delta: float, epsilon: float) -> None:
    """Check that the verifying accountant can confirm epsilon.

    Its rounding, which matters beside a tiny delta, is some 1e-15 a step. If it cannot confirm the
    budget before the first step, it cannot do so afterwards.

    Raises:
        ConfigError: if it cannot.
    """
    _require_composable(parts, epsilon)
    if delta >= SURE:
        return
    found = gaussian_epsilon(parts, delta, epsilon)
    require(
        found <= epsilon,
        f"Expected a delta that two accountants can resolve; at delta={delta:g} the one that "
        f"verifies finished runs gives epsilon {at_most(found)} for noise that the other "
        f"calibrated to {epsilon:g}. Set privacy.delta to a larger one, such as {SURE:g}.",
    )


def _require_composable(parts: tuple[Part, ...], epsilon: float) -> None:
    """Check that the verifying accountant has the memory: for hardly any noise it has none.

    Raises:
        ConfigError: if it has not.
    """
    advice = "a smaller eps, or noise=false for a run without privacy"
    require(
        is_composable(parts, epsilon),
        f"Expected a budget that two accountants can compose; the one that verifies finished runs "
        f"lacks the memory at eps={epsilon:g} over {counted(sum(p.count for p in parts), 'step')}. "
        f"Set {advice if epsilon > 1 else 'a larger eps or batch_size'}.",
    )


def _check(privacy: Mapping[str, Any], dataset_size: int, batch_size: int, num_steps: int) -> None:
    require_sizes(dataset_size, batch_size)
    require(num_steps > 0, f"Expected at least one step; got {num_steps}. Set epochs.")
    check_privacy(privacy, dataset_size)
