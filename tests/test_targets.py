"""What a config's `_target_`s name: whatever is wrong with one is told in one line."""

import sys
from types import SimpleNamespace

import pytest
from torch import nn

from dpexp.cli import building, errors, instantiate
from dpexp.types import ConfigError
from tests.marks import pairs_long
from tests.runs import execute

DIGITS = ["task=digits", "profile=embedded", "epochs=0.2"]
RGP, GEP = ["method=rgp", *DIGITS], ["method=gep", "method.m=20", "method.k=8", *DIGITS]
PATE = ["method=pate", *DIGITS]
HERE = "tests.test_targets"

PLACES = {
    "model": RGP,
    "method": RGP,
    "task": [*RGP, "task.name=mine"],  # else it would be called digits
    "optimizer": RGP,
    "schedule": RGP,
    "public": GEP,
    "attack": [*RGP, "attack=shadow"],
    "audit": [*RGP, "audit=one_run"],
    "analysis.cost": [*RGP, "analysis=cost"],
    "features": [*RGP, "features=hub", "features.encoder=a/b"],
    "prompts": [*RGP, "prompts=film_reviews", "prompts.tokenizer=x"],
    "warm_start": [*RGP, "warm_start=public", "warm_start.examples=64"],
    "method.teacher": PATE,
    "method.teacher_optimizer": PATE,
}
GIVES_NOTHING = ("prompts", "warm_start")


def breaks(*args, **settings):
    """Fail as no constructor of dpexp's does."""
    raise RuntimeError("it\nbroke")


def leaves(*args, **settings):
    """Leave the program."""
    raise SystemExit(3)


def odd(*args, **settings):
    """Return what is none of what a run is made of."""
    return "odd"


def told(words, tmp_path, *more):
    with pytest.raises(ConfigError) as caught:
        execute(tmp_path, *words, *more)
    line = str(caught.value)
    assert "\n" not in line and errors.mistake(caught.value) == line
    assert not any(tmp_path.rglob("metrics.jsonl"))
    return line


SAID = {
    "os.system": "Hydra refuses it",
    "os.nothing": "can be imported; got os.nothing (module 'os' has no attribute 'nothing')",
    "nowhere.Thing": "can be imported; got nowhere.Thing (No module named 'nowhere')",
    "..": "can be imported; got .. (the 'package' argument",
    "nets_mine": "got nets_mine (it names no module. Write module.Name). Set ",
    "os.path": "that can be called; got os.path",
    f"{HERE}.breaks": "broke",
    f"{HERE}.leaves": "SystemExit: 3",
}


@pytest.mark.parametrize(
    ("place", "target"),
    pairs_long(
        *(PLACES, SAID),
        short=lambda place, target: place == "optimizer" or target == "os.path",
    ),
)
def test_a_target_that_cannot_be_called_or_fails_is_told_in_one_line(place, target, tmp_path):
    line = told(PLACES[place], tmp_path, f"{place}._target_={target}")
    assert SAID[target] in line


@pytest.mark.parametrize("place", [place for place in PLACES if place not in GIVES_NOTHING])
def test_a_target_that_gives_something_else_is_told_of(place, tmp_path):
    assert "one of type str" in told(PLACES[place], tmp_path, f"{place}._target_={HERE}.odd")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def (", "invalid syntax"),
        ("1 / 0", "ZeroDivisionError"),
        ("raise SystemExit(4)", "Exit: 4"),
        ("import of_nobody", "No module named 'of_nobody'"),
    ],
)
def test_a_module_that_fails_as_it_is_imported_is_told_of(source, said, tmp_path, monkeypatch):
    (tmp_path / "of_the_user.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    for words in (["optimizer._target_=of_the_user.X"], ["+loop=of_the_user"]):
        line = told(RGP, tmp_path / "results", *words)
        assert said in line and "of_the_user" not in sys.modules
        if "optimizer" in words[0]:  # it is named rightly: its file is what to change
            assert line.endswith(f"Mend {tmp_path / 'of_the_user.py'}, line 1.")


def test_a_file_of_a_library_with_the_same_name_is_not_to_be_mended(tmp_path, monkeypatch):
    source = "import torch\ntorch.nn.functional.dropout(torch.ones(1), p=5)"
    (tmp_path / "functional.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    line = told(RGP, tmp_path / "results", "optimizer._target_=functional.X")
    assert line.endswith(f"Mend {tmp_path / 'functional.py'}, line 2.")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["+loop=.."], "Expected loop to be a module"),
        (["+loop=5"], "Expected loop to be a module"),
        (["+loop=dpexp.pate"], "Expected method=pate with loop=dpexp.pate"),
        (
            ["optimizer.momentum=-1"],
            "as torch.optim.SGD takes it; it refuses its settings: Invalid momentum value: -1. Set "
            "what is below optimizer.",
        ),
        (["+optimizer._args_=5"], "Hydra refuses it"),
        (["+optimizer._partial_=true"], "to give a torch.optim.Optimizer"),
        (["+optimizer.more={_target_: os.system}"], "Hydra refuses it"),
        (["+optimizer.more={_target_: nowhere.X}"], "Set optimizer.more._target_"),
        (["model._target_=builtins.dict"], "that says what it takes; got builtins.dict"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_stands_beside_a_target_is_told_of_too(words, said, tmp_path):
    assert said in told(RGP, tmp_path, *words)


built = nn.Linear(1, 1)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nets.Net", "Set model._target_, or put the folder that holds nets on PYTHONPATH."),
        ("/a/nets.py:Net", "Write module.Name, and put the folder of the module on PYTHONPATH. "),
        (f"{HERE}.Hintd", "has no attribute 'Hintd'). Set model._target_. Did you mean Hinted?"),
        (f"{HERE}.built", f"got {HERE}.built, a Linear that is built. Name its class, or a func"),
    ],
)
def test_a_target_that_is_named_wrongly_is_told_how_to_name_it(target, said):
    with pytest.raises(ConfigError) as caught:
        instantiate.find("model", target)
    assert said in str(caught.value)


class Sized(nn.Linear):
    """A linear map of as many outputs as it is told, by its caller or by a config."""

    def __init__(self, num_classes, input_shape, bias=True):
        super().__init__(input_shape[-1], num_classes, bias)


@pytest.mark.parametrize(
    "node",
    [{"num_classes": 3}, {"args": {"num_classes": 3}}, {"args": {"input_shape": [1, 9, 8]}}],
)
def test_a_setting_that_contradicts_the_task_is_refused(node):
    model = {"_target_": f"{HERE}.Sized", "name": "sized", **node}
    task = SimpleNamespace(name="digits", input_shape=(1, 8, 8), num_classes=10, train=None)
    with pytest.raises(ConfigError, match="than the task's: the task's is .* Leave it out"):
        building.build_model({"model": model}, task)
    # A run that was kept before such settings were refused is built as it was.
    kept = building.build_model({"model": model}, task, is_kept=True).model
    assert kept.out_features == 10
    same = {**model, "args": {"num_classes": 10, "input_shape": [1, 8, 8]}}
    same.pop("num_classes", None)
    assert building.build_model({"model": same}, task).model.out_features == 10


def test_pates_settings_without_its_loop_are_told_of(tmp_path):
    assert "to give a method (dpexp.types.Method)" in told(PATE, tmp_path, "~loop")


def test_an_error_of_ours_that_refuses_nothing_keeps_its_trace(monkeypatch):
    monkeypatch.setattr("dpexp.training.schedules.LinearDecay.__init__", breaks)
    with pytest.raises(RuntimeError) as caught:
        instantiate.make("schedule", {"_target_": "dpexp.training.schedules.LinearDecay"})
    assert errors.mistake(caught.value) is None


class Hinted:
    """Something whose annotation only a type checker can resolve."""

    def __init__(self, size: "Unknown"):  # noqa: F821
        self.size = size


def test_an_annotation_that_cannot_be_resolved_is_none_of_ours():
    assert instantiate.make("prompts", {"_target_": f"{HERE}.Hinted", "size": 3}).size == 3
