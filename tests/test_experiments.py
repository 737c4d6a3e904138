"""Recipes by name, conf/experiment: each opens with its command and is the cell it says it is."""

import re
from dataclasses import replace

import pytest

from dpexp import cli, records
from dpexp.cli import errors
from dpexp.cli.config_cache import Configs
from dpexp.cli.groups import options_of
from dpexp.privacy.accounting import calibrate
from dpexp.privacy.budget import num_steps
from dpexp.reporting.collect import cells
from dpexp.reporting.schema import spec
from tests.marks import few

CONFIGS = Configs()
EXPERIMENTS = options_of("experiment")
SCRATCH = [name for name in EXPERIMENTS if name.startswith("scratch/")]
SAYS = re.compile(
    r"# @package _global_\n# python run.py experiment=(\S+)\n"
    r"# (\w+)/(\w+) (\S+) (\S+): .*\n(?:# .*\n)*"
    r"defaults:\n(?:  - override /.*\n)+(?:\w+:.*\n|  .*\n)*"
)
"""What a file is like: its command, and an artifact's name with a row and a column."""


def test_every_paper_has_some():
    papers = {"rgp", "lsg", "gep", "compressive"}
    assert {name.partition("/")[0] for name in EXPERIMENTS} == papers | {"scratch"}


OPENED = [name for name in EXPERIMENTS if name not in SCRATCH]


@pytest.mark.parametrize("name", few(OPENED, OPENED[::2]))
def test_an_experiment_opens_with_its_command_and_is_the_cell_that_it_names(name):
    said = SAYS.fullmatch((cli.CONF / "experiment" / f"{name}.yaml").read_text(encoding="utf-8"))
    assert said is not None
    command, paper, artifact, row, column = said.groups()
    assert command == name
    table = spec.load(cli.CONF, paper, artifact)
    alone = replace(
        table,
        rows=tuple(each for each in table.rows if each.key == row),
        columns=tuple(each for each in table.columns if each.key == column),
    )
    (job,) = cells.expand(alone, "paper", CONFIGS.compose, cli.CONF, seeds=(0,))
    cell = job.config
    cell = {key: value for key, value in cell.items() if key != "analysis"}  # what is looked at
    assert CONFIGS.compose([f"experiment={name}"]) == cell


@pytest.mark.parametrize("name", SCRATCH)
def test_a_recipe_from_scratch_opens_with_its_command_and_takes_the_published_steps(name):
    lines = (cli.CONF / "experiment" / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    assert lines[1] == f"# python run.py experiment={name}"
    config = CONFIGS.compose([f"experiment={name}"])
    model, eps = re.fullmatch(r"scratch/cifar10_(\w+)_eps(\d)", name).groups()
    assert (config["model"]["name"], config["eps"]) == (model, int(eps))
    steps = num_steps(config["epochs"], 50_000, config["batch_size"], "poisson")
    assert (steps, config["optimizer"]["lr"]) == ({1: 875, 8: 2500}[int(eps)], 2.0)
    assert config["optimizer"]["momentum"] == config["optimizer"]["weight_decay"] == 0
    assert config["schedule"]["fractions"] == [] and config["privacy"]["delta"] == 1e-5
    assert config["augmentation"]["multiplicity"] == 16 and config["averaging"]["name"] == "ema"
    noise, _ = calibrate(config["batch_size"] / 50_000, steps, 1e-5, config["eps"])
    assert 0.8 < noise / {1: 10, 8: 3}[int(eps)] < 1


def test_words_beside_an_experiment_are_heard_before_it():
    recipe = CONFIGS.compose(["experiment=rgp/sst2"])
    other = CONFIGS.compose(["experiment=rgp/sst2", "eps=3"])
    assert (recipe["eps"], other["eps"], other["privacy"]["eps"]) == (8, 3, 3)
    assert other == recipe | {"eps": 3, "privacy": recipe["privacy"] | {"eps": 3}}
    words = ["task=sst2", "profile=quick", "eps=8"]
    small = CONFIGS.compose(["experiment=rgp/sst2", "profile=quick", "model=minilm"])
    assert records.run_id(small) == records.run_id(CONFIGS.compose(["method=rgp", *words]))
    other = CONFIGS.compose(["experiment=rgp/sst2", "method=lsg"])
    assert other["method"]["name"] == "lsg"


@pytest.mark.parametrize(
    ("name", "near"), [("rgp/sst3", "rgp/sst2"), ("sst2", "rgp/sst2"), ("gep/minst", "gep/mnist")]
)
def test_a_misspelt_experiment_is_answered_with_the_nearest_one(name, near):
    with pytest.raises(Exception, match=name) as told:
        cli.compose([f"experiment={name}"])
    line = errors.mistake(told.value)
    assert line.startswith(f"Expected experiment to be one of {', '.join(EXPERIMENTS)}; got")
    assert line.endswith(f"got experiment={name}. Did you mean {near}?")


def test_help_beside_an_experiment_is_of_its_method_and_task():
    assert errors.for_help(["experiment=gep/mnist", "--help"]) == ["experiment=gep/mnist", "--help"]
