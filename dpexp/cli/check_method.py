"""Check a method's declared sensitivities, and that it uses private examples only in releases.

    python -m scripts.check_method method=rgp
    python -m scripts.check_method method=mine model=cnn task=digits tries=100

Takes Hydra overrides (task=digits profile=embedded unless named), noise and clipping on, and runs
the method's first steps on examples of the test set and on made-up sums, in float64 without noise
and dropout. It checks that one more example, adversarial ones included, moves each release by no
more than the declared sensitivity, in blocks of the same kind, and that nothing but the releases
depends on the examples. A pass is no proof; a difference is a counterexample. See
`dpexp.attacks.soundness`. Its own words:

    tries=20            examples tried in a climb from the worst one found
    climbs=50           steps from each of the worst made-up sums

Exit code: 0 if every check passes, 1 if one fails, 2 for a user error.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dpexp.attacks.soundness import Verdict, check
from dpexp.cli.arguments import exit_code_of, split, whole
from dpexp.cli.composition import compose
from dpexp.cli.parts import build_parts
from dpexp.distributed import ranks

COMMON = ("task=digits", "profile=embedded")
READERS = {"tries": whole(0), "climbs": whole(0)}


def main(words: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    return exit_code_of(_main, words, __doc__, of_records=2)


def _main(words: Sequence[str]) -> int:
    logging.getLogger("dpexp").setLevel(logging.WARNING)
    own, overrides = split(words, READERS)
    config = compose([*COMMON, *overrides])
    if "precision" in config["model"]:  # bfloat16's rounding would hide differences
        config["model"]["precision"] = "float32"
    parts = build_parts(config, ranks.choose_device(config["device"]))
    verdict = check(parts, config["privacy"]["clip_norm"], seed=config["seed"], **own)
    for line in lines(config["method"]["name"], verdict):
        print(line)
    return 1 if verdict.findings else 0


def lines(name: str, verdict: Verdict) -> list[str]:
    """Return a method's findings, one per line, or a line that it passed."""
    if verdict.findings:
        return [f"{name}: differs: {finding}" for finding in verdict.findings]
    worst = verdict.worst
    return [
        f"{name}: pass: no neighbours found moved a release by more than {worst.ratio:.4g} of its "
        f"declared sensitivity ({worst.release}: {worst.neighbours}), and nothing but releases is "
        "known"
    ]
