"""Methods beside recipes, several at once: what runs verifies, all else is refused in one line."""

import random
from itertools import combinations
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dpexp.distributed.processes import launch
from dpexp.records import locate
from tests.products import (
    CHOICES,
    METHODS,
    PAIRS,
    TASKS,
    covering,
    everything,
    tried,
    weights_of,
    words_of,
)
from tests.runs import CONFIGS, one_thread  # noqa: F401 (a fixture)

LARGEST = max(map(len, covering(PAIRS)))


def test_a_covering_holds_every_pair_and_no_other():
    rows = covering(PAIRS)
    assert {pair for row in rows for pair in combinations(row, 2)} == {*PAIRS}
    assert len(PAIRS) == 39 and len(rows) < 20 and LARGEST == 5


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(3))
def test_a_few_of_them(seed, tmp_path):
    """By themselves and beside as many recipes as there are groups, where they take them."""
    rng = random.Random(seed)
    task, method = rng.choice([*TASKS]), rng.choice([*METHODS])
    row = rng.choice(covering(PAIRS, seed))
    outcome = tried(words_of(task, method, row), tmp_path)
    while isinstance(outcome, str) and row:  # without what it does not take
        row = row[:-1]
        outcome = tried(words_of(task, method, row), tmp_path)
    assert isinstance(outcome, str) or weights_of(outcome, row)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("method", METHODS)
def test_all_of_them(task, method, tmp_path):
    ran, refused = everything(task, method, tmp_path)
    print(f"\n{task} {method}: {len(ran)} ran, {len(refused)} refused")
    for recipes, line in refused.items():
        print("  ", *recipes, "|", line)
    assert len(ran) + len(refused) >= 1 + len(CHOICES)


# Ranks


def on_ranks(ranks, config):
    """Do all jobs; the first rank notes what was refused."""
    torch.set_num_threads(1)
    for number, words in enumerate(config["jobs"]):
        outcome = tried(words, Path(config["folder"]) / str(number), ranks)
        if ranks.is_first:
            said = outcome if isinstance(outcome, str) else ""
            (Path(config["folder"]) / f"{number}.txt").write_text(said)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_on_two_ranks_they_train_the_weights_that_one_process_does(tmp_path):
    """Each method beside three sets of recipes, among which is every pair for some method."""
    rows = [row for row in covering(PAIRS) if "secret" not in row]
    chosen = [
        (task, method, rows[(3 * at + k) % len(rows)])
        for at, method in enumerate(METHODS)
        for k, task in enumerate(("images", "images", "texts"))
        if method != "pate"  # takes one rank
    ]
    words = [[*words_of(*each), "weights=keep"] for each in chosen]
    launch(on_ranks, {"device": "cpu", "ranks": 2, "folder": str(tmp_path), "jobs": words})
    far = {}
    for number, (each, said) in enumerate(zip(chosen, words, strict=True)):
        alone = tried(said, tmp_path / "alone")
        refused = (tmp_path / f"{number}.txt").read_text()
        if isinstance(alone, str) or refused:
            assert refused == alone, each
            continue
        config = CONFIGS.compose_anew([*said, f"results={tmp_path / str(number)}"])
        shared = locate(config["results"], config)
        weights_of(shared, each[2])
        one, other = (load_file(each / "model.safetensors") for each in (alone, shared))
        size = sum(float(w.double().square().sum()) for w in one.values())
        moved = sum(float((one[k].double() - other[k].double()).square().sum()) for k in one)
        far[each] = (moved / size) ** 0.5
    print(*(f"{f:.1e} {each}" for each, f in far.items()), sep="\n")
    assert len(far) > len(chosen) / 2
    assert max(far.values()) < 1e-4, {each: f for each, f in far.items() if f >= 1e-4}
