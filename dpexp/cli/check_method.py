"""Check a method's declared sensitivities, and that it uses private examples only in releases.

    python -m scripts.check_method method=rgp
    python -m scripts.check_method method=mine model=cnn task=digits tries=100

Takes Hydra overrides (task=digits profile=embedded unless named), noise and clipping on, and runs
the method's first steps on examples of the test set and on made-up sums, in float64 without noise
and dropout. It checks that one more example, adversarial ones included, moves each release by no
more than the declared sensitivity, in blocks of the same kind, beside few examples, many or none,
with weights as they are, grown and shrunk, and that nothing but the releases depends on the
examples. Then it compares the declared releases
with those that the method's class states for verification, and plays the distinguishing game of
scripts.audit on the run's model: the lower bound on epsilon must not exceed the accounted one. A
pass is no proof; a difference is a counterexample. See `dpexp.attacks.soundness` and
docs/extend.md. Its own words:

    tries=20            examples tried in a climb from the worst one found
    climbs=50           steps from each of the worst made-up sums
    steps=N             of the method's; 12, or those of an epoch and two more, at most 40
    trials=200          trials of the game in each world; 0 plays none

Exit code: 0 if every check passes, 1 if one fails, 2 for a user error.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dpexp.cli import idle, validate
from dpexp.cli.arguments import exit_code_of, split, text, whole
from dpexp.cli.composition import compose
from dpexp.cli.parts import build_parts
from dpexp.privacy.stated import statement_of
from dpexp.records.rounded import at_least, at_most
from dpexp.training.progress import folded
from dpexp.types import counted

if TYPE_CHECKING:
    from dpexp.attacks.soundness import Verdict
    from dpexp.training.parts import Parts


def _trials(word: str) -> int:
    if text(word) == "0":
        return 0
    return whole(4)(word)


CONFIDENCE = 0.95
STEPS = 2
"""Steps of a trial (ours)."""

MOST = 40
"""Steps of the method that are looked at where none are named (ours)."""

COMMON = ("task=digits", "profile=embedded")
APART = ("augmentation", "averaging", "holdout", "attack", "audit", "analysis", "tracking")
"""Parts of a run that come before an example's gradient, after the step, or look at the run."""

OF_THE_RUN = ("optimizer", "schedule", "eval_every", "ranks", "weights", "checkpoint", "wandb")
"""Settings of what comes after the step, or of how a run is done, which every run has."""

READERS = {"tries": whole(0), "climbs": whole(0), "trials": _trials, "steps": whole(2)}


def main(words: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    return exit_code_of(_main, words, __doc__, of_records=2, is_quiet=True)


def _main(words: Sequence[str]) -> int:
    own, overrides = split(words, READERS)
    trials = own.pop("trials", 200)
    config = compose([*COMMON, *overrides])
    validate.check_values(config)  # a mistake does not wait for torch
    idle.warn(config, overrides)
    from dpexp.attacks.soundness import check
    from dpexp.distributed import ranks

    if "precision" in config["model"]:  # bfloat16's rounding would hide differences
        config["model"]["precision"] = "float32"
    parts = build_parts(config, ranks.choose_device(config["device"]))
    own.setdefault("steps", _steps_of(config, parts))
    verdict = check(parts, config["privacy"]["clip_norm"], seed=config["seed"], **own)
    for line in lines(config["method"]["name"], verdict):
        print(folded(line, sys.stdout), flush=True)
    if apart := _apart(config, overrides):
        print(f"not looked at, as no part of the method: {', '.join(apart)}")
    if trials and not _is_private(config):
        print("no game is played: it needs noise=true, clip=true and a budget, eps")
    name, findings = config["method"]["name"], list(_of_statement(config, parts))
    if trials and not (verdict.findings or findings) and _is_private(config):
        findings += _of_two_worlds(config, trials)
    for finding in findings:
        print(folded(f"{name}: differs: {finding}", sys.stdout))
    return 1 if verdict.findings or findings else 0


def _apart(config: Mapping[str, Any], overrides: Sequence[str]) -> list[str]:
    """Return what the check passes over: the parts that are chosen, and typed settings."""
    chosen = {part: config[part] for part in APART if config.get(part)}
    words = [f"{part}={node.get('name') or ','.join(node)}" for part, node in chosen.items()]
    typed = idle.typed(overrides)
    return words + [typed[place] for place in typed if place.partition(".")[0] in OF_THE_RUN]


def _steps_of(config: Mapping[str, Any], parts: Parts) -> int:
    """Return how many steps to look at: those of an epoch, after which a method may change."""
    from dpexp.attacks.soundness import LATER

    of_epoch = math.ceil(parts.task.dataset_size / config["batch_size"])
    return min(max(LATER, of_epoch + 2), MOST)


def _is_private(config: Mapping[str, Any]) -> bool:
    privacy = config["privacy"]
    return bool(privacy["noise"] and privacy["clip"] and privacy["eps"])


def _of_statement(config: Mapping[str, Any], parts: Parts) -> Iterator[str]:
    """Yield how the declared releases differ from those that the class states."""
    statement = statement_of(config)
    if not statement.is_known:
        yield (
            f"{config['method']['_target_']} states no releases, so that its runs are taken on "
            "trust. Add stated_releases to the class itself"
        )
        return
    trained = parts.method.trainable(parts.model)
    size = sum(parts.model.get_parameter(name).numel() for name in trained)
    due = statement.releases(config, size)
    state = parts.method.start(parts.model)
    declared = parts.method.releases(state, config["privacy"]["clip_norm"])
    if len(due) != len(declared):
        are = "is" if len(due) == 1 else "are"
        yield f"{counted(len(due), 'release')} {are} stated and {len(declared)} declared"
    for stated, release in zip(due, declared, strict=False):
        for field, value in vars(stated).items():
            actual = getattr(release, field)
            is_close = isinstance(value, float) and math.isclose(value, actual, rel_tol=1e-9)
            if value is not None and value != actual and not is_close:
                yield f"release {release.name}, {field}: {value} is stated and {actual} declared"


def _of_two_worlds(config: Mapping[str, Any], trials: int) -> list[str]:
    """Play the distinguishing game; print its bounds, and return what exceeds the account."""
    from dpexp.attacks import distinguishing
    from dpexp.attacks import trials as two_worlds
    from dpexp.distributed import ranks

    few = two_worlds.small(config)
    played = two_worlds.of_steps(
        few, build_parts(few, ranks.choose_device(few["device"])), trials, STEPS
    )
    assert played.epsilon is not None  # a private run
    found = distinguishing.judge(
        played.without,
        played.within,
        delta=played.delta,
        confidence=CONFIDENCE,
        is_gaussian=played.is_gaussian,
    )
    bounds = [found.epsilon_lower, found.epsilon_lower_gaussian or 0.0]
    line = (
        f"two worlds show epsilon >= {at_least(max(bounds), 2)} at {CONFIDENCE:.0%} confidence, "
        f"{at_most(played.epsilon, digits=3)} is accounted"
    )
    if max(bounds) > played.epsilon:
        return [line]
    print(folded(f"{config['method']['name']}: pass: {line}", sys.stdout))
    return []


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
