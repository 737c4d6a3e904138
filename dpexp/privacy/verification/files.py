"""Recompute a run's certificate from its config, by an independent accountant.

Noise is calibrated by PRV or RDP (Opacus) or by the formulas of `dpexp.privacy.laplace`; here
epsilon comes from Google's dp-accounting (`dpexp.privacy.pld`). What leaves at a step is what each
method states a second time, beside the code that runs (`dpexp.privacy.stated`). What is looked at:
sampling, q, N, steps, noise draws, releases and their sensitivities, noise, epsilon, names.

What is not recomputed is listed with what is found. Taken from the certificate, as no config holds
it: how many parameters compressive SGD trains, which its sensitivity grows with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpexp.privacy import certificate as words
from dpexp.privacy.accounting import PRVFailed
from dpexp.privacy.budget import num_steps
from dpexp.privacy.pld import Part, gaussian_epsilon, is_composable, laplace_epsilon
from dpexp.privacy.stated import Stated, statement_of
from dpexp.privacy.verification import counts
from dpexp.privacy.verification.comparison import Comparison
from dpexp.privacy.verification.correlated import bands_of
from dpexp.privacy.verification.epsilons import differences
from dpexp.privacy.verification.examples import available, compare_held_out, compare_public
from dpexp.privacy.verification.lines import epsilon_after
from dpexp.privacy.verification.statements import (
    OF_BOTH,
    OF_STEPS,
    OF_VOTES,
    REMARKS,
    TRAINING,
    VOTING,
    WEIGHTS,
    due_words,
    foreign_code,
    trusted,
)
from dpexp.records import is_older, profile_of
from dpexp.types import one_line

NAMES = "privacy.json trainable and frozen: that they are the model's names"
"""Not checked here, as no model is built; `scripts/verify.py` builds it if it can."""


@dataclass(frozen=True)
class Verification:
    """The result of a recomputation.

    Attributes:
        findings: what differs, one sentence each; empty if the certificate holds.
        epsilon: recomputed; None if none is claimed, or the certificate cannot be read.
        trusted: parts that are not dpexp's own, and what is assumed of them.
        unchecked: what was not compared, in words.
    """

    findings: tuple[str, ...]
    epsilon: float | None = None
    trusted: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()


def verify_files(
    config: Mapping[str, Any],
    result: Mapping[str, Any],
    privacy: Mapping[str, Any],
    tests: Mapping[str, int] | None = None,
    *,
    is_old: bool | None = None,
) -> Verification:
    """Recompute a run's certificate from config.yaml, result.json and privacy.json.

    Args:
        config: of the first.
        result: of the second.
        privacy: of the third.
        tests: how many test examples were counted, by metric, where that is known.
        is_old: whether the record is of code whose files did not name their run; None: as these
            three files show it.
    """
    is_old = is_older(config, result, privacy) if is_old is None else is_old
    check = _Check(config, result, privacy, tests or {}, is_old)
    trust: list[str] = []
    try:
        check.run()
        trust = [*trusted(config), *foreign_code(config)]
    except Exception as error:  # a damaged certificate may raise anything
        check.say(f"malformed or incomplete: {type(error).__name__}: {one_line(error)[:200]}")
    return Verification(tuple(check.findings), check.epsilon, tuple(trust), tuple(check.unchecked))


OF_CONFIG = (
    "config.yaml: that the run had the settings which no other file repeats, as of its optimizer"
)
"""What a record is checked against, and so cannot be checked itself."""


def _said_twice(config: Mapping[str, Any]) -> list[str]:
    """Return which settings stand in a config as typed and otherwise where a run reads them."""
    stated = config["privacy"]
    typed = {name: config[name] for name in ("eps", "noise", "clip", "sampling") if name in config}
    if "delta" in config["task"]:
        typed["delta"] = config["task"]["delta"]
    return [
        f"config.yaml {name}: {value}, which decides nothing; privacy.{name} does, and is "
        f"{stated.get(name)}"
        for name, value in typed.items()
        if value != stated.get(name)
    ]


class _Check(Comparison):
    """Comparison of one certificate with its config."""

    epsilon: float | None = None

    def run(self) -> None:
        """Make every comparison."""
        self.unchecked.append(OF_CONFIG)
        wanted, is_vote = self.config["privacy"], self.config.get("loop") == VOTING
        self._statement = statement_of(self.config)
        self._due: Sequence[Stated] = ()
        if not is_vote:
            size = sum(self.privacy["trainable"].values())
            self._due = self._statement.releases(self.config, size)
        if is_vote != (self._statement.votes is not None):
            self.say(f"loop: {self.config.get('loop', TRAINING)} is not the method's")
        self.same("mechanism", words.CONFIDENT_GNMAX if is_vote else None)
        self.same("neighbouring", words.VOTING_NEIGHBOURS if is_vote else words.NEIGHBOURS)
        self._names(is_vote)
        compare_public(self, self._statement, is_vote=is_vote)
        compare_held_out(self)
        self._words(wanted, is_vote)
        self.unchecked += _said_twice(self.config)
        self.same("dataset_size", self.size)
        differing, unread = counts.compare(self.config, self.result, self.tests)
        self.findings += differing
        self.unchecked += unread
        parts = self._votes() if is_vote else self._steps(wanted)
        self._unknown_keys(is_vote)
        self._accountants(wanted, is_vote)
        if wanted["noise"] and wanted["clip"]:
            self._budget(wanted, parts)
        else:
            self.same("target_epsilon", None)
            if any(value is not None for value in self.privacy["epsilon"].values()):
                self.say("epsilon: one is stated, but without noise and clipping there is none")

    def _steps(self, wanted: Mapping[str, Any]) -> tuple[Part, ...]:
        config, privacy = self.config, self.privacy
        size, batch = self.size, config["batch_size"]
        steps = num_steps(config["epochs"], size, batch, wanted["sampling"])
        bands = bands_of(self)
        for key, value in {
            "sampling": wanted["sampling"] if bands is None else words.CYCLIC,
            "batch_size": batch,
            "q": batch / size,
            "steps": steps,
            "planned_steps": steps,
            "noise_draws": steps if wanted["noise"] else 0,
        }.items():
            self.same(key, value)
        self.same("steps", privacy["steps"], self.result, "result.json ")
        self.same("epochs", config["epochs"], self.result, "result.json ")
        if privacy.get("lost_steps"):
            self.unchecked.append("privacy.json lost_steps: how many steps were lost to a kill")
        lost = privacy.get("lost_steps", 0)
        if type(lost) is not int or not 0 <= lost <= steps:
            self.say(f"lost_steps: expected from 0 to {steps}, a whole number; got {lost}")
        elif lost and bands is not None:
            self.say(f"lost_steps: {lost}; with correlated noise no run goes on after a loss")
        self._releases()
        sigma = self._effective(privacy["noise_multiplier"])
        self.same("effective_noise_multiplier", sigma)
        if not wanted["noise"]:
            self.same("noise_multiplier", 0.0)
        if bands is None:
            return (Part(batch / size, sigma, steps),)
        return (Part(min(1.0, bands * batch / size), sigma, math.ceil(steps / bands)),)

    def _noise_law(self) -> str:
        return "laplace" if any(due.noise == "laplace" for due in self._due) else "gaussian"

    def _effective(self, noise_multiplier: float) -> float:
        """Return the multiplier of the one mechanism that the stated releases amount to."""
        shared = [due.sensitivity for due in self._due if due.noise_multiplier is None]
        joint = sum(shared) if self._noise_law() == "laplace" else math.hypot(*shared)
        own = [each for each in self._due if each.noise_multiplier is not None]
        if not own or not noise_multiplier:
            return noise_multiplier / joint
        spent = (each.sensitivity / each.noise_multiplier for each in own if each.noise_multiplier)
        return 1 / math.hypot(joint / noise_multiplier, *spent)

    def _releases(self) -> None:
        """Compare a step's releases with the statement."""
        expected, stated = self._due, self.privacy["releases"]
        if len(stated) != len(expected):
            self.say(f"releases: {len(expected)} leave at a step; privacy.json names {len(stated)}")
        for release, due in zip(stated, expected, strict=False):
            place = f"release {release['name']}, "
            if due.name is not None:
                self.same("name", due.name, release, place)
            self.same("clip_norm", due.clip_norm, release, place)
            self.same("sensitivity", due.sensitivity, release, place)
            self.same("noise_multiplier", due.noise_multiplier, release, place)
            self.same("noise", due.noise, release, place)
            self.same("clip", due.clip, release, place)
            if due.dimension is not None:
                self.same("dimension", due.dimension, release, place)
        if any(due.dimension is None for due in expected):
            self.unchecked.append("privacy.json releases' dimensions")

    def _votes(self) -> tuple[Part, ...]:
        config, privacy, method = self.config, self.privacy, self.config["method"]
        check, votes = privacy["releases"]
        std = privacy["noise_multiplier"]
        self.same("sampling", words.NOT_SAMPLED)
        self.same("q", 1.0)
        votes_of = self._statement.votes
        assert votes_of is not None  # otherwise `_steps` checks it
        due = votes_of(method, available(self))
        counts = privacy["steps"], privacy["answers"]
        for release, count, stated in zip((check, votes), counts, due, strict=True):
            place = f"release {stated.name}, "
            self.same("name", stated.name, release, place)
            self.same("sensitivity", stated.sensitivity, release, place)
            self.same("noise_std", std * stated.noise, release, place)
            self.same("drawn", count if config["privacy"]["noise"] else 0, release, place)
            self.same("at_most", stated.at_most, release, place)
            if not count <= stated.at_most:
                self.say(f"{place}{count} were made, of at most {stated.at_most}")
        spent = zip((check, votes), due, strict=True)
        joint = math.hypot(
            *(
                math.sqrt(release["at_most"]) * stated.sensitivity / (std * stated.noise)
                for release, stated in spent
                if std
            )
        )
        self.same("effective_noise_multiplier", 1 / joint if joint else 0.0)
        self.unchecked.append("privacy.json releases' dimensions")
        self.same("noise_draws", check["drawn"] + votes["drawn"])
        self.same("threshold", method["threshold"] * method["teachers"])
        self.same("asked", privacy["steps"], self.result, "result.json ")
        self.same("answered", privacy["answers"], self.result, "result.json ")
        if not config["privacy"]["noise"]:
            self.same("noise_multiplier", 0.0)
            return ()
        return tuple(
            Part(1.0, release["noise_std"] / stated.sensitivity, release["at_most"])
            for release, stated in zip((check, votes), due, strict=True)
        )

    def _names(self, is_vote: bool) -> None:
        config, privacy, result = self.config, self.privacy, self.result
        if both := sorted(set(privacy["trainable"]) & set(privacy["frozen"])):
            self.say(f"trainable and frozen: both name {', '.join(both)}")
        for group in ("method", "model", "task"):
            self.same(group, config[group]["name"], result, "result.json ")
        if result.get("profile") != profile_of(config):  # older ones of one's own data say paper
            self.same("profile", config["profile"]["name"], result, "result.json ")
        if WEIGHTS in privacy:
            self.same(WEIGHTS, result.get(WEIGHTS))
        else:
            self.unchecked.append(f"privacy.json {WEIGHTS}: missing, as in older records")
        self.same("seed", config["seed"], result, "result.json ")
        self.same("delta", privacy["delta"], result, "result.json ")
        self.same("eps", privacy["target_epsilon"], result, "result.json ")
        if "eps" not in result:
            self.say("result.json eps: missing")
        self.unchecked.append(NAMES)

    def _words(self, wanted: Mapping[str, Any], is_vote: bool) -> None:
        said, config = self.privacy["deviations"], self.config
        attacked = [key for key in ("attack", "audit") if key in config]
        due = due_words(config, self.privacy, is_vote)
        for word, is_due in due.items():
            if word == words.UNRELEASED and self.is_older and is_due and word not in said:
                self.unchecked.append(f"privacy.json deviations: '{word}', which is missing")
            elif is_due != (word in said):
                self.say(f"deviations: '{word}' is {'missing' if is_due else 'not so'}")
        others = [word for word in said if word not in due and word not in words.OF_THE_RUN]
        self.unchecked.append(
            "privacy.json deviations: whether a model was tried before its first step"
            if not is_vote
            else "privacy.json deviations: whether a teacher diverged"
        )
        theirs = [word for word in others if str(word).startswith(words.OF_ATTACKS)]
        if attacked and not theirs:
            self.say("deviations: nothing is said of the attack or audit in config.yaml")
        if attacked:
            self.unchecked.append("privacy.json deviations: how an attack or audit is worded")
        if not trusted(config):  # foreign parts may add deviations of their own
            for word in set(map(str, others)) - (set(theirs) if attacked else set()):
                self.say(f"deviations: '{word}' is nothing that such a run says")
        self.same("replayable", wanted["noise"] != "secret")

    def _unknown_keys(self, is_vote: bool) -> None:
        """List a certificate's further entries, and report unknown ones."""
        if remarks := [key for key in REMARKS if key in self.privacy]:
            self.unchecked.append(f"privacy.json {', '.join(remarks)}")
        known = {*OF_STEPS, *OF_BOTH} if not is_vote else {*OF_VOTES, *OF_BOTH}
        others = sorted(set(map(str, self.privacy)) - known - {*REMARKS})
        if others and not trusted(self.config):
            self.say(f"privacy.json: {', '.join(others)} is nothing that a certificate has")

    def _budget(self, wanted: Mapping[str, Any], parts: tuple[Part, ...]) -> None:
        privacy, steps = self.privacy, sum(part.count for part in parts)
        is_laplace = self._noise_law() == "laplace"
        target = float(wanted["eps"]) * (steps if wanted.get("budget") == "per_step" else 1)
        self.same("target_epsilon", target)
        self.same("delta", 0.0 if is_laplace else wanted["delta"])
        stated, by = privacy["epsilon"], privacy["calibrated_by"]
        allowed = ("pure",) if is_laplace else ("prv", "rdp")
        if by not in allowed:
            self.say(f"calibrated_by: expected {' or '.join(allowed)}; privacy.json says {by}")
            return
        if not all(0 < part.sigma < math.inf for part in parts):
            return self.say(f"noise_multiplier: expected > 0; got {privacy['noise_multiplier']}")
        if not is_composable(parts, target):
            return self.say(f"epsilon: {steps:,} of this noise are too many to be composed")
        delta = privacy["delta"]
        ours = (
            laplace_epsilon(*parts, target)
            if is_laplace
            else gaussian_epsilon(parts, delta, target)
        )
        self.epsilon = ours
        try:
            due = epsilon_after(privacy, privacy["steps"], stated[by])
        except PRVFailed:
            due = None
        for finding in differences(stated, by, target, ours, due):
            self.say(finding)

    def _accountants(self, wanted: Mapping[str, Any], is_vote: bool) -> None:
        """Compare which accountants' epsilons are stated."""
        stated, by = set(self.privacy["epsilon"]), self.privacy["calibrated_by"]
        if not wanted["noise"]:
            self.same("calibrated_by", "none")
        if self._noise_law() == "laplace":
            due = {"pure", "pld"}
        else:
            due = {"rdp"} if is_vote or by == "rdp" else {"prv", "rdp"}
        if not due <= stated <= {*due, *(["prv"] if is_vote else [])}:
            self.say(f"epsilon: expected those of {', '.join(sorted(due))}; got {sorted(stated)}")
        if is_vote:
            self.unchecked.append("privacy.json epsilon prv: where it is not stated, that it fails")
        elif by == "prv":
            self.unchecked.append("privacy.json epsilon rdp: looser, it is held from below alone")
