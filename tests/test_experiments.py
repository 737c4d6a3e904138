"""Recipes by name, conf/experiment: each opens with its command and is the cell it says it is."""

import re

import pytest

from dpexp import cli, records
from dpexp.cli import errors
from dpexp.cli.config_cache import Configs
from dpexp.cli.groups import options_of
from dpexp.reporting.collect import cells
from dpexp.reporting.schema import spec

CONFIGS = Configs()
EXPERIMENTS = options_of("experiment")
SAYS = re.compile(
    r"# @package _global_\n# python run.py experiment=(\S+)\n"
    r"# (\w+)/(\w+) (\S+) (\S+): .*\n(?:# .*\n)*"
    r"defaults:\n(?:  - override /.*\n)+(?:\w+:.*\n|  .*\n)*"
)
"""What a file is like: its command, and an artifact's name with a row and a column."""


def test_every_paper_has_some():
    assert {name.partition("/")[0] for name in EXPERIMENTS} == {"rgp", "lsg", "gep", "compressive"}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_opens_with_its_command_and_is_the_cell_that_it_names(name):
    said = SAYS.fullmatch((cli.CONF / "experiment" / f"{name}.yaml").read_text(encoding="utf-8"))
    assert said is not None
    command, paper, artifact, row, column = said.groups()
    assert command == name
    table = spec.load(cli.CONF, paper, artifact)
    jobs = cells.expand(table, "paper", CONFIGS.compose, cli.CONF, seeds=(0,))
    (cell,) = (job.config for job in jobs if job.cell == (row, column))
    cell = {key: value for key, value in cell.items() if key != "analysis"}  # what is looked at
    assert CONFIGS.compose([f"experiment={name}"]) == cell


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
