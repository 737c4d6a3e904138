"""What the contract finds by folder, and the one table of what it says otherwise of a method."""

from typing import NamedTuple

import yaml

from dpexp import cli
from dpexp.cli.building import DOORS
from dpexp.types import ConfigError, one_line, require_word
from tests.marks import few, some_long

OWN = ("images", "table", "texts")  # doors for one's own data: tests/data/test_own_*.py
FOLDERS = []  # of the user's own, in conf's place
ALL_METHODS, METHODS, MODELS, TASKS = [], [], [], []


KIN = ("nonprivate", "powersgd")
"""Methods that differ from DP-SGD and DP-PowerSGD in name alone, once they clip and add noise."""


FAMILY = (*KIN, "bgep", "bitfit", "linear", "rgp_core", "rgp_public", "rgp_random")
"""Methods whose steps go the way of GEP's, DP-SGD's or RGP's, with other parameters or bases."""


def in_short(methods):
    """Leave to `make test-long` the methods of conf that are others' kin."""
    return methods if FOLDERS else some_long(methods, {*methods} - {*KIN})


def of_each_family(methods):
    """Leave to `make test-long` the methods of conf that are of another one's family."""
    return methods if FOLDERS else few(methods, [m for m in methods if m not in FAMILY])


def files(group):
    """Return the files of a group by name, without what only picks another one."""
    found = [path for folder in FOLDERS or [cli.CONF] for path in (folder / group).glob("*.yaml")]
    return {path.stem: path for path in sorted(found) if path.stem != "auto"}


def find():
    """Fill the lists with what is in the folders."""
    methods = files("method")
    ALL_METHODS[:] = methods
    METHODS[:] = [  # a method with a loop of its own takes no steps of ours
        name
        for name, path in methods.items()
        if "loop" not in (yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    ]
    MODELS[:] = [name for name in files("model") if name not in DOORS]  # tests/models has those
    TASKS[:] = [name for name in files("task") if name not in OWN]


def hold(folders):
    """Hold what is in a user's folders to the contract, in the place of what is in conf.

    Raises:
        ConfigError: for a contract.yaml that says what it cannot.
    """
    FOLDERS[:] = folders
    find()
    for folder in folders if ALL_METHODS else ():
        if (folder / "contract.yaml").is_file():
            CASES.update(said(folder / "contract.yaml"))


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
    coordinates: int = 4000  # scales 20 % apart differ by 3.3 / sqrt(4000) in distribution


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
        ("method.directions=2",),
        wide=("model=linear", "method.directions=400", "batch_size=4"),
        is_gradient=False,  # two numbers, by which it steps along directions
        coordinates=3000,
    ),
    "pate": Case(brief=TEACHERS),
    "rgp_core": Case(("method.public_examples=20",), RANK_2, wide=("method.rank=64",)),
    "rgp_public": Case(("method.public_examples=20",), RANK_2),
}


def case(method):
    return CASES.get(method, USUAL)


def said(path):
    """Return what a user's file says of methods, as in `mine: {few: [method.rank=2]}`.

    Raises:
        ConfigError: naming what it cannot say.
    """
    try:
        table = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"Expected {path} to be YAML: {one_line(error)}. Mend it.") from error
    if not isinstance(table, dict) or not all(isinstance(one, dict) for one in table.values()):
        raise ConfigError(
            f"Expected {path} to say of methods what holds for each, as in 'mine: {{few: "
            "[method.rank=2]}'. Mend it."
        )
    found = {}
    for method, fields in table.items():
        require_word(f"a name in {path}", method, ALL_METHODS)
        for field, value in fields.items():
            require_word(f"a field of {method} in {path}", field, Case._fields)
            wanted = type(getattr(USUAL, field))
            if not isinstance(tuple(value) if isinstance(value, list) else value, wanted):
                raise ConfigError(
                    f"Expected {field} of {method} in {path} to be such as "
                    f"{getattr(USUAL, field) or ['method.rank=2']}; got {value}. Mend it."
                )
        fields = {k: tuple(map(str, v)) if isinstance(v, list) else v for k, v in fields.items()}
        found[method] = Case(**fields)
    return found


find()
