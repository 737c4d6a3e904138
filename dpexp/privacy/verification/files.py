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
from dpexp.privacy.calibration import num_steps
from dpexp.privacy.pld import Part, gaussian_epsilon, laplace_epsilon, points
from dpexp.privacy.stated import Stated, public_examples, statement_of
from dpexp.privacy.verification import counts
from dpexp.privacy.verification.epsilons import ROUNDING, differences
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
from dpexp.records.predictions import HELD_OUT
from dpexp.records.sizes import test_set
from dpexp.types import one_line

MOST_COMPOSED = 10**8
"""Largest number of composed mechanisms, and of grid points (ours): more would take all memory."""


CORRELATION = {
    *("bands", "coefficients"),
    *("participation", "participation_prob", "participations"),
}
"""Entries of a certificate on correlated noise."""


ENTRIES_OF_HELD_OUT = {"examples", "of", "fingerprint", "note"}
NOTES_ON_HELD_OUT = (
    words.HELD_OUT,
    "left out of training and of N: as of a test set, nothing is claimed of them",
)
"""What a certificate says of them, and what older ones do."""

TESTED = "test_accuracy"
"""The metric of PATE's students."""

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


class _Check:
    """Comparison of one certificate with its config."""

    def __init__(
        self,
        config: Mapping[str, Any],
        result: Mapping[str, Any],
        privacy: Mapping[str, Any],
        tests: Mapping[str, int],
        is_old: bool,
    ) -> None:
        self.findings: list[str] = []
        self.unchecked: list[str] = []
        self.epsilon: float | None = None
        self._config, self._result, self._privacy = config, result, privacy
        self._tests = tests
        self._is_older = is_old

    def say(self, finding: str) -> None:
        """Add a finding."""
        self.findings.append(" ".join(finding.split()))

    def run(self) -> None:
        """Make every comparison."""
        wanted, is_vote = self._config["privacy"], self._config.get("loop") == VOTING
        self._statement = statement_of(self._config)
        self._due: Sequence[Stated] = ()
        if not is_vote:
            size = sum(self._privacy["trainable"].values())
            self._due = self._statement.releases(self._config, size)
        if is_vote != (self._statement.votes is not None):
            self.say(f"loop: {self._config.get('loop', TRAINING)} is not the method's")
        self._same("mechanism", words.CONFIDENT_GNMAX if is_vote else None)
        self._same("neighbouring", words.VOTING_NEIGHBOURS if is_vote else words.NEIGHBOURS)
        self._names(is_vote)
        self._public(is_vote)
        self._holdout()
        self._words(wanted, is_vote)
        self.unchecked += _said_twice(self._config)
        self._same("dataset_size", self._size())
        differing, unread = counts.compare(self._config, self._result, self._tests)
        self.findings += differing
        self.unchecked += unread
        parts = self._votes() if is_vote else self._steps(wanted)
        self._unknown_keys(is_vote)
        self._accountants(wanted, is_vote)
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
        bands = self._bands()
        for key, value in {
            "sampling": wanted["sampling"] if bands is None else words.CYCLIC,
            "batch_size": batch,
            "q": batch / size,
            "steps": steps,
            "planned_steps": steps,
            "noise_draws": steps if wanted["noise"] else 0,
        }.items():
            self._same(key, value)
        self._same("steps", privacy["steps"], self._result, "result.json ")
        self._same("epochs", config["epochs"], self._result, "result.json ")
        if privacy.get("lost_steps"):
            self.unchecked.append("privacy.json lost_steps: how many steps were lost to a kill")
        if not 0 <= privacy.get("lost_steps", 0) <= steps:
            self.say(f"lost_steps: expected from 0 to {steps}; got {privacy['lost_steps']}")
        self._releases()
        sigma = self._effective(privacy["noise_multiplier"])
        self._same("effective_noise_multiplier", sigma)
        if not wanted["noise"]:
            self._same("noise_multiplier", 0.0)
        if bands is None:
            return (Part(batch / size, sigma, steps),)
        return (Part(min(1.0, bands * batch / size), sigma, math.ceil(steps / bands)),)

    def _bands(self) -> int | None:
        """Compare correlated noise with the config; return how many bands it has, None without."""
        chosen, stated = self._config.get("correlation"), self._privacy.get("correlation")
        if chosen is None or stated is None:
            if (chosen is None) != (stated is None):
                self.say("correlation: config.yaml and privacy.json disagree on whether noise is")
            return None
        size, batch = self._size(), self._config["batch_size"]
        coefficients, bands = stated["coefficients"], stated["bands"]
        steps = self._privacy["steps"]
        if chosen["bands"] != "auto":
            self._same("bands", min(chosen["bands"], steps), stated, "correlation ")
        if not (isinstance(bands, int) and 1 <= len(coefficients) <= bands):
            self.say(f"correlation: {len(coefficients)} coefficients reach beyond {bands} bands")
            return None
        self.unchecked.append(
            "privacy.json correlation coefficients: that they are the best; all of norm 1 are as "
            "private"
        )
        if not coefficients[0] > 0:
            self.say(f"correlation: the first coefficient is {coefficients[0]}; it must be above 0")
        if unknown := sorted(stated.keys() - CORRELATION):
            self.say(f"correlation: {', '.join(unknown)} is nothing that a certificate has")
        if not math.hypot(*coefficients) <= 1 + ROUNDING:
            self.say(
                f"correlation: coefficients of norm {math.hypot(*coefficients):.6g}, by which an "
                "example's clip norm is multiplied"
            )
        if bands * batch > size * (1 + ROUNDING):
            self.say(f"correlation: {bands} batches of {batch} are more than {size} examples")
        for key, value in {
            "participation_prob": min(1.0, bands * batch / size),
            "participations": math.ceil(steps / bands),
            "participation": words.PARTICIPATION,
        }.items():
            self._same(key, value, stated, "correlation ")
        return bands

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
        expected, stated = self._due, self._privacy["releases"]
        if len(stated) != len(expected):
            self.say(f"releases: {len(expected)} leave at a step; privacy.json names {len(stated)}")
        for release, due in zip(stated, expected, strict=False):
            place = f"release {release['name']}, "
            if due.name is not None:
                self._same("name", due.name, release, place)
            self._same("clip_norm", due.clip_norm, release, place)
            self._same("sensitivity", due.sensitivity, release, place)
            self._same("noise_multiplier", due.noise_multiplier, release, place)
            self._same("noise", due.noise, release, place)
            self._same("clip", due.clip, release, place)
            if due.dimension is not None:
                self._same("dimension", due.dimension, release, place)
        if any(due.dimension is None for due in expected):
            self.unchecked.append("privacy.json releases' dimensions")

    def _votes(self) -> tuple[Part, ...]:
        config, privacy, method = self._config, self._privacy, self._config["method"]
        check, votes = privacy["releases"]
        std = privacy["noise_multiplier"]
        self._same("sampling", words.NOT_SAMPLED)
        self._same("q", 1.0)
        votes_of = self._statement.votes
        assert votes_of is not None  # otherwise `_steps` checks it
        due = votes_of(method, self._available())
        counts = privacy["steps"], privacy["answers"]
        for release, count, stated in zip((check, votes), counts, due, strict=True):
            place = f"release {stated.name}, "
            self._same("name", stated.name, release, place)
            self._same("sensitivity", stated.sensitivity, release, place)
            self._same("noise_std", std * stated.noise, release, place)
            self._same("drawn", count if config["privacy"]["noise"] else 0, release, place)
            self._same("at_most", stated.at_most, release, place)
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
        self._same("effective_noise_multiplier", 1 / joint if joint else 0.0)
        self.unchecked.append("privacy.json releases' dimensions")
        self._same("noise_draws", check["drawn"] + votes["drawn"])
        self._same("threshold", method["threshold"] * method["teachers"])
        self._same("asked", privacy["steps"], self._result, "result.json ")
        self._same("answered", privacy["answers"], self._result, "result.json ")
        if not config["privacy"]["noise"]:
            self._same("noise_multiplier", 0.0)
            return ()
        return tuple(
            Part(1.0, release["noise_std"] / stated.sensitivity, release["at_most"])
            for release, stated in zip((check, votes), due, strict=True)
        )

    def _available(self) -> int | None:
        """Return how many public inputs teachers may be asked about; None if unknown."""
        stated, tests = self._privacy.get("public"), test_set(self._config, TESTED)
        if isinstance(stated, Mapping):
            return stated["examples"]
        if tests is None or self._config["method"]["public"] != "test-half":
            return None
        return tests // 2

    def _names(self, is_vote: bool) -> None:
        config, privacy, result = self._config, self._privacy, self._result
        if both := sorted(set(privacy["trainable"]) & set(privacy["frozen"])):
            self.say(f"trainable and frozen: both name {', '.join(both)}")
        for group in ("method", "model", "task"):
            self._same(group, config[group]["name"], result, "result.json ")
        if result.get("profile") != profile_of(config):  # older ones of one's own data say paper
            self._same("profile", config["profile"]["name"], result, "result.json ")
        if WEIGHTS in privacy:
            self._same(WEIGHTS, result.get(WEIGHTS))
        else:
            self.unchecked.append(f"privacy.json {WEIGHTS}: missing, as in older records")
        self._same("seed", config["seed"], result, "result.json ")
        self._same("delta", privacy["delta"], result, "result.json ")
        self._same("eps", privacy["target_epsilon"], result, "result.json ")
        if "eps" not in result:
            self.say("result.json eps: missing")
        self.unchecked.append(NAMES)

    def _public(self, is_vote: bool) -> None:
        """Compare the public examples."""
        config, stated = self._config, self._privacy.get("public")
        if is_vote:
            takes, needs = config["method"]["public"] == "task", 1
            due = (config["public"] if takes else {"name": "test-half"}) if stated else None
            if stated is None and self._is_older:
                self.unchecked.append("privacy.json public: missing, as in older records")
            elif stated is None:
                self.say("public: the examples that teachers were asked about are not named")
        else:
            needs = public_examples(config)
            due = config["public"] if needs else None
            is_known = self._statement.is_known and not trusted(config)
            if stated is None and needs:
                self.say(f"public: {needs} public examples are taken; privacy.json names none")
            elif stated is not None and not needs and is_known:
                self.say("public: no public examples are taken; privacy.json names some")
            elif stated is not None and not needs:
                due, needs = config["public"], 1
        if stated is None or due is None:
            return
        self._same("name", due["name"], stated, "public ")
        if "size" in due:
            self._same("examples", due["size"], stated, "public ")
        if not stated["examples"] >= needs:
            self.say(f"public examples: expected {needs} or more; got {stated['examples']}")
        if is_vote and due["name"] == "test-half":
            self._test_half(stated["examples"])
        self.unchecked.append("privacy.json public fingerprint: of which examples")

    def _holdout(self) -> None:
        """Compare what is said of the training examples that were left out."""
        chosen, stated = self._config.get("holdout"), self._privacy.get("holdout")
        if chosen is None or stated is None:
            if (chosen is None) != (stated is None):
                self.say("holdout: config.yaml and privacy.json disagree on whether there is one")
            return
        size = chosen["size"]
        self._same("examples", size, stated, "holdout ")
        self._same("of", self._config["task"]["dataset_size"] + size, stated, "holdout ")
        self._same("holdout_fingerprint", stated["fingerprint"], self._result, "result.json ")
        if stated["note"] not in NOTES_ON_HELD_OUT:
            self.say(f"holdout note: '{stated['note']}' is nothing that a certificate says")
        if unknown := sorted(stated.keys() - ENTRIES_OF_HELD_OUT):
            self.say(f"holdout: {', '.join(unknown)} is nothing that a certificate has")
        self.unchecked.append("privacy.json holdout fingerprint: of which examples")

    def _test_half(self, examples: int) -> None:
        """Compare the public half of a test set with the other half, or with its declared size."""
        tests = test_set(self._config, TESTED)
        left = {count for name, count in self._tests.items() if not name.startswith(HELD_OUT)}
        if tests is not None:
            self._same("examples", tests // 2, self._privacy["public"], "public ")
        if left and not left <= {examples, examples + 1}:
            self.say(f"public examples: {examples} of a half; the other one has {max(left)}")

    def _words(self, wanted: Mapping[str, Any], is_vote: bool) -> None:
        said, config = self._privacy["deviations"], self._config
        attacked = [key for key in ("attack", "audit") if key in config]
        due = due_words(config, self._privacy, is_vote)
        for word, is_due in due.items():
            if word == words.UNRELEASED and self._is_older and is_due and word not in said:
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
        self._same("replayable", wanted["noise"] != "secret")

    def _unknown_keys(self, is_vote: bool) -> None:
        """List a certificate's further entries, and report unknown ones."""
        if remarks := [key for key in REMARKS if key in self._privacy]:
            self.unchecked.append(f"privacy.json {', '.join(remarks)}")
        known = {*OF_STEPS, *OF_BOTH} if not is_vote else {*OF_VOTES, *OF_BOTH}
        others = sorted(set(map(str, self._privacy)) - known - {*REMARKS})
        if others and not trusted(self._config):
            self.say(f"privacy.json: {', '.join(others)} is nothing that a certificate has")

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
            return self.say(f"noise_multiplier: expected > 0; got {privacy['noise_multiplier']}")
        if steps > MOST_COMPOSED or points(parts, target) > MOST_COMPOSED:
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
        stated, by = set(self._privacy["epsilon"]), self._privacy["calibrated_by"]
        if not wanted["noise"]:
            self._same("calibrated_by", "none")
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

    def _same(
        self,
        key: str,
        expected: Any,
        where: Mapping[str, Any] | None = None,
        place: str = "",
    ) -> None:
        """Compare an entry, numbers up to rounding, and add a finding if it differs."""
        got = (self._privacy if where is None else where).get(key)
        if isinstance(got, bool) or isinstance(expected, bool):
            is_same = got is expected
        elif isinstance(got, int | float) and isinstance(expected, int | float):
            is_same = math.isclose(got, expected, rel_tol=ROUNDING)
        else:
            is_same = got == expected
        if not is_same:
            self.say(f"{place}{key}: expected {expected}; got {got}")
