"""What several tests do with runs and methods."""

import json
import shutil
import sys
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

import pytest
import torch
from torch import Tensor

from dpexp import cli, records
from dpexp.cli.command_line import with_words  # noqa: F401 (for tests)
from dpexp.cli.config_cache import Configs
from dpexp.distributed import cores
from dpexp.distributed.ranks import Ranks
from dpexp.records import read_mark
from dpexp.training.train import train
from dpexp.types import PerExampleGrads

CONFIGS = Configs()
ALONE = Ranks(0, 1, torch.device("cpu"))
SHORT = ["method=dpsgd", "task=digits", "profile=embedded", "device=cpu", "model=linear"]
SHORT += ["batch_size=360", "epochs=3", "eval_every=0.5"]  # 12 steps, six evaluations
CLOCK = ("wall_s", "examples_per_s", "peak_memory_mb")


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Sums depend on how many threads share them; runs compared to the last bit share one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def one_process(monkeypatch):
    """Runs go one after another: processes take seconds to begin, and know no test's closures."""
    monkeypatch.setattr(cores, "cores", lambda: 1)


def execute(results, *words):
    """Do a run; configs that choose the same share most of what composing them takes."""
    return cli.execute(CONFIGS.compose_anew([*words, f"results={results}"]))


def of(directory):
    """Read a finished run's files as anyone would."""
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    result = json.loads((directory / "result.json").read_text())
    privacy = json.loads((directory / "privacy.json").read_text())
    return [json.loads(line) for line in lines], result, privacy


def assert_same_run(got, expected):
    """Compare all that two runs say, to the last bit, but for time and memory."""
    assert got[0] == expected[0] and got[2] == expected[2]
    ours, theirs = ({k: v for k, v in one[1].items() if k not in CLOCK} for one in (got, expected))
    assert ours == theirs


def copied(directory, tmp_path):
    """Copy a run's directory below another results folder."""
    there = tmp_path / "embedded" / "runs" / directory.name
    shutil.copytree(directory, there)
    return there


class Killed(BaseException):
    """As sudden as a kill: nothing is saved on the way out."""


def die():
    raise Killed


def interrupted(config, parts, at, act):
    """Train until something is done in step `at` (from 1), released but not yet taken.

    Without a ledger, steps are those of this training alone.
    """
    directory = records.locate(config["results"], config)
    taken = count(1)

    def act_in_time(*_):
        mark, step = read_mark(directory), next(taken)
        if (mark.steps if mark else step) == at:
            act()

    def make_optimizer(weights):
        optimizer = parts.make_optimizer(weights)
        optimizer.register_step_pre_hook(act_in_time)
        return optimizer

    train(config, replace(parts, make_optimizer=make_optimizer), ALONE)


def killed(results, *words, at, every=4):
    """Take a run up and kill it in its step `at` (from 1); checkpoints every few steps."""
    config = cli.compose([*words, f"results={results}", f"checkpoint.steps={every}"])
    with pytest.raises(Killed):
        interrupted(config, cli.build_parts(config, ALONE.device), at, die)
    return records.locate(results, config)


class Watched:
    """A method that remembers what was summed and released to it, and in what state."""

    def __init__(self, method):
        self.method = method

    def __getattr__(self, name):
        return getattr(self.method, name)

    def compress(self, state, sums):
        self.summed = {key: total.clone() for key, total in sums.items()}
        return self.method.compress(state, sums)

    def reconstruct(self, state, noisy):
        self.given, self.released = state, dict(noisy)
        return self.method.reconstruct(state, noisy)


def total_of(grads: PerExampleGrads, weights: Tensor | None) -> Tensor:
    """Sum per-example gradients, each times its weight [n] (None: all ones)."""
    total = torch.zeros_like(grads.materialize()[0], memory_format=torch.contiguous_format)
    grads.add_to(total, weights)
    return total


@contextmanager
def own_model(root, module, code, settings):
    """Put a user's file and the YAML that names it into folders; return the word for these."""
    (root / "conf" / "model").mkdir(parents=True)
    (root / "conf" / "model" / "mine.yaml").write_text(settings.format(module=module))
    (root / f"{module}.py").write_text(code)
    sys.path.insert(0, str(root))
    yield f"hydra.searchpath=[file://{root / 'conf'}]"
    sys.path.remove(str(root))
    sys.modules.pop(module, None)
