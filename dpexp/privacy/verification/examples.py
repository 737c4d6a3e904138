"""What a certificate says of public examples, and of those that were held out."""

from __future__ import annotations

from collections.abc import Mapping

from dpexp.privacy import certificate as words
from dpexp.privacy.stated import Statement, public_examples
from dpexp.privacy.verification.comparison import Comparison
from dpexp.privacy.verification.statements import trusted
from dpexp.records.predictions import HELD_OUT
from dpexp.records.sizes import test_set

ENTRIES_OF_HELD_OUT = {"examples", "of", "fingerprint", "note"}
NOTES_ON_HELD_OUT = (
    words.HELD_OUT,
    "left out of training and of N: as of a test set, nothing is claimed of them",
)
"""What a certificate says of them, and what older ones do."""

TESTED = "test_accuracy"
"""The metric of PATE's students."""


def compare_public(check: Comparison, statement: Statement, *, is_vote: bool) -> None:
    """Compare the public examples."""
    config, stated = check.config, check.privacy.get("public")
    if is_vote:
        takes, needs = config["method"]["public"] == "task", 1
        due = (config["public"] if takes else {"name": "test-half"}) if stated else None
        if stated is None and check.is_older:
            check.unchecked.append("privacy.json public: missing, as in older records")
        elif stated is None:
            check.say("public: the examples that teachers were asked about are not named")
    else:
        needs = public_examples(config)
        due = config["public"] if needs else None
        is_known = statement.is_known and not trusted(config)
        if stated is None and needs:
            check.say(f"public: {needs} public examples are taken; privacy.json names none")
        elif stated is not None and not needs and is_known:
            check.say("public: no public examples are taken; privacy.json names some")
        elif stated is not None and not needs:
            due, needs = config["public"], 1
    if stated is None or due is None:
        return
    check.same("name", due["name"], stated, "public ")
    if "size" in due:
        check.same("examples", due["size"], stated, "public ")
    if not stated["examples"] >= needs:
        check.say(f"public examples: expected {needs} or more; got {stated['examples']}")
    if is_vote and due["name"] == "test-half":
        _test_half(check, stated["examples"])
    check.unchecked.append("privacy.json public fingerprint: of which examples")


def _test_half(check: Comparison, examples: int) -> None:
    """Compare the public half of a test set with the other half, or with its declared size."""
    tests = test_set(check.config, TESTED)
    left = {count for name, count in check.tests.items() if not name.startswith(HELD_OUT)}
    if tests is not None:
        check.same("examples", tests // 2, check.privacy["public"], "public ")
    if left and not left <= {examples, examples + 1}:
        check.say(f"public examples: {examples} of a half; the other one has {max(left)}")


def available(check: Comparison) -> int | None:
    """Return how many public inputs teachers may be asked about; None if unknown."""
    stated, tests = check.privacy.get("public"), test_set(check.config, TESTED)
    if isinstance(stated, Mapping):
        return stated["examples"]
    if tests is None or check.config["method"]["public"] != "test-half":
        return None
    return tests // 2


def compare_held_out(check: Comparison) -> None:
    """Compare what is said of the training examples that were left out."""
    chosen, stated = check.config.get("holdout"), check.privacy.get("holdout")
    if chosen is None or stated is None:
        if (chosen is None) != (stated is None):
            check.say("holdout: config.yaml and privacy.json disagree on whether there is one")
        return
    size = chosen["size"]
    check.same("examples", size, stated, "holdout ")
    check.same("of", check.config["task"]["dataset_size"] + size, stated, "holdout ")
    check.same("holdout_fingerprint", stated["fingerprint"], check.result, "result.json ")
    if stated["note"] not in NOTES_ON_HELD_OUT:
        check.say(f"holdout note: '{stated['note']}' is nothing that a certificate says")
    if unknown := sorted(stated.keys() - ENTRIES_OF_HELD_OUT):
        check.say(f"holdout: {', '.join(unknown)} is nothing that a certificate has")
    check.unchecked.append("privacy.json holdout fingerprint: of which examples")
