"""The statement a run makes about its privacy, and the check anyone can repeat."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dpexp.privacy.accounting import PRVFailed, prv_epsilon
from dpexp.privacy.gnmax import effective_multiplier, votes_epsilon
from dpexp.privacy.laplace import pld_epsilon, pure_epsilon
from dpexp.privacy.rdp import rdp_epsilon
from dpexp.records.rounded import at_most
from dpexp.types import counted

NO_NOISE = "no noise: no privacy"
NO_CLIPPING = "no clipping: no privacy"
SHUFFLED = "shuffled batches: epsilon is paper-compatible, not a guarantee"
SECRET = "secret randomness: the run cannot be replayed"
BY_RDP = "calibrated by RDP: PRV failed for these numbers"

LOST = "steps were lost to a kill: they are accounted for, and not in the weights"

LARGE_DELTA = "delta is not below 1/N: such a guarantee allows one example to be published"

JUDGED_ON_TRAINING = "the metric is of the training set, without noise: it is not covered"
ON_TRAINING = (
    "dpexp.data.lending_club.lending_club",
    "dpexp.data.regression.regression",
)
"""Tasks of ours that are evaluated on their training set."""

UNRELEASED = "teacher_accuracy is of votes without noise: it is no part of the guarantee"
TEST_HALF = "half of the test set is the student's public data; accuracy is of the other half"
UNSAID = "unsaid_votes counts those of teachers that diverged: it is no part of the guarantee"
"""Deviations that the loops add."""

APART = "as if each release of a step had a subsample of its own: understates epsilon, no claim"

NEIGHBOURS = "add or remove one example"
VOTING_NEIGHBOURS = "add or remove one example: one teacher's vote may change"
"""The neighbouring relations of certificates."""

UNTRIED = "the model was not tried on made-up examples, and may mix them"
OF_THE_RUN = (UNSAID, UNTRIED)
"""Deviations that depend on the run, not on its config; either may be absent."""

CYCLIC = "cyclic"
"""The sampling of certificates with correlated noise."""

PARTICIPATION = (
    "an example is of one of the groups, as many as there are bands, drawn once and independently "
    "of all others; step t draws from group t mod bands, each example with participation_prob"
)

NOT_SAMPLED = "none: every example is one teacher's"

OF_ATTACKS = ("attacked:", "audited:", "a shadow:")
"""Prefixes of the deviations that attacks and audits (`dpexp.attacks`) add."""

AUDITED = "audited: canaries were among the examples, the model is not for use"
"""Deviation of runs that an audit put examples of its own into."""

COUNTED = "N was counted from the training data, not declared: the guarantee takes it as known"
CLASSES_READ = "classes were read off the training labels, without noise: they are not covered"
"""Deviations of runs that learn from one's own data what may be declared."""

ANALYSED = "analysis run: not private"
"""Deviation of runs whose analyses use private gradients (`dpexp.training.observation`)."""

HELD_OUT = (
    "left out of training and of N by their places alone: neighbouring sets differ in an example "
    "that is left; nothing is claimed of these, and how they score is told exactly"
)
"""What a certificate says of training examples that were held out."""

BEGAN = "began with the weights"
"""How the deviation of a run begins whose weights another one had trained."""

NO_GUARANTEE = (NO_NOISE, NO_CLIPPING)
"""Deviations of certificates that state no epsilon."""

NO_CLAIM = (*NO_GUARANTEE, SHUFFLED, ANALYSED, AUDITED)
"""Deviations beside which no privacy is claimed of the weights, whatever epsilon is stated."""

CONFIDENT_GNMAX = "Confident-GNMax on teachers' votes"
"""The mechanism whose certificate counts queries in place of steps."""


class PrivacyError(RuntimeError):
    """A run did not deliver the privacy it claims."""


def continued(config: Mapping[str, Any]) -> str:
    """Return the deviation of a run whose model other runs had trained; "" where none is known."""
    said = config["model"].get("trained_in") or config.get("trained_in")
    if not said:
        return ""
    if isinstance(said, str) or len(said) == 1:
        (run,) = [said] if isinstance(said, str) else said
        return (
            f"{BEGAN} of run {run}: of examples that both read, the epsilons add up, "
            "and where that run had none this one is no guarantee"
        )
    return (
        f"{BEGAN} of run {said[0]}, and it with those of {', '.join(said[1:])}: of examples that "
        "they read, the epsilons add up, and where one had none this one is no guarantee"
    )


def why_no_claim(certificate: Mapping[str, Any]) -> list[str]:
    """Return why no privacy is claimed of a run's weights; [] where it is."""
    said = certificate["deviations"]
    reasons = [word for word in said if word in NO_CLAIM or word.startswith(BEGAN)]
    if not reasons and all(value is None for value in certificate["epsilon"].values()):
        return ["the certificate states no epsilon"]
    return reasons


def learnt_from_data(config: Mapping[str, Any]) -> dict[str, bool]:
    """Return the deviations of what a run took from data before its steps, and of each whether."""
    return {
        COUNTED: config.get("dataset_size") == "count",
        CLASSES_READ: config["task"].get("classes") == "read",
        continued(config): bool(continued(config)),
    }


def is_judged_on_training(config: Mapping[str, Any]) -> bool:
    """Return whether a config's test examples are training ones: its task's kind, or it says so.

    Runs and verification both ask here, so that neither says what the other does not expect.
    """
    task = config["task"]
    return task.get("_target_") in ON_TRAINING or bool(task.get("judged_on_training"))


def held_out(task: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a certificate says of the examples that a run holds out.

    Args:
        task: a `dpexp.data.Task`; of a shadow model it has half of the examples that are left.
        config: of the run.
    """
    return {
        "examples": len(task.holdout),
        "of": len(task.holdout) + config["task"]["dataset_size"],
        "fingerprint": task.holdout_fingerprint,
        "note": HELD_OUT,
    }


def without_held_out(certificate: Mapping[str, Any]) -> str:
    """Return for which examples a claim is, as the end of a sentence; "" where it is for all."""
    if not (held := certificate.get("holdout")):
        return ""
    return f" for N = {certificate['dataset_size']}, without {held['examples']} held out"


def verify(certificate: Mapping[str, Any]) -> None:
    """Recompute a certificate's claims from its own numbers.

    Args:
        certificate: from `Mechanism.certificate`, or read from privacy.json.

    Raises:
        PrivacyError: if noise was not drawn once per accounted step, if the recomputed epsilon
            exceeds the target, if a stated epsilon is below the recomputed one, or if a run
            without a guarantee states one.
    """
    try:
        _verify(certificate)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise PrivacyError(
            f"The privacy certificate is incomplete or malformed: {error!r}."
        ) from None


def _verify(certificate: Mapping[str, Any]) -> None:
    if certificate.get("mechanism") == CONFIDENT_GNMAX:
        _check_queries(certificate)
    else:
        _check_steps(certificate)
    stated = certificate["epsilon"]
    if any(word in certificate["deviations"] for word in NO_GUARANTEE):
        if any(value is not None for value in stated.values()):
            raise PrivacyError("Expected no epsilon for a run without noise or clipping.")
        return
    recomputed = _recompute(certificate)
    if certificate["calibrated_by"] not in recomputed:
        raise PrivacyError(
            f"Expected noise calibrated by {'pure' if 'pure' in recomputed else 'prv or rdp'}; "
            f"got {certificate['calibrated_by']}."
        )
    epsilon = recomputed[certificate["calibrated_by"]]
    if not epsilon <= certificate["target_epsilon"]:
        raise PrivacyError(
            f"Epsilon recomputed by {certificate['calibrated_by']} is "
            f"{at_most(epsilon, digits=6)}, above the target {certificate['target_epsilon']}."
        )
    for accountant, epsilon in recomputed.items():
        if not stated[accountant] >= epsilon * (1 - 1e-6):
            raise PrivacyError(
                f"Epsilon stated for {accountant} is {stated[accountant]}, below the recomputed "
                f"{at_most(epsilon, digits=6)}."
            )


def _check_steps(certificate: Mapping[str, Any]) -> None:
    steps, draws = certificate["steps"], certificate["noise_draws"]
    lost = certificate.get("lost_steps", 0)
    if not 0 <= lost <= steps or (lost > 0) != (LOST in certificate["deviations"]):
        raise PrivacyError(f"{lost} of {steps} steps are said to be lost, and not so in words.")
    if lost and "correlation" in certificate:
        raise PrivacyError(f"{lost} steps are lost; with correlated noise no run goes on after it.")
    expected = 0 if NO_NOISE in certificate["deviations"] else steps
    if draws != expected:
        raise PrivacyError(
            f"Noise was drawn at {counted(draws, 'step')} where {expected} are accounted for; "
            "one draw per step is what the accountant assumes."
        )


def _check_queries(certificate: Mapping[str, Any]) -> None:
    counts = (certificate["steps"], certificate["answers"])
    for release, count in zip(certificate["releases"], counts, strict=True):
        expected = 0 if NO_NOISE in certificate["deviations"] else count
        if release["drawn"] != expected or count > release["at_most"]:
            raise PrivacyError(
                f"Noise for {release['name']} was drawn {release['drawn']} times for {count} "
                f"queries, where at most {release['at_most']} are accounted for, one draw each."
            )
    if certificate["noise_draws"] != sum(release["drawn"] for release in certificate["releases"]):
        raise PrivacyError("Expected noise_draws to be the sum of what the releases drew.")


def _recompute_votes(certificate: Mapping[str, Any]) -> dict[str, float]:
    check, votes = certificate["releases"]
    stds = check["noise_std"], votes["noise_std"]
    if not all(0 < std < math.inf for std in stds):
        raise PrivacyError(f"Expected noise with positive standard deviations; got {stds}.")
    multiplier = effective_multiplier(*stds, check["at_most"], votes["at_most"])
    return votes_epsilon(multiplier, certificate["delta"])


def _recompute(certificate: Mapping[str, Any]) -> dict[str, float]:
    if certificate.get("mechanism") == CONFIDENT_GNMAX:
        return _recompute_votes(certificate)
    q = certificate["batch_size"] / certificate["dataset_size"]
    if not math.isclose(q, certificate["q"], rel_tol=1e-9):
        raise PrivacyError(
            f"Expected q = batch_size / dataset_size = {q:.6g}; got {certificate['q']}."
        )
    steps, planned = certificate["steps"], certificate["planned_steps"]
    if (certificate["sampling"] == CYCLIC) != ("correlation" in certificate):
        raise PrivacyError("Expected cyclic sampling with correlated noise, and with no other.")
    if "correlation" in certificate:
        bands = bands_of(certificate["correlation"])
        q, steps, planned = q * bands, math.ceil(steps / bands), math.ceil(planned / bands)
        if q > 1 + 1e-9:
            raise PrivacyError(f"Expected bands times q of at most 1; got {q:.6g}.")
        q, said = min(q, 1.0), certificate["correlation"]
        if not math.isclose(q, said["participation_prob"], rel_tol=1e-9):
            raise PrivacyError(
                f"Expected participation_prob {q:.6g}, bands times q; got "
                f"{said['participation_prob']}."
            )
        if said["participations"] != steps:
            raise PrivacyError(f"Expected {steps} participations; got {said['participations']}.")
    releases = certificate["releases"]
    laplace = any(r.get("noise") == "laplace" for r in releases)
    shared = [r["sensitivity"] for r in releases if "noise_multiplier" not in r]
    own = [(r["sensitivity"], r["noise_multiplier"]) for r in releases if "noise_multiplier" in r]
    sensitivity = sum(shared) if laplace else math.sqrt(sum(each**2 for each in shared))
    sigma = certificate["noise_multiplier"] / sensitivity
    if not 0 < sigma < math.inf:
        raise PrivacyError(f"Expected a positive noise multiplier; got {sigma * sensitivity}.")
    if own:  # independent Gaussians add up as the squares of sensitivity over multiplier
        sigma = 1 / math.sqrt(sigma**-2 + sum((s / own_sigma) ** 2 for s, own_sigma in own))
    delta = certificate["delta"]
    if laplace:
        return {
            "pure": pure_epsilon(q, sigma, [1.0] * steps),
            "pld": pld_epsilon(q, sigma, steps),
        }
    epsilon = {"rdp": rdp_epsilon(q, sigma, steps, delta)}
    if certificate["calibrated_by"] == "prv":
        try:
            epsilon["prv"] = prv_epsilon(q, sigma, steps, delta, planned)
        except PRVFailed as error:
            raise PrivacyError(f"PRV cannot confirm the stated epsilon: {error}.") from None
    return epsilon


def bands_of(correlation: Mapping[str, Any]) -> int:
    """Return the number of bands of a certificate's correlated noise.

    Raises:
        PrivacyError: if its coefficients have another norm than 1, so that an example would move
            the release by another length than the clip norm, or reach further than its bands.
    """
    coefficients, bands = correlation["coefficients"], correlation["bands"]
    norm = math.hypot(*coefficients)
    if not (1 <= len(coefficients) <= bands and abs(norm - 1) <= 1e-9 and coefficients[0] > 0):
        raise PrivacyError(
            f"Expected at most {bands} coefficients of norm 1, the first above 0; got "
            f"{len(coefficients)} of norm {norm:.6g}."
        )
    return int(bands)
