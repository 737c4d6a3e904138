"""What a certificate says of correlated noise, beside its config."""

from __future__ import annotations

import math

from dpexp.privacy import certificate as words
from dpexp.privacy.verification.comparison import Comparison
from dpexp.privacy.verification.epsilons import ROUNDING

CORRELATION = {
    *("bands", "coefficients"),
    *("participation", "participation_prob", "participations"),
}
"""Entries of a certificate on correlated noise."""


def bands_of(check: Comparison) -> int | None:
    """Compare correlated noise with the config; return how many bands it has, None without."""
    chosen, stated = check.config.get("correlation"), check.privacy.get("correlation")
    if chosen is None or stated is None:
        if (chosen is None) != (stated is None):
            check.say("correlation: config.yaml and privacy.json disagree on whether noise is")
        return None
    size, batch = check.size, check.config["batch_size"]
    coefficients, bands = stated["coefficients"], stated["bands"]
    steps = check.privacy["steps"]
    if chosen["bands"] != "auto":
        check.same("bands", min(chosen["bands"], steps), stated, "correlation ")
    if not (isinstance(bands, int) and 1 <= len(coefficients) <= bands):
        check.say(f"correlation: {len(coefficients)} coefficients reach beyond {bands} bands")
        return None
    check.unchecked.append(
        "privacy.json correlation coefficients: that they are the best; all of norm 1 are as "
        "private"
    )
    if not coefficients[0] > 0:
        check.say(f"correlation: the first coefficient is {coefficients[0]}; it must be above 0")
    if unknown := sorted(stated.keys() - CORRELATION):
        check.say(f"correlation: {', '.join(unknown)} is nothing that a certificate has")
    if not math.isclose(norm := math.hypot(*coefficients), 1, rel_tol=ROUNDING):
        check.say(
            f"correlation: coefficients of norm {norm:.6g}, by which an example's clip norm is "
            "multiplied; those of a run have norm 1"
        )
    if bands * batch > size * (1 + ROUNDING):
        check.say(f"correlation: {bands} batches of {batch} are more than {size} examples")
    for key, value in {
        "participation_prob": min(1.0, bands * batch / size),
        "participations": math.ceil(steps / bands),
        "participation": words.PARTICIPATION,
    }.items():
        check.same(key, value, stated, "correlation ")
    return bands
