"""A run's certificate, recomputed from its config by an accountant that calibrated nothing.

Noise is calibrated by PRV or RDP (Opacus) or by the formulas of `dpexp.mechanism.laplace`; here
epsilon comes from Google's dp-accounting (`dpexp.mechanism.pld`). What leaves at a step is restated
here from the papers, not asked of the methods. What is looked at: sampling, q, N, steps, noise
draws, releases and their sensitivities, noise, epsilon, names.

Not recomputed, as no guarantee rests on them: dimensions of releases but DP-SGD's, and what a
certificate remarks besides (accounted_apart, data_dependent_epsilon, column_norms, paper). And
taken from the certificate, as no config holds it: how many parameters compressive SGD trains, which
its sensitivity grows with where it keeps them all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpexp.mechanism import certificate as words
from dpexp.mechanism.calibration import num_steps
from dpexp.mechanism.pld import Part, gaussian_epsilon, laplace_epsilon

TOLERANCE = 0.01
"""Share by which a stated PRV epsilon may differ from ours: PRV states its upper bound, which on 12
settings (epsilon 0.05 to 100, 1 to 14,652 steps) was 0.2 to 0.4 % above."""

UNDER_TARGET = 2e-3
"""Share by which a calibrated epsilon may lie below its target; calibration promises half of it."""

ROUNDING = 1e-6
"""Of what both sides compute by one formula, in floating point."""

CHECK, VOTES = 1.0, math.sqrt(2)
"""What one teacher's vote moves: the largest entry of a histogram, and all of it in l2."""

ONE_RELEASE = {
    "DPSGD": "gradient",
    "PowerSGD": "gradient",
    "SparseDPSGD": "gradient",
    "RGP": "carriers",
    "PublicRGP": "carriers",
    "LSG": "carriers",
    "CoreRGP": "core",
}
"""What classes of methods call their one clipped vector; of others, any name will do."""

WHOLE_GRADIENT = ("DPSGD", "PowerSGD")
"""Classes of methods that release a number per trained parameter."""

MALFORMED = (
    *(KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError, MemoryError),
)
"""What reading a damaged certificate, or computing with absurd numbers, may raise."""


@dataclass(frozen=True)
class Recheck:
    """What a recomputation found.

    Attributes:
        findings: what differs, one sentence each; empty if the certificate holds.
        epsilon: recomputed; None where none is claimed, or the certificate could not be read.
    """

    findings: tuple[str, ...]
    epsilon: float | None = None


def recheck(
    config: Mapping[str, Any], result: Mapping[str, Any], privacy: Mapping[str, Any]
) -> Recheck:
    """Recompute a run's certificate from its config.

    Args:
        config: of config.yaml.
        result: of result.json.
        privacy: of privacy.json.
    """
    check = _Check(config, result, privacy)
    try:
        check.run()
    except MALFORMED as error:
        check.say(f"malformed or incomplete: {error!r}")
    return Recheck(tuple(check.findings), check.epsilon)


class _Check:
    """One certificate's comparison with what the config asks for."""

    def __init__(
        self, config: Mapping[str, Any], result: Mapping[str, Any], privacy: Mapping[str, Any]
    ) -> None:
        self.findings: list[str] = []
        self.epsilon: float | None = None
        self._config, self._result, self._privacy = config, result, privacy

    def say(self, finding: str) -> None:
        """Note what differs."""
        self.findings.append(" ".join(finding.split()))

    def run(self) -> None:
        """Make every comparison."""
        wanted, is_vote = self._config["privacy"], self._config.get("loop") == "dpexp.pate"
        self._same("mechanism", words.CONFIDENT_GNMAX if is_vote else None)
        self._same("neighbouring", words.VOTING_NEIGHBOURS if is_vote else words.NEIGHBOURS)
        self._names()
        self._words(wanted, is_vote)
        self._same("dataset_size", self._size())
        if is_vote:
            parts = self._votes()
        else:
            parts = self._steps(wanted)
        if wanted["noise"] and wanted["clip"]:
            self._budget(wanted, parts)
        else:
            self._same("target_epsilon", None)
            if any(value is not None for value in self._privacy["epsilon"].values()):
                self.say("epsilon: one is stated, but without noise and clipping there is none")

    def _size(self) -> int:
        size = self._config["task"]["dataset_size"]
        # A shadow model holds half of the training set.
        return size // 2 if self._config.get("attack", {}).get("name") == "shadow" else size

    def _steps(self, wanted: Mapping[str, Any]) -> tuple[Part, ...]:
        config, privacy = self._config, self._privacy
        size, batch = self._size(), config["batch_size"]
        steps = num_steps(config["epochs"], size, batch, wanted["sampling"])
        for key, value in {
            "sampling": wanted["sampling"],
            "batch_size": batch,
            "q": batch / size,
            "steps": steps,
            "planned_steps": steps,
            "noise_draws": steps if wanted["noise"] else 0,
        }.items():
            self._same(key, value)
        self._same("steps", privacy["steps"], self._result, "result.json ")
        if not 0 <= privacy.get("lost_steps", 0) <= steps:
            self.say(f"lost_steps: expected from 0 to {steps}; got {privacy['lost_steps']}")
        sensitivities = self._releases()
        is_laplace = self._noise_law() == "laplace"
        joint = sum(sensitivities) if is_laplace else math.hypot(*sensitivities)
        sigma = privacy["noise_multiplier"] / joint
        self._same("effective_noise_multiplier", sigma)
        if not wanted["noise"]:
            self._same("noise_multiplier", 0.0)
        return (Part(batch / size, sigma, steps),)

    def _noise_law(self) -> str:
        return "laplace" if self._method() == "Compressive" else "gaussian"

    def _method(self) -> str:
        return self._config["method"]["_target_"].rpartition(".")[2]

    def _releases(self) -> list[float]:
        """Compare what leaves at a step with the papers; give sensitivities in clip norms."""
        method, privacy = self._config["method"], self._privacy
        clip_norm, kind = float(self._config["privacy"]["clip_norm"]), self._method()
        expected: list[tuple[str | None, float, float]] = [
            (ONE_RELEASE.get(kind), clip_norm, 1.0)  # the clipped vector itself
        ]
        if kind == "GEP":
            expected = [("embedding", clip_norm, 1.0)]
            if method["residual"]:  # clipped apart, on one subsample
                expected.append(("residual", float(method["residual_clip"]), 1.0))
        elif kind == "Compressive":
            expected = [("measurements", clip_norm, self._compressive() / clip_norm)]
        stated = privacy["releases"]
        if len(stated) != len(expected):
            self.say(f"releases: {len(expected)} leave at a step; privacy.json names {len(stated)}")
        for release, (name, bound, sensitivity) in zip(stated, expected, strict=False):
            place = f"release {release['name']}, "
            if name is not None:
                self._same("name", name, release, place)
            self._same("clip_norm", bound, release, place)
            self._same("sensitivity", sensitivity, release, place)
            if "noise" in release:  # the first certificates knew of one noise only
                self._same("noise", self._noise_law(), release, place)
            if "clip" in release:
                self._same(
                    "clip", "coordinates" if kind == "Compressive" else "norm", release, place
                )
        if kind in WHOLE_GRADIENT:
            self._same("dimension", sum(privacy["trainable"].values()), stated[0], "release, ")
        return [sensitivity for _, _, sensitivity in expected]

    def _compressive(self) -> float:
        """Give how much the sum over a batch may change in l1 (`dpexp.methods.compressive`)."""
        method, size = self._config["method"], sum(self._privacy["trainable"].values())
        if method["bound"] == "example":
            return size * method["xi"]
        kappa = size if method["kappa"] is None else method["kappa"]
        return 2 * kappa * method["batch_size"] * method["xi"]

    def _votes(self) -> tuple[Part, ...]:
        config, privacy, method = self._config, self._privacy, self._config["method"]
        check, votes = privacy["releases"]
        std, ratio = privacy["noise_multiplier"], method["check_ratio"]
        self._same("sampling", words.NOT_SAMPLED)
        self._same("q", 1.0)
        caps = {"check": method["queries"], "votes": method["answers"]}
        counts = {"check": privacy["steps"], "votes": privacy["answers"]}
        rows = (("check", check, CHECK, std * ratio), ("votes", votes, VOTES, std))
        for name, release, sensitivity, noise in rows:
            place = f"release {name}, "
            self._same("name", name, release, place)
            self._same("sensitivity", sensitivity, release, place)
            self._same("noise_std", noise, release, place)
            self._same("drawn", counts[name] if config["privacy"]["noise"] else 0, release, place)
            if not counts[name] <= release["at_most"] <= caps[name]:
                self.say(
                    f"{place}at_most: expected from {counts[name]}, as many as were made, to "
                    f"{caps[name]}, as config.yaml allows; privacy.json says {release['at_most']}"
                )
        self._same("noise_draws", check["drawn"] + votes["drawn"])
        self._same("threshold", method["threshold"] * method["teachers"])
        self._same("asked", privacy["steps"], self._result, "result.json ")
        self._same("answered", privacy["answers"], self._result, "result.json ")
        if not config["privacy"]["noise"]:
            self._same("noise_multiplier", 0.0)
            return ()
        return (
            Part(1.0, check["noise_std"] / CHECK, check["at_most"]),
            Part(1.0, votes["noise_std"] / VOTES, votes["at_most"]),
        )

    def _names(self) -> None:
        config, privacy, result = self._config, self._privacy, self._result
        both = sorted(set(privacy["trainable"]) & set(privacy["frozen"]))
        if both:
            self.say(f"trainable and frozen: both name {', '.join(both)}")
        for group in ("method", "model", "task"):
            self._same(group, config[group]["name"], result, "result.json ")
        if "public" in privacy:
            self._same("name", config["public"]["name"], privacy["public"], "public ")
        self._same("seed", config["seed"], result, "result.json ")
        self._same("delta", privacy["delta"], result, "result.json ")
        self._same("eps", privacy["target_epsilon"], result, "result.json ")

    def _words(self, wanted: Mapping[str, Any], is_vote: bool) -> None:
        said = self._privacy["deviations"]
        due = {
            words.NO_NOISE: not wanted["noise"],
            words.NO_CLIPPING: not wanted["clip"] and not is_vote,
            words.SHUFFLED: wanted["sampling"] == "shuffle" and not is_vote,
            words.SECRET: wanted["noise"] == "secret",
            words.LOST: self._privacy.get("lost_steps", 0) > 0,
            words.ANALYSED: bool(self._config.get("analysis")),
        }
        for word, is_due in due.items():
            if is_due != (word in said):
                self.say(f"deviations: '{word}' is {'missing' if is_due else 'not so'}")
        is_attacked = "attack" in self._config or "audit" in self._config
        if is_attacked and not any(word.startswith(words.OF_ATTACKS) for word in said):
            self.say("deviations: nothing is said of the attack or audit in config.yaml")
        self._same("replayable", wanted["noise"] != "secret")

    def _budget(self, wanted: Mapping[str, Any], parts: tuple[Part, ...]) -> None:
        privacy, steps = self._privacy, sum(part.count for part in parts)
        is_laplace = self._noise_law() == "laplace"
        target = float(wanted["eps"]) * (steps if wanted.get("budget") == "per_step" else 1)
        self._same("target_epsilon", target)
        self._same("delta", 0.0 if is_laplace else wanted["delta"])
        stated, by = privacy["epsilon"], privacy["calibrated_by"]
        allowed = ("pure",) if is_laplace else ("prv", "rdp")
        if by not in allowed:
            self.say(f"calibrated_by: expected {' or '.join(allowed)}; privacy.json says {by}")
            return
        if not all(0 < part.sigma < math.inf for part in parts):
            self.say(f"noise_multiplier: expected > 0; got {privacy['noise_multiplier']}")
            return
        if is_laplace:
            (part,) = parts
            ours = laplace_epsilon(part, target)
        else:
            ours = gaussian_epsilon(parts, privacy["delta"], target)
        self.epsilon = ours
        if not ours <= target * (1 + ROUNDING):
            self.say(f"epsilon: recomputed {ours:.6g}, above the target {target:g}")
        if not target * (1 - UNDER_TARGET) <= stated[by] <= target:
            self.say(
                f"epsilon: {by} states {stated[by]:.6g}; calibration would give "
                f"{target * (1 - UNDER_TARGET):.6g} to {target:g}"
            )
        for accountant, value in stated.items():
            # RDP is looser by design; the others compute what we do.
            share = {"rdp": math.inf, "prv": TOLERANCE}.get(accountant, ROUNDING)
            if not ours * (1 - min(share, TOLERANCE)) <= value <= ours * (1 + share):
                self.say(f"epsilon: {accountant} states {value:.6g}; recomputed {ours:.6g}")

    def _same(
        self,
        key: str,
        expected: Any,
        where: Mapping[str, Any] | None = None,
        place: str = "",
    ) -> None:
        """Compare an entry, numbers up to rounding, and say what differs."""
        got = (self._privacy if where is None else where).get(key)
        if isinstance(got, int | float) and isinstance(expected, int | float):
            is_same = math.isclose(got, expected, rel_tol=ROUNDING)
        else:
            is_same = got == expected
        if not is_same:
            self.say(f"{place}{key}: expected {expected}; got {got}")
