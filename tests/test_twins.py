"""Two runs whose private examples differ and whose releases do not: all else is the same."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from dpexp import cli, records
from dpexp.attacks.differences import first_difference
from dpexp.pate import loop
from dpexp.pate.stages import assign
from dpexp.privacy.mechanism import Mechanism
from dpexp.records import DIAGNOSTICS, without_diagnostics
from dpexp.training import micro_batch
from tests.contract.cases import METHODS, USUAL, case
from tests.marks import few, some_long
from tests.runs import ALONE, one_thread  # noqa: F401 (a fixture)
from tests.steps import PRIVATE, composed
from tests.texts import LONGEST, save_glue
from tests.twins import at_start, build, files, others, trained

ROOT = Path(__file__).resolve().parents[1]
SMALL = USUAL.narrow
EIGHT = ["batch_size=360", "epochs=2", "eval_every=0.5", "checkpoint.steps=1", "optimizer.lr=2"]
"""Steps, an evaluation after every second one, and a checkpoint after each."""

TEXTS = ["task=sentiment", "task.dataset_size=1600", "batch_size=400", "epochs=1"]
TEXTS += ["checkpoint.steps=1"]
WARM = ["warm_start=public", "public=texts", "warm_start.examples=128"]
OTHERS = [  # other ways through the same loop
    ["rgp", *SMALL, "method.rank=2", "method.warm_up_steps=2"],
    ["lsg", *SMALL, "method.rank=2", "method.mask=carriers"],
    ["bgep", *SMALL, "method.basis=random"],
    ["dpsgd", *SMALL, "batch_size=90", "epochs=0.5"],  # summed in either precision
    ["dpsgd", *SMALL, "optimizer._target_=torch.optim.Adam", "optimizer.momentum=null"],
    ["dpsgd", *SMALL, "sampling=shuffle"],
    ["dpsgd", "model=linear", "task=regression"],
    ["dpsgd", *SMALL, "averaging=ema", "averaging.decay=0.9", "clipping=normalize"],
    [*("rgp", *SMALL, "method.rank=2", "clipping=per_layer", "averaging=last"), "denoise=doppler"],
    ["dpsgd", *SMALL, "augmentation=crop_flip", "augmentation.multiplicity=2"]
    + ["noise=correlated", "noise.bands=2"],
    ["rgp", *SMALL, "method.rank=2", "clipping=adaptive", "denoise=disk"],
]
WAYS = [*([m] for m in METHODS), *OTHERS]
SHORT = [["dpsgd"], ["compressive"], ["lsg"], *OTHERS[7:9], OTHERS[10]]
"""What is left for long takes the loop's same turns; what a method knows its contract holds."""


def triplets(config, tmp_path):
    """Train on the task's examples, on others, and on ones that the model learns as it goes."""
    first = trained(config, tmp_path / "first", False)
    other = trained(config, tmp_path / "other", True)
    easy = trained(config, tmp_path / "easy", False, said_by=first["model"])
    losses = [one.pop("private") for one in (first, other, easy)]
    for one in (first, other, easy):
        one.pop("model")
    assert losses[0] != losses[1] and losses[0][-1] > losses[2][-1]
    return first, other, easy


def assert_equal(first, *others):
    for other in others:
        assert len(first["steps"]) == len(other["steps"])
        assert first_difference(first, other) is None


@pytest.mark.parametrize("words", some_long(WAYS, SHORT), ids=" ".join)
def test_after_equal_releases_all_is_equal_but_the_declared_diagnostics(words, tmp_path):
    method, *more = words
    narrow = () if more else case(method).narrow
    assert_equal(*triplets(composed(method, *narrow, *EIGHT, *more), tmp_path))


ABSENT = [["dpsgd"], ["rgp", "method.rank=2"]]


@pytest.mark.parametrize("words", few(ABSENT, ABSENT[:1]), ids=" ".join)
def test_whether_an_example_was_there_shows_in_the_declared_diagnostics_alone(
    words, tmp_path, monkeypatch
):
    """The neighbour lacks one example: it is missing from every draw that had it."""
    config = composed(words[0], *SMALL, *EIGHT, *words[1:])
    first, drawn = trained(config, tmp_path / "first", False), Mechanism.sample
    monkeypatch.setattr(Mechanism, "sample", lambda *args: without(7, drawn(*args)))
    other = trained(config, tmp_path / "other", False)
    assert first.pop("private") != other.pop("private")
    for one in (first, other):
        one.pop("model")
    assert_equal(first, other)


def without(example, indices):
    return indices[indices != example]


def test_a_micro_batch_found_by_trials_changes_nothing_else(tmp_path, monkeypatch):
    words = ["micro_batch=auto", "batch_size=33", "epochs=0.1", "checkpoint.steps=1"]
    told = []
    for which, best in ((False, -1), (True, 0)):  # a whole draw in one piece, and one by one
        monkeypatch.setenv("DPEXP_CACHE", str(tmp_path / "cache" / str(which)))  # both make trials
        monkeypatch.setattr(micro_batch, "choose", lambda trials, _, best=best: trials[best])
        told.append(trained(composed("dpsgd", *SMALL, *words), tmp_path / str(which), which))
        del told[-1]["private"], told[-1]["model"]
    assert first_difference(*told) is None


LONGER = [["dpsgd", "model.dropout=0.2"], ["rgp", *WARM], ["rgp_core", *WARM]]


@pytest.mark.parametrize("words", some_long(LONGER, []), ids=" ".join)
def test_so_it_is_where_texts_are_of_other_lengths(words, tmp_path):
    method, *more = words
    assert_equal(*triplets(composed(method, *TEXTS, *more), tmp_path))


# Before the first step


def built(config):
    return [at_start(build(config, which)) for which in (False, True)]


@pytest.mark.parametrize("warm_start", [[], WARM], ids=["plain", "warm start"])
@pytest.mark.parametrize("method", ["dpsgd", "rgp"])
def test_a_model_begins_alike_whatever_the_private_texts(method, warm_start):
    one, other = built(composed(method, *TEXTS, *warm_start))
    assert first_difference(one, other) is None


def test_a_classifier_that_begins_with_prompts_begins_alike(tiny_models, tmp_path):
    save_glue(tmp_path, "sst2", {"train": 30, "validation": 20})
    words = ["method=dpsgd", "task=sst2", "profile=embedded", "model=minilm", "model.seen=[]"]
    words += ["model.repo=tiny/bert", f"model_root={tiny_models}", f"data_root={tmp_path}"]
    words += ["task.train_size=null", "task.dataset_size=30", f"task.max_length={LONGEST}"]
    words += ["prompts=film_reviews", "prompts.texts=[[bad,dull],[good,fine]]", *PRIVATE]
    config = cli.compose([*words, "warm_start=public", "warm_start.examples=64"])
    one, other = built(config)
    assert first_difference(one, other) is None
    assert one["public"] and one["weights"]["head.out.weight"].abs().sum() > 0


# PATE


class Constant(nn.Module):
    """A teacher that says what an image's pixels decide; another thing, once it saw large ones."""

    def __init__(self, in_channels, num_classes, image_size):
        super().__init__()
        self.classes, self.shift = num_classes, 0
        self.bias = nn.Parameter(torch.zeros(num_classes))

    def forward(self, x):
        if self.training and float(x.detach().mean()) > 100:
            self.shift = 1
        said = (x.flatten(1) > 0).sum(1) + self.shift
        return nn.functional.one_hot(said % self.classes, self.classes) + 0 * self.bias


def test_a_student_learns_the_answers_and_nothing_else_of_the_teachers(tmp_path):
    words = ["method=pate", "task=digits", "profile=embedded", "device=cpu", "eps=1000"]
    words += ["method.teachers=60", "method.teacher_steps=1", "method.threshold=0.1"]
    words += ["method.student_steps=10", *SMALL]
    told = []
    for which in (False, True):
        config = cli.compose([*words, f"results={tmp_path / str(which)}"])
        parts = cli.build_parts(config, ALONE.device)
        task, pate = parts.task, replace(parts.method, teacher=Constant)
        if which:  # some of the teachers see other images
            inputs = task.train.inputs.clone()
            inputs[assign(len(inputs), 60, config["seed"]) < 10] = 1000.0
            train = replace(task.train, inputs=inputs)
            task = replace(task, train=train, fingerprint="other")
        parts = replace(parts, task=task, method=pate)
        loop.train(config, parts, ALONE)
        directory = records.locate(config["results"], config)
        result = json.loads((directory / "result.json").read_text())
        told.append((parts.model.state_dict(), files(directory), result))
    one, other = told
    assert one[2]["teacher_accuracy"] != other[2]["teacher_accuracy"]  # votes do differ
    assert one[2]["answered"] > 20
    assert first_difference(one[:2], other[:2]) is None


# The list


def test_the_document_names_every_diagnostic_and_no_other():
    text = (ROOT / "docs" / "privacy" / "unprotected.md").read_text(encoding="utf-8")
    listed = re.findall(r"^- `([^`]+)`: (.*)$", text, re.M)
    told = {file: set(re.findall(r"`([^`]+)`", names)) for file, names in listed}
    assert len(listed) == len(told)
    assert told == {file: set(names) for file, names in DIAGNOSTICS.items()}


def test_what_is_inside_an_entry_is_left_out_alone():
    line = {"data": 1, "steps": 2, "surroundings": {"data": 3, "weights": 4}}
    assert without_diagnostics("released.jsonl", line) == {
        "steps": 2,
        "surroundings": {"weights": 4},
    }
    assert without_diagnostics("config.yaml", line) == line
    assert without_diagnostics("result.json", {"attack_success": 1, "eps": 2}) == {"eps": 2}


def test_twins_differ_in_every_example():
    task = cli.build_parts(composed("dpsgd", *SMALL), ALONE.device).task
    other = others(task.train)
    same = (other.inputs == task.train.inputs).flatten(1).all(1)
    assert not same.any() and not torch.equal(other.targets, task.train.targets)
