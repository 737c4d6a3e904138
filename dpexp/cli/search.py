"""Compare settings on held-out training examples, never on the test set.

    python -m scripts.search method=rgp,lsg task=digits optimizer.lr=1,2,4 method.head_factor=0.1,1

Takes Hydra overrides (profile=embedded unless named). Values separated by commas are tried in all
combinations, with one run each. A run trains on four fifths of the training set and is evaluated on
the other fifth; a fixed seed selects it, the same for all runs. The batch size is four fifths of
the setting's, so that sampling rate, steps and noise multiplier stay. The test set is never used.
Nothing is recorded, but a run that was interrupted goes on from its last checkpoint when it is
asked for again. Runs go side by side, one a core as far as memory goes, or one on a GPU; workers=2
sets how many. Each prints a line as it ends, with its accuracy in percent, or with an error's name
and value; less of an error is better. The epsilon does not account for this choice of
hyperparameters (docs/privacy/index.md). Exit code: 0; 2 for a user error.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from dpexp.cli import idle, many, validate
from dpexp.cli.arguments import exit_code_of, split, whole
from dpexp.cli.choosing import cost_of_trials
from dpexp.cli.composition import compose
from dpexp.cli.parts import build_parts, require_begin
from dpexp.distributed.pool import Ended
from dpexp.types import ConfigError
from dpexp.warned import warn_caller

if TYPE_CHECKING:
    from dpexp.data import Task
    from dpexp.training.parts import Parts

COMMON = ("profile=embedded",)
SHARE, SEED = 0.2, 20
"""Share of the training set that is held out, and the seed that selects it."""

ERRORS = ("loss", "error", "mse", "mae", "error_rate", "perplexity", "mape", "nll")
"""How the name of a metric ends of which less is better."""


def held_out(task: Task) -> Task:
    """Replace a task's test set by held-out training examples; the metric is named for them."""
    import torch

    count = round(SHARE * len(task.train))
    order = torch.randperm(len(task.train), generator=torch.Generator().manual_seed(SEED))
    judged, kept = task.train.take(order[:count]), task.train.take(order[count:])
    named = replace(task, metric=task.holdout_metric, also={}, holdout=None)
    return replace(named, train=kept, test=judged, dataset_size=len(kept))


def require_common_loop(config: Mapping[str, Any]) -> None:
    """Refuse a method with its own loop, such as PATE, whose students learn from test examples.

    Raises:
        ConfigError: naming the method.
    """
    if "loop" in config:
        raise ConfigError(
            f"Expected a method of the common training loop; method={config['method']['name']} has "
            "its own, which learns from a part of the test set. Set another method."
        )


def prepared(config: dict[str, Any]) -> tuple[dict[str, Any], Parts]:
    """Return a run without the held-out examples; sampling rate, steps and noise are the table's.

    Args:
        config: of the run on the whole training set; it is changed.

    Raises:
        ConfigError: for an invalid config, or a method with its own loop, such as PATE, whose
            students learn from part of the test set.
    """
    from dpexp.distributed.ranks import choose_device

    require_common_loop(config)
    size, method = config["task"]["dataset_size"], config["method"]
    kept = size - round(SHARE * size)
    config["batch_size"] = round(config["batch_size"] * kept / size)
    config["eval_every"] = config["epochs"]
    smaller = {"dataset_size": kept, "batch_size": config["batch_size"]}
    config["method"] = {**method, **{key: smaller[key] for key in smaller.keys() & method.keys()}}
    parts = build_parts(config, choose_device(config["device"]))
    config["task"] = {**config["task"], "dataset_size": kept}
    return config, replace(parts, task=held_out(parts.task))


def attempt(words: Sequence[str]) -> float:
    """Train one run; return its metric on the held-out examples, NaN if it has none.

    Raises:
        ConfigError: as `prepared`.
    """
    return score(*prepared(compose(words)))


def score(config: dict[str, Any], parts: Parts) -> float:
    """Train a run that is `prepared`; return its metric on the held-out examples, or NaN."""
    from dpexp.cli.trials import result_of
    from dpexp.distributed.ranks import choose_device

    task, size = parts.task, len(parts.task.train) + len(parts.task.test)
    whole = {**config, "task": {**config["task"], "dataset_size": size}}

    def again() -> Parts:
        return replace(build_parts(whole, choose_device(config["device"])), task=task)

    result = result_of(config, parts, again, kind=f"held-out-{SHARE}-{SEED}")
    value = result[result["metric"]]
    return math.nan if value is None else float(value)


def is_error(metric: str) -> bool:
    """Return whether less of a metric is better."""
    return metric.endswith(ERRORS)


def combinations(words: Sequence[str]) -> list[tuple[str, ...]]:
    """Return all combinations of the words' values, each once; a list or mapping is one value."""
    choices = []
    for word in words:
        key, equals, values = word.partition("=")
        given = [values] if set("[{") & set(values) else values.split(",")
        choices.append([f"{key}{equals}{value}" for value in given])
    return list(dict.fromkeys(product(*choices)))


def main(words: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    return exit_code_of(_main, words, __doc__, of_records=2, is_quiet=True)


def _main(words: Sequence[str]) -> int:
    own, overrides = split(words, {"workers": whole(1)})
    # A mistake in the last combination costs no run of the first.
    tried = [(chosen, compose([*COMMON, *chosen])) for chosen in combinations(overrides)]
    for _, config in tried:
        require_common_loop(config)
        validate.check_values(config)
    if len(tried) > 1:
        require_begin(config for _, config in tried)
    for chosen, composed in tried:
        idle.warn(composed, chosen)
        typed = idle.typed(chosen)
        if not composed["privacy"]["noise"] and (eps := typed.get("eps", typed.get("privacy.eps"))):
            warn_caller(f"{eps} has no effect: noise is off, so is privacy.")

    def take(chosen: Sequence[str], ended: Ended, say: many.Say) -> None:
        if ended.error is not None:
            raise many.named(" ".join(chosen), ended.error)
        say(ended.value)  # at once, as nothing else keeps it: Ctrl-C or another's mistake ends all

    num = many.number([composed for _, composed in tried], own.get("workers"))
    many.each(_line, {chosen: chosen for chosen, _ in tried}, num, take)
    print(cost_of_trials(len(tried)), file=sys.stderr)
    return 0


def _line(chosen: Sequence[str]) -> str:
    """Train one run; return the line on it."""
    config, parts = prepared(compose([*COMMON, *chosen]))
    return " ".join((*chosen, said(score(config, parts), parts.task.metric)))


def said(found: float, metric: str) -> str:
    """Return a score in words; an error by its name and of any size, as less of it is better."""
    if not math.isfinite(found):
        return "diverged"
    return f"{metric} {found:.4g}" if is_error(metric) else f"{found:.1f}"
