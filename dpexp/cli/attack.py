"""Attack the clip bound: does any example move a clipped sum by more than its clip norm?

make attack [ARGS="seconds=3600 seed=1"]
python -m scripts.attack only="linear,RGP" seconds=60

Hill climbing over every rule and form of per-example gradients, and over whole private steps of
every method (`dpexp.attacks.influence`). Each target prints a line:
the largest distance that an example moved its sum, in clip norms C; the same among examples summed
in the model's precision; the number of examples tried; the seed. Above C, a second line describes
the example.

Its words, each WORD=VALUE:

    seconds=600     in total, divided equally among the targets
    seed=0          of the search; each line prints the target's seed
    only=A,B        targets whose names contain one of these

Exit code: 0 if none moves its sum by more than (1 + 1e-6) C, 1 if one does, 2 for a mistake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dpexp.cli.arguments import Reader, exit_code_of, listed, only, positive, whole
from dpexp.types import ConfigError

if TYPE_CHECKING:
    from dpexp.attacks.influence import Target

ALLOWED = 1 + 1e-6
READERS: dict[str, Reader] = {"seconds": positive, "seed": whole(0), "only": listed}


def targets() -> Mapping[str, Target]:
    """Return what can be attacked, by name."""
    from dpexp.attacks.influence_forms import FORMS
    from dpexp.attacks.influence_networks import NETWORKS

    return {**FORMS, **NETWORKS}


def main(words: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    return exit_code_of(_main, words, __doc__)


def _main(words: Sequence[str]) -> int:
    given = {"seconds": 600.0, "seed": 0, "only": ("",), **only(words, READERS)}
    # A mistake in the words does not wait for torch.
    from dpexp.attacks.influence import climb

    every = targets()
    chosen = [name for name in every if any(part in name for part in given["only"])]
    if not chosen:
        raise ConfigError(
            f"Expected only= to name some of: {'; '.join(every)}; got {','.join(given['only'])}."
        )
    worst = 0.0
    print(f"{'':38}{'moved, C':>12}{'in float32':>12}{'tried':>8}{'seed':>12}")
    for place, name in enumerate(chosen):
        seed = given["seed"] * len(every) + place
        result = climb(every[name], given["seconds"] / len(chosen), seed)
        line = f"{name:38}{result.moved:12.8f}{result.calm:12.8f}{result.tried:8}{seed:12}"
        print(line, flush=True)
        if result.moved > ALLOWED:
            print(f"    {result.words()}, seed of the example {result.seed}", flush=True)
        worst = max(worst, result.moved)
    print(f"worst: {worst:.8f} C; allowed: {ALLOWED} C")
    return int(worst > ALLOWED)
