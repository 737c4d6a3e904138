"""Attack the clip bound: does any example move a clipped sum by more than its clip norm?

make attack [ARGS="seconds=3600 seed=1"]
python -m scripts.attack only="linear,RGP" seconds=60

Hill climbing over every rule and form of per-example gradients, and over whole private steps of
every method (`dpexp.attacks.influence`). A line each: the furthest that an example was found to
move its sum, in clip norms C; the same among examples that were summed in the model's precision;
how many were tried; the seed. Where more than C is found, what the example was made from follows.

Its words, each WORD=VALUE:

    seconds=600     for all together, each its share
    seed=0          of the search; each line prints its own
    only=A,B        those whose names hold one of these

Exit code: 0 if none moves its sum by more than (1 + 1e-6) C, 1 if one does, 2 for a mistake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dpexp.attacks.influence import Target, climb
from dpexp.attacks.influence_forms import FORMS
from dpexp.attacks.influence_networks import NETWORKS
from dpexp.cli.arguments import exit_code_of, listed, only, positive, whole
from dpexp.types import ConfigError

ALLOWED = 1 + 1e-6
TARGETS: Mapping[str, Target] = {**FORMS, **NETWORKS}
READERS = {"seconds": positive, "seed": whole(0), "only": listed}


def main(words: Sequence[str]) -> int:
    """Do what the command line asks; give the exit code."""
    return exit_code_of(_main, words, __doc__)


def _main(words: Sequence[str]) -> int:
    asked = {"seconds": 600.0, "seed": 0, "only": ("",), **only(words, READERS)}
    chosen = [name for name in TARGETS if any(part in name for part in asked["only"])]
    if not chosen:
        raise ConfigError(
            f"Expected only= to name some of: {'; '.join(TARGETS)}; got {','.join(asked['only'])}."
        )
    worst = 0.0
    print(f"{'':38}{'moved, C':>12}{'in float32':>12}{'tried':>8}{'seed':>12}")
    for place, name in enumerate(chosen):
        seed = asked["seed"] * len(TARGETS) + place
        found = climb(TARGETS[name], asked["seconds"] / len(chosen), seed)
        line = f"{name:38}{found.moved:12.8f}{found.calm:12.8f}{found.tried:8}{seed:12}"
        print(line, flush=True)
        if found.moved > ALLOWED:
            print(f"    {found.words()}, seed of the example {found.seed}", flush=True)
        worst = max(worst, found.moved)
    print(f"worst: {worst:.8f} C; allowed: {ALLOWED} C")
    return int(worst > ALLOWED)
