"""Try settings on held-out training examples, so that the test set chooses nothing.

    python -m scripts.search method=rgp,lsg task=digits optimizer.lr=1,2,4 method.head_factor=0.1,1

Takes Hydra overrides, of which those with commas are tried in all combinations, each by one run on
four fifths of the training set (profile=embedded unless named), judged on the fifth that is left.
The same fifth for all: which examples it has, a fixed seed decides. The batch is four fifths of the
setting's, so that sampling rate, steps and noise multiplier stay. The test set is never looked at;
nothing is recorded, and a line a run is printed. As hyperparameters they are not accounted for
(docs/privacy.md). Exit code: 0; 2 for a mistake in what was asked.
"""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch

from dpexp import records
from dpexp.cli.arguments import exit_code_of, split
from dpexp.cli.composition import compose
from dpexp.cli.parts import build_parts
from dpexp.data import Task
from dpexp.distributed.ranks import Ranks, choose_device
from dpexp.training.train import Parts, train
from dpexp.types import ConfigError

COMMON = ("profile=embedded",)
SHARE, SEED = 0.2, 20
"""How much of a training set is held out, and what decides which examples."""


def held_out(task: Task) -> Task:
    """Put some of a task's training examples in the place of its test set."""
    count = round(SHARE * len(task.train))
    order = torch.randperm(len(task.train), generator=torch.Generator().manual_seed(SEED))
    judged, kept = task.train.take(order[:count]), task.train.take(order[count:])
    return replace(task, train=kept, test=judged, dataset_size=len(kept), also={})


def prepared(words: Sequence[str]) -> tuple[dict[str, Any], Parts]:
    """Compose a run on what is not held out: its sampling rate, steps and noise are the table's.

    Raises:
        ConfigError: for a wrong config, and for a method with a loop of its own, as PATE, whose
            students learn from a part of the test set.
    """
    config = compose(words)
    if "loop" in config:
        raise ConfigError(
            f"Expected a method of the one training loop; method={config['method']['name']} has "
            "its own, which learns from a part of the test set. Set another method."
        )
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
    """Train once by these overrides; give the metric on what was held out, NaN if there is none.

    Raises:
        ConfigError: as `prepared`.
    """
    config, parts = prepared(words)
    with tempfile.TemporaryDirectory() as folder:
        config["results"] = folder
        train(config, parts, Ranks(0, 1, choose_device(config["device"])))
        result: dict[str, Any] = records.find(folder, config).result
    found = result[result["metric"]]
    return math.nan if found is None else float(found)


def combinations(words: Sequence[str]) -> list[tuple[str, ...]]:
    """Return every choice of one value a word; lists and mappings are one value."""
    choices = []
    for word in words:
        key, equals, values = word.partition("=")
        given = [values] if set("[{") & set(values) else values.split(",")
        choices.append([f"{key}{equals}{value}" for value in given])
    return list(product(*choices))


def main(words: Sequence[str]) -> int:
    """Do what the command line asks; give the exit code."""
    return exit_code_of(_main, words, __doc__, of_records=2)


def _main(words: Sequence[str]) -> int:
    logging.getLogger("dpexp").setLevel(logging.WARNING)
    _, user = split(words, {})
    for chosen in combinations(user):
        print(*chosen, f"{attempt([*COMMON, *chosen]):.1f}", flush=True)
    return 0
