"""Whatever ends a run, at whatever stage of a step: it goes on to what it would have come to."""

import json
import os
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpexp import cli, records
from dpexp.records.weights import digest
from dpexp.training import checkpoint
from dpexp.training.observation import Analysis
from dpexp.training.states import copied, mapped, marks
from dpexp.training.train import train
from dpexp.types import ConfigError
from tests.contract.cases import FOLDERS, METHODS
from tests.marks import few, long
from tests.runs import (
    ALONE,
    SHORT,
    assert_same_run,
    execute,
    of,
    one_thread,  # noqa: F401 (a fixture)
)
from tests.steps import Setting, composed

AT = 5  # the step, from 1, in which it happens; an evaluation falls on the next
QUIET = "checkpoint.seconds=null"
SOME = ["dpsgd", "sparse_dpsgd", "dp_powersgd", "dp_grape", "dp_zo", "rgp", "rgp_random"]
SOME += ["lsg", "gep", "compressive"]
"""Methods whose states differ."""


class Failing:
    """An object that raises in one of its functions, once something is due."""

    def __init__(self, whole, name, fail):
        self._whole, self._name, self._fail = whole, name, fail

    def __len__(self):
        return len(self._whole)

    def __getattr__(self, name):
        found = getattr(self._whole, name)
        if name != self._name:
            return found

        def failing(*args, **named):
            self._fail()
            return found(*args, **named)

        return failing


def of_model(parts, fail):
    parts.model.register_forward_hook(lambda *_: fail() if parts.model.training else None)
    return parts


def of_method(name):
    return lambda parts, fail: replace(parts, method=Failing(parts.method, name, fail))


def of_examples(parts, fail):
    task = replace(parts.task, train=Failing(parts.task.train, "batch", fail))
    return replace(parts, task=task)


def of_optimizer(when):
    def broken(parts, fail):
        def make(weights):
            optimizer = parts.make_optimizer(weights)
            getattr(optimizer, f"register_step_{when}_hook")(lambda *_: fail())
            return optimizer

        return replace(parts, make_optimizer=make)

    return broken


def of_schedule(parts, fail):
    def schedule(step, num_steps):
        fail()
        return parts.schedule(step, num_steps)

    return replace(parts, schedule=schedule)


def of_evaluation(parts, fail):
    def score(outputs, targets):
        fail()
        return parts.task.score(outputs, targets)

    return replace(parts, task=replace(parts.task, score=score))


STAGES = {
    "schedule": (of_schedule, 5),
    "prepare": (of_method("prepare"), 4),
    "examples": (of_examples, 4),
    "forward": (of_model, 4),
    "per_example_grads": (of_method("per_example_grads"), 4),
    "compress": (of_method("compress"), 4),
    "reconstruct": (of_method("reconstruct"), 4),
    "update": (of_optimizer("pre"), None),
    "updated": (of_optimizer("post"), None),
    "evaluation": (of_evaluation, 6),
}
"""What fails, and the step that is saved; in the middle of an update none can be."""


def ended(words, breaking, error, results, at=AT):
    """Train until a stage of step `at` fails; give the run's directory."""
    config = cli.compose([*words, f"results={results}", QUIET])
    directory = records.locate(results, config)

    def fail():
        mark = records.read_mark(directory)
        if mark is not None and mark.steps >= at:  # which has been noted
            raise error

    parts = breaking(cli.build_parts(config, ALONE.device), fail)
    with pytest.raises((type(error), ConfigError)):  # want of memory is told as a mistake
        train(config, parts, ALONE)
    return directory


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return of(execute(tmp_path_factory.mktemp("unbroken"), *SHORT))


ERRORS = {name: [RuntimeError("torn")] for name in STAGES}
ERRORS["forward"] += [MemoryError(), KeyboardInterrupt()]
ERRORS["updated"] += [MemoryError(), KeyboardInterrupt()]
ERRORS["evaluation"] += [SystemExit(3)]


@pytest.mark.parametrize(
    ("stage", "error"),
    [
        (long if number else pytest.param)(name, error)
        for name, errors in ERRORS.items()
        for number, error in enumerate(errors)
    ],
)
@pytest.mark.filterwarnings("ignore:.* is damaged, or was killed before")
def test_a_run_that_an_error_ended_goes_on_to_the_same_bits(stage, error, unbroken, tmp_path):
    breaking, saved = STAGES[stage]
    directory = ended(SHORT, breaking, error, tmp_path)
    found = checkpoint.load(directory / "checkpoint.pt")
    assert (None if found is None else found["position"]["step"]) == saved
    assert execute(tmp_path, *SHORT) == directory
    assert_same_run(of(directory), unbroken)


@pytest.mark.parametrize("stage", ["forward", "reconstruct", "update", "evaluation"])
@pytest.mark.filterwarnings("ignore:.* is damaged, or was killed before")
def test_what_secret_noise_may_have_released_counts_once(stage, tmp_path):
    """The step at hand was noted: it is spent, and what had been done before it is not."""
    words = [*SHORT, "noise=secret"]
    breaking, saved = STAGES[stage]
    directory = ended(words, breaking, RuntimeError("torn"), tmp_path)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        execute(tmp_path, *words)
    _, result, privacy = of(directory)
    lost = {4: 1, 6: 0, None: AT}[saved]
    assert privacy.get("lost_steps", 0) == lost
    assert any("count as spent" in str(one.message) for one in said) == (lost > 0)
    assert privacy["noise_draws"] == privacy["steps"] == result["steps"] == 12


def test_a_line_that_cannot_be_written_is_written_once_there_is_room(unbroken, tmp_path):
    """A full disk may leave half of one."""

    def breaking(parts, fail):
        def score(outputs, targets):
            path = next(tmp_path.rglob("metrics.jsonl"), None)
            if path is not None and path.is_file() and path.read_text().count("\n") == 2:
                path.rename(path.with_suffix(".aside"))
                path.mkdir()  # no line can be written into a folder
            return parts.task.score(outputs, targets)

        return replace(parts, task=replace(parts.task, score=score))

    directory = ended(SHORT, breaking, records.RecordError(), tmp_path)
    assert checkpoint.load(directory / "checkpoint.pt")["position"]["step"] == 6
    (directory / "metrics.jsonl").rmdir()
    (directory / "metrics.aside").rename(directory / "metrics.jsonl")
    with (directory / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "epo')
    execute(tmp_path, *SHORT)
    assert_same_run(of(directory), unbroken)


class Counting(Analysis):
    """Adds up in place, and fails at one observation after it has."""

    def __init__(self, fail=lambda: None):
        self._fail = fail

    def observe(self, view, memory):
        memory.setdefault("sum", torch.zeros(1)).add_(view.step)
        memory.setdefault("seen", []).append(view.step)
        self._fail()
        return {"sum": memory["sum"]}


def test_what_an_analysis_had_half_seen_it_sees_again(tmp_path):
    def breaking(parts, fail):
        return replace(parts, analyses={"first": Counting(), "second": Counting(fail)})

    directory = ended(SHORT, breaking, ValueError("unforeseen"), tmp_path)
    position = checkpoint.load(directory / "checkpoint.pt")["position"]
    assert (position["step"], position["judged_at"]) == (6, 4)
    assert position["memories"]["first"]["seen"] == [0, 2, 4]
    assert float(position["memories"]["first"]["sum"]) == 6
    config = cli.compose([*SHORT, f"results={tmp_path}"])
    parts = cli.build_parts(config, ALONE.device)
    train(config, replace(parts, analyses={"first": Counting(), "second": Counting()}), ALONE)
    seen = np.load(directory / records.ANALYSIS)["first/sum"]
    assert seen.ravel().tolist() == [0, 2, 6, 12, 20, 30, 42]
    assert [line["step"] for line in of(directory)[0]] == [2, 4, 6, 8, 10, 12]


class Spoiling:
    """An attack that fails, after it has used the model up or before."""

    deviation = "none"

    def __init__(self, spoils):
        self.spoils = spoils

    def stage(self, parts, seed):
        return parts

    def report(self, parts, *_):
        if self.spoils:
            with torch.no_grad():
                next(parts.model.parameters()).zero_()
        raise OSError("no room")


@pytest.mark.parametrize("spoils", [False, True])
@pytest.mark.filterwarnings("ignore:.* is damaged, or was killed before")
def test_an_attack_that_fails_does_not_cost_the_training(spoils, unbroken, tmp_path):
    config = cli.compose([*SHORT, f"results={tmp_path}", QUIET])
    parts = cli.build_parts(config, ALONE.device)
    with pytest.raises(OSError, match="no room"):
        train(config, replace(parts, attack=Spoiling(spoils)), ALONE)
    directory = records.locate(tmp_path, config)
    found = checkpoint.load(directory / "checkpoint.pt")
    assert (found is None) == spoils
    if not spoils:
        assert digest(found["model"]) == unbroken[1]["weights_sha256"]
    execute(tmp_path, *SHORT)
    assert_same_run(of(directory), unbroken)


@pytest.mark.parametrize("method", METHODS if FOLDERS else few(METHODS, SOME))
def test_a_step_writes_neither_into_the_state_before_it_nor_into_weights(method):
    """Or what is held of the step before would not be what it was."""
    setting = Setting(composed(method))
    state = setting.step(0).state
    all_of_it = [state, dict(setting.model.named_parameters()), dict(setting.model.named_buffers())]
    # Passes at other weights put back what they moved, to the bit, and hold nothing of it.
    untouched = state if setting.method.is_forward_only else all_of_it
    before, at_first = copied(all_of_it), marks(untouched)
    setting.step(1, state=state)
    assert marks(untouched) == at_first
    numbers: list[list] = [[], []]
    for found, one in zip(numbers, (before, all_of_it), strict=True):
        mapped(lambda leaf, found=found: found.append(leaf), one)
    for one, two in zip(*numbers, strict=True):
        assert torch.equal(one, two) if isinstance(one, torch.Tensor) else one == two


def test_a_finished_run_is_left_without_a_checkpoint(tmp_path):
    """However late an error comes."""
    directory = execute(tmp_path, *SHORT)
    assert json.loads((directory / "result.json").read_text())["steps"] == 12
    assert not [name for name in os.listdir(directory) if name.startswith("checkpoint")]
