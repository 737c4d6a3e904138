"""A record names the model that ran, and a run keeps its id whatever it is called."""

import pytest

from dpexp import cli, records
from dpexp.types import ConfigError

WORDS = ["method=rgp", "task=digits", "profile=embedded"]
REPO = ["model=hf", "model.pretrained=false"]


def composed(*words):
    return cli.compose([*WORDS, *words])


def name_of(*words):
    return composed(*words)["model"]["name"]


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["model=wrn10_1"], "wrn10_1"),
        (["model=wrn10_1", "model.width=1"], "wrn10_1"),
        (["model=wrn10_1", "model.width=7"], "wrn10_1 with width=7"),
        (["model=wrn10_1", "++model.depth=16", "model.width=7"], "wrn10_1 with depth=16, width=7"),
        (["model=cnn", "model.channels=[4, 8]"], "cnn with channels=[4, 8]"),
        (["model=wrn10_1", "model._target_=mine.Net"], "mine.Net in place of wrn10_1"),
        (
            ["model=cnn", "model._target_=mine.Net", "model.name=wrn28_10"],
            "mine.Net in place of wrn28_10",
        ),
        (["model=cnn", "model._target_=mine.Net", "model.name=python:wrn10_1"], "python:mine.Net"),
        (["model=cnn", "model._target_=mine.Net", "model.name=timm"], "mine.Net in place of timm"),
        (["model=bert", "model.repo=some/one"], "some/one in place of bert"),
        (["model=bert", "model.dropout=0"], "bert"),
        (["model=hf", "repo=some/one"], "hf:some/one"),
        ([*REPO, "repo=some/one"], "hf:some/one of random weights"),
        (["model=timm", "name=resnet18.a1_in1k"], "timm:resnet18.a1_in1k"),
        (["model=torchvision", "name=resnet18"], "torchvision:resnet18"),
        (["model=python", "target=mine.Net"], "python:mine.Net"),
        (["model=python", "target='größe.Netz'"], "python:größe.Netz"),
    ],
)
def test_a_model_is_named_for_what_it_is(words, name):
    assert name_of(*words) == name


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (["model=hf", "repo=a/b"], ["model=hf", "model.repo=a/b"]),
        (["model=timm", "name=resnet18"], ["model=timm", "model.architecture=resnet18"]),
        (["model=python", "target=a.B"], ["model=python", "model._target_=a.B"]),
        (["model=wrn10_1"], ["model=wrn10_1", "model.fix=false"]),
        (["model=wrn10_1"], ["model=wrn10_1", "method.freeze=null"]),
        (["model=hf", "repo=a/b", "model.fix=true"], ["repo=a/b", "model.fix=true", "model=hf"]),
    ],
)
def test_two_ways_to_say_it_are_one_run(words, same):
    first, second = composed(*words), composed(*same)
    assert first == second and "repo" not in first and "target" not in first


@pytest.mark.parametrize(
    "words", [["model=wrn10_1", "model.width=7"], ["model=bert", "model.repo=some/one"]]
)
def test_a_run_keeps_the_id_that_it_had_under_the_choices_own_name(words):
    config = composed(*words)
    before = {**config, "model": {**config["model"], "name": words[0].partition("=")[2]}}
    assert records.run_id(before) == records.run_id(config)
    other = composed(words[0])
    assert records.run_id(other) != records.run_id(config)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["model=hf"], "Expected repo=OWNER/NAME beside model=hf"),
        (["model=hf", "repo=3"], "repo=OWNER/NAME beside model=hf.*got 3"),
        (["model=timm"], "Expected name=resnet18 beside model=timm"),
        (["model=torchvision", "name=''"], "Expected name=resnet18 beside model=torchvision"),
        (["model=python"], "Expected target=package.Class beside model=python"),
        (["model=timm", "model.name=resnet18"], "to keep the name of the chosen option"),
    ],
)
def test_a_model_that_is_not_named_is_asked_for_in_one_line(words, said):
    with pytest.raises(ConfigError, match=said) as raised:
        composed(*words)
    assert "\n" not in str(raised.value)


def test_a_word_of_a_door_is_no_word_of_other_models():
    with pytest.raises(Exception, match="repo"):
        composed("model=wrn10_1", "repo=a/b")


def test_a_run_of_a_bundled_model_imports_no_library_of_models(programs):
    code = (
        "import sys; [sys.modules.pop(each) for each in [*sys.modules] if 'opacus' in each]; "
        "from dpexp import cli; "
        "cli.build_parts(cli.compose(['method=rgp', 'task=digits', 'profile=embedded']), 'cpu'); "
        "sys.exit(bool({'transformers', 'torchvision', 'timm', 'opacus'} & sys.modules.keys()))"
    )
    assert programs.run(["-c", code], cwd=cli.CONF.parent).returncode == 0
