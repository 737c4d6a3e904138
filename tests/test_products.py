"""Methods beside recipes, several at once: what runs verifies, all else is refused in one line."""

import random
from itertools import combinations
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dpexp.distributed.processes import launch
from dpexp.records import locate
from tests.marks import some_long
from tests.products import (
    CHOICES,
    METHODS,
    PAIRS,
    TASKS,
    as_many,
    covering,
    everything,
    tried,
    weights_of,
    words_of,
)
from tests.runs import CONFIGS, assert_same_run, killed, of, one_thread  # noqa: F401 (a fixture)

LARGEST = max(map(len, covering(PAIRS)))


def test_a_covering_holds_every_pair_and_no_other():
    rows = covering(PAIRS)
    assert {pair for row in rows for pair in combinations(row, 2)} == {*PAIRS}
    assert len(PAIRS) == 39 and len(rows) < 20 and LARGEST == 5


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", some_long(range(3), [1]))
def test_a_few_of_them(seed, tmp_path):
    """Beside as many recipes as there are groups, or the most of these that a method takes."""
    rng = random.Random(seed)
    task, method = rng.choice([*TASKS]), rng.choice([*METHODS])
    row, directory, refused = as_many(task, method, rng.choice(covering(PAIRS, seed)), tmp_path)
    assert weights_of(directory, row) if directory else () in refused


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("method", METHODS)
def test_all_of_them(task, method, tmp_path):
    """One that has the most recipes, killed and taken up, ends as it does undisturbed."""
    ran, refused = everything(task, method, tmp_path)
    print(f"\n{task} {method}: {len(ran)} ran, {len(refused)} refused")
    for recipes, line in refused.items():
        print("  ", *recipes, "|", line)
    assert len(ran) + len(refused) >= 1 + len(CHOICES)
    if ran and method != "pate":  # which has a loop of its own
        recipes = max((each for each in ran if "secret" not in each), key=len)
        words = words_of(task, method, recipes)
        there = killed(tmp_path / "again", *words, at=3, every=1)
        assert tried(words, tmp_path / "again") == there
        assert_same_run(of(there), of(ran[recipes]))


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
    """Each method beside the most that it takes of four sets of recipes.

    What is refused is left out: the first rank may refuse by itself, which ends a run's others.
    """
    rows = [row for row in covering(PAIRS) if "secret" not in row]
    jobs, expected = [], []
    for at, method in enumerate(METHODS):
        for k, task in enumerate(["images", "texts"] * 2):
            if method == "pate":  # takes one rank
                continue
            row, alone, _ = as_many(
                task, method, rows[(4 * at + k) % len(rows)], tmp_path / "alone", "weights=keep"
            )
            if alone:
                jobs.append([*words_of(task, method, row), "weights=keep"])
                expected.append((task, method, row, alone))
    launch(on_ranks, {"device": "cpu", "ranks": 2, "folder": str(tmp_path), "jobs": jobs})
    far = {}
    for number, (words, (*which, alone)) in enumerate(zip(jobs, expected, strict=True)):
        assert (tmp_path / f"{number}.txt").read_text() == "", which
        config = CONFIGS.compose_anew([*words, f"results={tmp_path / str(number)}"])
        shared = locate(config["results"], config)
        weights_of(shared, which[2])
        one, other = (load_file(each / "model.safetensors") for each in (alone, shared))
        size = sum(float(w.double().square().sum()) for w in one.values())
        moved = sum(float((one[k].double() - other[k].double()).square().sum()) for k in one)
        far[(moved / size) ** 0.5, *which] = number
    print(*(f"{each[0]:.1e} {each[1:]}" for each in sorted(far)), sep="\n")
    assert len(far) > len(METHODS)
    assert max(far)[0] < 1e-5
