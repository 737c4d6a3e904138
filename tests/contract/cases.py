"""What the contract finds by folder, and the one table of what it says otherwise of a method."""

from typing import NamedTuple

import yaml

from dpexp import cli
from dpexp.cli.building import DOORS


def named(group):
    """List the names of a group of conf/, without what only picks another one."""
    found = sorted(path.stem for path in (cli.CONF / group).glob("*.yaml") if path.stem != "auto")
    assert found, f"no conf/{group}"
    return found


ALL_METHODS = named("method")
METHODS = [  # a method with a loop of its own takes no steps of ours
    name
    for name in ALL_METHODS
    if "loop" not in yaml.safe_load((cli.CONF / "method" / f"{name}.yaml").read_text())
]
MODELS = [name for name in named("model") if name not in DOORS]  # tests/models has those
OWN = ("images", "table", "texts")  # doors for one's own data: tests/data/test_own_*.py
TASKS = [name for name in named("task") if name not in OWN]


class Case(NamedTuple):
    """Where a method differs from the others.

    Attributes:
        few: words that cost time and decide nothing, or without which it does not run.
        narrow: words for the small network, of which some layers are below the usual rank.
        wide: words that release more numbers a step, so that a sample of noise takes fewer steps.
        brief: words for a whole run, beside `few`.
        reach: how near to its declared sensitivity a search must come.
        is_gradient: whether a whole block that it carries is a multiple of the gradient.
        coordinates: of noise that are looked at.
    """

    few: tuple[str, ...] = ()
    narrow: tuple[str, ...] = ("model=cnn", "model.channels=[4,8]", "model.kernel=3")
    wide: tuple[str, ...] = ()
    brief: tuple[str, ...] = ()
    reach: float = 0.999
    is_gradient: bool = True
    coordinates: int = 20_000


USUAL = Case()
RANK_2 = (*USUAL.narrow, "method.rank=2")
FEW = ("method.m=20", "method.k=10")
TEACHERS = ("method.teachers=8", "method.teacher_steps=2", "method.queries=50", "loop=dpexp.pate")
CASES = dict.fromkeys(
    ("dp_lora", "dp_powersgd", "lsg", "powersgd", "rgp", "rgp_random"), Case(narrow=RANK_2)
)
CASES |= {
    # Its blocks are coordinates in a basis, and what is left beside them.
    "gep": Case(few=FEW, is_gradient=False),
    "bgep": Case(few=FEW, wide=("model=linear", "method.m=400", "method.k=400"), is_gradient=False),
    "bitfit": Case(few=("model=cnn",)),  # a WRN has no biases
    "compressive": Case(
        narrow=(),
        wide=("method.p=200",),
        brief=("method.p=20",),
        reach=0.1,  # in a box, whose corners the search does not know
    ),
    "dp_grape": Case(("method.moments=adam",), RANK_2),  # the recipes of small networks have none
    "dp_zo": Case(
        ("method.directions=2", "method.train=head"),
        wide=("model=linear", "method.directions=400", "batch_size=4"),
        is_gradient=False,  # two numbers, by which it steps along directions
        coordinates=4000,
    ),
    "pate": Case(brief=TEACHERS),
    "rgp_core": Case(("method.public_examples=20",), RANK_2, wide=("method.rank=64",)),
    "rgp_public": Case(("method.public_examples=20",), RANK_2),
}


def case(method):
    return CASES.get(method, USUAL)
