"""Hold a method to what it declares: what one example can move, and what else of it is known.

    python -m scripts.check_method method=rgp
    python -m scripts.check_method method=mine model=cnn task=digits tries=100

Takes Hydra overrides (task=digits profile=embedded unless named), noise and clipping on, and runs
the method's first steps on examples of the test set and on made-up sums, in float64 without noise
and dropout: does one example more, adversarial ones among them, move what is released by no more
than the declared sensitivity, in blocks of one make; and is nothing else known of the examples than
what is released? What passes is not proved; what differs is a counterexample. See
`dpexp.attacks.soundness`. Its own words:

    tries=20            examples that a climb tries from the worst one found
    climbs=50           steps from each of the worst made-up sums

Exit code: 0 if all holds, 1 if something does not, 2 for a mistake.
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
    """Do what the command line asks; give the exit code."""
    return exit_code_of(_main, words, __doc__, of_records=2)


def _main(words: Sequence[str]) -> int:
    logging.getLogger("dpexp").setLevel(logging.WARNING)
    own, user = split(words, READERS)
    config = compose([*COMMON, *user])
    if "precision" in config["model"]:  # what bfloat16 rounds would hide what is looked for
        config["model"]["precision"] = "float32"
    parts = build_parts(config, ranks.choose_device(config["device"]))
    found = check(parts, config["privacy"]["clip_norm"], seed=config["seed"], **own)
    for line in lines(config["method"]["name"], found):
        print(line)
    return 1 if found.findings else 0


def lines(name: str, found: Verdict) -> list[str]:
    """Say what was found of a method, a line each."""
    if found.findings:
        return [f"{name}: differs: {finding}" for finding in found.findings]
    worst = found.worst
    return [
        f"{name}: pass: no neighbours found moved a release by more than {worst.ratio:.4g} of its "
        f"declared sensitivity ({worst.release}: {worst.neighbours}), and nothing but releases is "
        "known"
    ]
