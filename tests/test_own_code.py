"""Code of one's own behind a config: a finished or interrupted run is of that code alone."""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dpexp import cli, records
from dpexp.cli.lookup import done_before
from dpexp.records import LEDGER
from dpexp.records.loaded_code import may_be_of, require_as_loaded
from dpexp.records.own_code import own_code, own_loaded_code
from dpexp.training import checkpoint
from dpexp.training.ledger import surroundings_of
from dpexp.types import ConfigError
from tests.edited import mend
from tests.marks import long
from tests.runs import ALONE, Killed, die, interrupted

FILES = {
    "mine_here/__init__.py": "raise RuntimeError('imported')",
    "mine_here/net.py": "from . import parts\nfrom .deep.est import x\nimport other_here, json",
    "mine_here/parts.py": "from mine_here.net import Net\nfrom mine_here import *",
    "mine_here/deep/est.py": "def x():\n    import mine_here.late\n",
    "mine_here/late.py": "import absent_here\nx = (",
    "other_here.py": "import dpexp.types",
    "mine_here/unrelated.py": "",
    "unrelated_here.py": "",
}
NEEDED = {name for name in FILES if "unrelated" not in name}
NET = {"model": {"_target_": "mine_here.net.Net"}}


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """A package of the user's and a module beside it, on Python's path."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path


def test_files_that_code_needs_are_found_and_none_of_them_runs(theirs):
    (files,) = own_code({**NET, "optimizer": {"_target_": "torch.optim.SGD"}}).values()
    assert files.keys() == NEEDED


@pytest.mark.parametrize("name", FILES)
def test_a_change_of_what_is_needed_is_a_change_and_no_other_is(theirs, name):
    config = {"method": {"parts": [{"_target_": "mine_here.net.Net.made"}]}}
    before = own_code(config)
    (theirs / name).write_text(FILES[name] + "\n# changed\n")
    assert (own_code(config) != before) == (name in NEEDED)


@pytest.mark.parametrize(
    "target",
    ["dpexp.models.wrn.WRN", "torch.optim.SGD", "os.system", "absent_here.X", "", ".", "a..b"],
)
def test_what_is_not_ones_own_or_is_not_there_has_none(target):
    assert own_code({"model": {"_target_": target}}) == {}


def test_noise_is_not_drawn_again_for_sums_of_other_code(theirs):
    before = surroundings_of(NET, "data", torch.nn.Linear(1, 1), ALONE, own_code(NET))
    (theirs / "other_here.py").write_text("x = 1")
    assert surroundings_of(NET, "data", torch.nn.Linear(1, 1), ALONE, own_code(NET)) != before


CODE = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Flatten(), nn.LazyLinear(num_classes))
        self(__import__("torch").zeros(1, 64))
"""


WORDS = "model=python target=own_net_here.Net task=digits epochs=0.1 profile=embedded".split()


@pytest.fixture
def net(tmp_path, monkeypatch):
    """A file of the user's on Python's path, and the words of runs that train what it defines."""
    file = tmp_path / "own_net_here.py"
    file.write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    yield file, [*WORDS, f"results={tmp_path / 'results'}"]
    sys.modules.pop("own_net_here", None)


@pytest.mark.parametrize(
    "words",
    ["method=dpsgd eps=8", long("method=dpsgd eps=8 noise=secret"), "method=nonprivate"],
)
@pytest.mark.filterwarnings("ignore:.* may have been released")
@pytest.mark.parametrize("every", [1, 10**6])
def test_an_interrupted_run_goes_on_with_the_code_it_began_with_alone(net, words, every):
    file, theirs = net
    name = words.split()[0].removeprefix("method=")
    theirs = [*theirs, *words.split(), "batch_size=36", f"checkpoint.steps={every}"]
    config = cli.compose(theirs)
    with pytest.raises(Killed):
        interrupted(config, cli.build_parts(config, ALONE.device), 3, die)
    sys.modules.pop("own_net_here")
    file.write_text(CODE.replace("LazyLinear(", "LazyLinear(out_features="))
    if every > 1 and name == "nonprivate":  # nothing is left of it: it begins anew
        assert (cli.execute(config) / "result.json").exists()
        return
    with pytest.raises(ConfigError, match="own_net_here.py of own_net_here.Net differs"):
        cli.execute(config)
    sys.modules.pop("own_net_here")
    file.write_text(CODE)
    assert (cli.execute(config) / "result.json").exists()


EDITED_AT_THE_START = """
    def state_dict(self, *words, **more):
        if any(__import__("pathlib").Path("{results}").rglob("config.yaml")):
            with open(__file__, "a") as file:
                file.write("# edited\\n")
        return super().state_dict(*words, **more)
"""


def test_ledger_and_checkpoint_name_the_code_of_the_start(net):
    """What reads the weights first, as the run begins, edits the file meanwhile."""
    file, theirs = net
    results = theirs[-1].partition("=")[2]
    file.write_text(CODE + EDITED_AT_THE_START.format(results=results))
    config = cli.compose([*theirs, "method=dpsgd", "eps=8", "batch_size=36", "checkpoint.steps=1"])
    of_the_start = own_code(config)
    with pytest.raises(Killed):
        interrupted(config, cli.build_parts(config, ALONE.device), 3, die)
    assert own_code(config) != of_the_start
    directory = records.locate(config["results"], config)
    assert records.read_mark(directory).own_code == of_the_start
    saved = checkpoint.load(directory / "checkpoint.pt")
    assert checkpoint.files_of(saved, checkpoint.OWN_CODE) == of_the_start


def test_a_run_of_former_code_does_not_go_on(net):
    _, theirs = net
    config = cli.compose([*theirs, "method=dpsgd", "eps=8", "batch_size=36", "checkpoint.steps=1"])
    with pytest.raises(Killed):
        interrupted(config, cli.build_parts(config, ALONE.device), 3, die)
    ledger = records.locate(config["results"], config) / LEDGER
    head, *rest = ledger.read_text().split("\n")
    ledger.write_text("\n".join([json.dumps(json.loads(head) | {"own_code": {}}), *rest]))
    with pytest.raises(ConfigError, match="what is known of own_net_here.Net differs"):
        cli.execute(config)


def test_a_finished_run_is_looked_up_for_the_code_that_it_trained(net):
    file, theirs = net
    config = cli.compose([*theirs, "method=dpsgd", "eps=8"])
    directory = cli.execute(config)
    sys.modules.pop("own_net_here")
    line = done_before(config)
    assert line.startswith("done before: ") and "code" not in line
    file.write_text(CODE + "# changed\n")
    with pytest.raises(
        ConfigError, match="its code is another: own_net_here.py of own_net_here.Net"
    ):
        done_before(config)
    result = json.loads((directory / "result.json").read_text())
    del result["own_code_sha256"]
    (directory / "result.json").write_text(json.dumps(result))
    mend(directory)
    assert "older and does not say of which code of own_net_here.Net" in done_before(config)


HEAD = f"LEVEL, TABLE = 1, [2]\nSCALES = {{'a': 3}}\nfor each in [4]: pass\n{CODE}"
CHANGES = {
    "a function": HEAD.replace("num_classes))", "num_classes, True))"),
    "a constant": HEAD.replace("LEVEL, TABLE = 1", "LEVEL, TABLE = 7"),
    "a list": HEAD.replace("[2]", "[7]"),
    "a dictionary": HEAD.replace("3", "7"),
    "a loop": HEAD.replace("[4]", "[7]"),
    "a default": HEAD.replace("self, num_classes):", "self, num_classes, bias=True):"),
    "a decorator": HEAD.replace("    def", "    @__import__('functools').cache\n    def"),
    "a base class": HEAD.replace("nn.Sequential)", "nn.Sequential, object)"),
    "an attribute": f"{HEAD}    gain = 7\n",
    "what is new": f"{HEAD}\ndef forward(): pass\n",
    "what is gone": HEAD.replace("for each in [4]: pass\n", ""),
    "an error of syntax": f"{HEAD}\nx = (",
}


def loaded_as_in_its_file(module):
    require_as_loaded({Path(module.__file__): Path(module.__file__).read_bytes()})


@pytest.mark.parametrize("name", CHANGES)
def test_code_that_changed_since_it_was_imported_is_known(net, name):
    file, _ = net
    file.write_text(HEAD)
    module = importlib.import_module("own_net_here")
    loaded_as_in_its_file(module)
    file.write_text(CHANGES[name])
    with pytest.raises(ConfigError, match="own_net_here.py as it was imported; it has changed"):
        loaded_as_in_its_file(module)
    file.write_text(HEAD)
    loaded_as_in_its_file(module)
    if "syntax" not in name:
        file.write_text(CHANGES[name])
        loaded_as_in_its_file(importlib.reload(module))


@pytest.mark.parametrize("is_seen", [False, True])
def test_code_that_changed_since_it_was_imported_does_not_train(net, is_seen):
    file, theirs = net
    module = importlib.import_module("own_net_here")
    theirs = [*theirs, "method=dpsgd", "eps=8"]
    if is_seen:
        cli.execute(cli.compose(theirs))
    file.write_text(CODE.replace("num_classes))", "num_classes, True))"))
    config = cli.compose([*theirs, "seed=1"])
    with pytest.raises(ConfigError, match="own_net_here.py as it was imported; it has changed"):
        cli.execute(config)
    assert not records.locate(config["results"], config).exists()
    importlib.reload(module)
    assert (cli.execute(config) / "result.json").exists()


@pytest.mark.parametrize(
    "changed",
    [CODE + "\n# changed\n", "# above\n\n" + CODE, CODE.replace("\n", "\r\n"), "\ufeff" + CODE,
     "# coding: utf-8\n" + CODE, CODE.replace("(num_classes)", "( num_classes )")],
)  # fmt: skip
def test_a_changed_comment_or_layout_is_no_other_code(net, changed):
    file, _ = net
    module = importlib.import_module("own_net_here")
    file.write_bytes(changed.encode())
    loaded_as_in_its_file(module)


STRANGE = """
import abc, collections, dataclasses, enum, functools, typing
def doubled(function):
    return functools.wraps(function)(lambda *words: 2 * function(*words))
class Meta(type):
    def __new__(meta, name, bases, held):
        return super().__new__(meta, name + "Made", bases, {**held, "one": lambda self: 1})
class Net(metaclass=Meta):
    @doubled
    def one(self): return [each for each in (1, 2) if (lambda: each)()]
@dataclasses.dataclass(frozen=True, order=True)
class Data: x: int = 1
class Kind(enum.Enum): A = enum.auto()
Pair = collections.namedtuple("Pair", "a b")
exec("def made(x): return x + 1")
made.__code__ = (lambda x: x).__code__
@functools.singledispatch
def _(x): return x
@_.register
def _(x: int): return x
@doubled
def gone(): pass
del gone
LEVEL = 1
def put(): globals()["LEVEL"] = 2
put()
class Base(abc.ABC):
    @property
    @abc.abstractmethod
    def width(self): "of it"
    @typing.overload
    def __call__(self, x: int): ...
    def __call__(self, x): return x
    class Inner:
        @staticmethod
        def deep(): return lambda: 1
"""


EARLY = "import math\nLEVEL = 1\nTABLE = [2]\ndef f(x): return x\n"
EDITS = [
    ("x\n", "-x\n"), ("= 1", "= 2"), ("[2]", "[3]"), ("import math", "import math, json"),
    ("[2]\n", "[2]\ndef g(): pass\n"), ("import", "# comment\nimport"), ("def f", "class f"),
]  # fmt: skip
CHECK_EARLY = """
import importlib, json, pathlib, sys
modules = [importlib.import_module(f"own_early_{index}") for index in range(len(sys.argv) - 1)]
for module, text in zip(modules, sys.argv[1:]):
    pathlib.Path(module.__file__).write_text(text)
import dpexp
from dpexp.records.own_code import own_loaded_code
for module in modules:
    try:
        own_loaded_code({"model": {"_target_": module.__name__ + ".Net"}})
        print("as imported")
    except dpexp.types.ConfigError as error:
        print("changed")
"""


@pytest.mark.parametrize("unseen", [[], ["[3]", "import math, json"]])
def test_edits_of_modules_that_were_imported_before_dpexp(tmp_path, unseen):
    """Without the bytecode that Python keeps, statements other than definitions are not seen."""
    for index in range(len(EDITS)):
        (tmp_path / f"own_early_{index}.py").write_text(EARLY)
    variables = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    variables |= {"PYTHONDONTWRITEBYTECODE": "1"} if unseen else {}
    texts = [EARLY.replace(*edit) for edit in EDITS]
    found = subprocess.run(
        [sys.executable, "-c", CHECK_EARLY, *texts], env=variables, capture_output=True, text=True
    )
    same = ["# comment\nimport", *unseen]
    expected = ["as imported" if new in same else "changed" for _, new in EDITS]
    assert found.stdout.splitlines() == expected, found.stderr


def test_a_file_that_is_gone_is_not_as_it_was_imported(net):
    file, _ = net
    importlib.import_module("own_net_here")
    file.unlink()
    with pytest.raises(ConfigError, match="own_net_here.py as it was imported; it has changed"):
        own_loaded_code({"model": {"_target_": "own_net_here.Net"}})


@pytest.mark.parametrize("is_by_file", [False, True])
def test_strange_code_is_as_in_its_file(net, is_by_file):
    """Also where it was not imported in Python's own way, and nothing is remembered."""
    file, _ = net
    file.write_text(STRANGE.replace("put()\nclass", "class") if is_by_file else STRANGE)
    if is_by_file:
        spec = importlib.util.spec_from_file_location("own_net_here", file)
        sys.modules["own_net_here"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module("own_net_here")
    loaded_as_in_its_file(module)
    file.write_text("# moved\n" + file.read_text())
    loaded_as_in_its_file(module)


@pytest.mark.parametrize(
    "name",
    ["enum", "shutil", *map(long, ["ast", "typing", "argparse"]), "dataclasses", "functools",
     "json.decoder", "collections", "logging", "omegaconf.dictconfig", "torch.nn.modules.conv",
     *map(long, ["pandas.core.frame", "torch.nn.functional"]), "torch.optim.adam",
     "jinja2.environment"],
)  # fmt: skip
def test_anyones_module_is_as_in_its_file(name):
    module = importlib.import_module(name)
    content = Path(module.__file__).read_bytes()
    assert may_be_of(module, content, module.__file__)
    assert not may_be_of(module, content + b"\ndef one_more(): pass", module.__file__)
