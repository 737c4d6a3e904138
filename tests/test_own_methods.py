"""A method of one's own is one file and one YAML, in any folder: it trains and is verified."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from dpexp import cli
from dpexp.cli import audit, audited, check_method, own_methods, verify
from dpexp.privacy.stated import statement_of
from tests.edited import content, mend, write
from tests.marks import few

ROOT = Path(__file__).resolve().parents[1]

CODE = '''
"""Methods of a user's own: weights of matrices and all else, as one vector or as two."""

from dpexp.methods.selection import all_parameters, shapes_of
from dpexp.methods.rgp import RGP
from dpexp.privacy.stated import Stated
from dpexp.types import Key, Method, Release


class Two(Method):
    """Releases weights and vectors apart, each with its own bound."""

    names = ("weights", "vectors")

    def __init__(self, vector_clip):
        self._vector_clip = vector_clip

    @staticmethod
    def stated_releases(config, size):
        clip_norm, settings = config["privacy"]["clip_norm"], config["method"]
        return [Stated("weights", clip_norm), Stated("vectors", settings["vector_clip"])]

    def trainable(self, model):
        return all_parameters(model)

    def start(self, model):
        return {"shapes": shapes_of(model, all_parameters(model))}

    def key(self, name, shape):
        return Key(self.names[len(shape) == 1], name)

    def per_example_grads(self, state, layer, layer_grads):
        full = {name: f"{layer}.{name}" for name in layer_grads.parameters}
        return {
            self.key(whole, state["shapes"][whole]): layer_grads.gradient(name)
            for name, whole in full.items()
        }

    def release_shapes(self, state):
        return {self.key(name, shape): shape for name, shape in state["shapes"].items()}

    def releases(self, state, clip_norm):
        bounds = dict(zip(self.names, (clip_norm, self._vector_clip)))
        sizes = dict.fromkeys(bounds, 0)
        for name, shape in state["shapes"].items():
            size = 1
            for side in shape:
                size *= side
            sizes[self.key(name, shape).release] += size
        return tuple(Release(name, sizes[name], bounds[name]) for name in bounds)

    def reconstruct(self, state, noisy):
        return {key.parameter: gradient for key, gradient in noisy.items()}, state


class One(Two):
    """Releases all as one vector."""

    names = ("all", "all")

    def __init__(self):
        super().__init__(None)

    @staticmethod
    def stated_releases(config, size):
        return [Stated("all", config["privacy"]["clip_norm"], dimension=size)]

    def releases(self, state, clip_norm):
        ((name, size, _),) = [(r.name, r.dimension, 0) for r in super().releases(state, clip_norm)]
        return (Release(name, size, clip_norm),)


class Wider(One):
    """Clips at twice what it states."""

    @staticmethod
    def stated_releases(config, size):
        return [Stated("all", config["privacy"]["clip_norm"], dimension=size)]

    def releases(self, state, clip_norm):
        (release,) = super().releases(state, clip_norm)
        return (Release(release.name, release.dimension, 2 * clip_norm),)


class Second(Two):
    """Releases a second vector that it does not state."""

    def __init__(self):
        super().__init__(1.0)

    @staticmethod
    def stated_releases(config, size):
        return [Stated("weights", config["privacy"]["clip_norm"])]


class Silent(One):
    """States nothing itself: what its parent states is not of it."""
'''
METHODS = {
    "one": "_target_: {module}.One\nname: one\n",
    "two": "_target_: {module}.Two\nname: two\nvector_clip: 0.5\n",
    "wider": "_target_: {module}.Wider\nname: wider\n",
    "second": "# @package _global_\nmethod:\n  _target_: {module}.Second\n  name: second\n",
    "silent": "_target_: {module}.Silent\nname: silent\n",
}
DIGITS = ["task=digits", "profile=embedded", *audited.SMALL, "device=cpu", "eps=4", "epochs=0.5"]


class Theirs:
    """A folder of conf and a folder of code, as a user may have them anywhere."""

    def __init__(self, root, module):
        self.conf, self.code, self.module = root / "conf", root / "code", module
        (self.conf / "method").mkdir(parents=True)
        self.code.mkdir()
        (self.code / f"{module}.py").write_text(CODE)
        for name, text in METHODS.items():
            (self.conf / "method" / f"{name}.yaml").write_text(text.format(module=module))
        self.word = f"hydra.searchpath=[file://{self.conf}]"

    def trained(self, name, results):
        words = [self.word, f"method={name}", *DIGITS, f"results={results}"]
        return cli.execute(cli.compose(words))


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """Code that this process may import, and has not imported."""
    brought = Theirs(tmp_path, f"brought_{os.getpid()}")
    monkeypatch.syspath_prepend(brought.code)
    yield brought
    sys.modules.pop(brought.module, None)


def forget(theirs):
    """Verify as another process would, which has not trained."""
    sys.modules.pop(theirs.module, None)


@pytest.mark.parametrize("name", few(["one", "two"], ["two"]))
def test_a_file_and_a_yaml_are_a_method_that_trains_and_is_verified(
    theirs, tmp_path, programs, name
):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(theirs.code)])

    def call(*words):
        return programs.run([*words], cwd=tmp_path, env=environment)

    words = [theirs.word, f"method={name}", *DIGITS, f"results={tmp_path / 'results'}"]
    done = call(ROOT / "run.py", *words)
    assert done.returncode == 0, done.stderr
    directory = done.stdout.splitlines()[-1]
    assert json.loads(Path(directory, "result.json").read_text())["steps"] > 1
    verified = call(ROOT / "scripts" / "verify.py", theirs.word, directory)
    first, trusted, second = verified.stdout.splitlines()
    # What it states is compared with the certificate; whether its code keeps to that is not.
    assert verified.returncode == 0 and first.startswith(
        f"{directory}: holds on trust: epsilon 3.9"
    )
    assert trusted.startswith(f"{directory}: taken on trust: method {theirs.module}.")
    assert "is not of dpexp: that its code keeps to its own statement" in trusted
    assert second.startswith(f"{directory}: not checked: ")
    assert ("dimensions" in second) == (name == "two")  # which the other one states


def test_where_no_conf_of_ones_own_names_it_a_method_is_taken_on_trust(theirs, tmp_path, capsys):
    one, two = (theirs.trained(name, tmp_path / "results") for name in ("one", "two"))
    forget(theirs)
    assert verify.main([str(one)]) == 0
    said = capsys.readouterr().out
    assert "holds on trust" in said and f"method {theirs.module}.One is not known here" in said
    assert verify.main([str(two)]) == 1
    assert "1 leave at a step; privacy.json names 2" in capsys.readouterr().out
    assert theirs.module not in sys.modules


FORGERIES = {
    "a larger bound": lambda releases: releases[0].update(clip_norm=2.0),
    "a smaller sensitivity": lambda releases: releases[0].update(sensitivity=0.5),
    "the other bound": lambda releases: releases[1].update(clip_norm=0.1),
    "another name": lambda releases: releases[1].update(name="others"),
    "other noise": lambda releases: releases[1].update(noise="laplace"),
    "one left out": lambda releases: releases.pop(),
    "one too many": lambda releases: releases.append(releases[0]),
}


def test_a_release_that_was_tampered_with_is_refused(theirs, tmp_path):
    directory = theirs.trained("two", tmp_path / "results")
    privacy = content(directory, "privacy.json")
    assert verify.verify(directory)[0] == 0
    for name, forge in FORGERIES.items():
        forged = json.loads(json.dumps(privacy))
        forge(forged["releases"])
        write(directory, "privacy.json", forged)
        mend(directory)
        code, lines = verify.verify(directory)
        assert code == 1 and any("release" in line for line in lines), name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("wider", "release all, clip_norm: expected 10.0; got 20.0"),
        ("second", "releases: 1 leave at a step; privacy.json names 2"),
    ],
)
def test_code_that_releases_something_else_than_it_states_is_refused(
    theirs, tmp_path, capsys, name, said
):
    directory = theirs.trained(name, tmp_path / "results")
    forget(theirs)
    assert verify.main([theirs.word, str(directory)]) == 1
    assert said in capsys.readouterr().out


def test_a_subclass_states_for_itself_or_is_taken_on_trust(theirs, tmp_path, capsys):
    directory = theirs.trained("silent", tmp_path / "results")
    assert verify.main([theirs.word, str(directory)]) == 0
    said = capsys.readouterr().out
    assert "holds on trust" in said and f"method {theirs.module}.Silent states no releases" in said
    (note,) = re.findall(r": note: (.*)", said)
    assert note.startswith(f"{theirs.module}.Silent states no releases itself, and inherits none")
    (line,) = re.findall(r"returns (\[Stated.*?\)\])", note)
    typed = (
        "from dpexp.privacy.stated import Stated\n\n\n"
        "class Silent(One):\n"
        "    @staticmethod\n"
        "    def stated_releases(config, size):\n"
        f"        return {line.replace('gradient', 'all')}\n"
    )
    module = sys.modules[theirs.module]
    exec(typed, vars(module))
    module.Silent.__module__ = theirs.module
    assert verify.main([theirs.word, str(directory)]) == 0
    said = capsys.readouterr().out
    assert "keeps to its own statement" in said and "releases one vector" not in said
    assert "note" not in said


def test_what_a_record_alone_names_is_not_imported(theirs, tmp_path, capsys):
    directory = theirs.trained("one", tmp_path / "results")
    text, written = (directory / "config.yaml").read_text(), tmp_path / "written"
    (theirs.code / "hostile.py").write_text(f"open({str(written)!r}, 'w')\nclass One: pass\n")
    for target in ("hostile.One", "hostile", "dpexp.hostile.One", "", None, ["x"]):
        named = text.replace(f"{theirs.module}.One", json.dumps(target))
        (directory / "config.yaml").write_text(named)
        assert verify.main([theirs.word, str(directory)]) == 1  # its directory is another run's
        assert not written.exists() and "hostile" not in sys.modules
        assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("target", ["os.system", "json.JSONDecoder", "dpexp.types.Method"])
def test_what_is_no_method_that_states_something_states_nothing(target):
    config = {"method": {"_target_": target}, "privacy": {"clip_norm": 3}}
    stated = statement_of(config)
    assert not stated.is_known and stated.votes is None
    assert [each.clip_norm for each in stated.releases(config, 1)] == [3.0]


def test_audits_find_it_by_themselves(theirs):
    subjects = audited.subjects_of([theirs.word])
    assert {*METHODS} <= {subject.name for subject in subjects}
    seeds = [subject.seed for subject in subjects]
    assert len({*seeds}) == len(seeds)


@pytest.mark.long
def test_it_is_checked_and_audited(theirs, tmp_path, capsys):
    assert (
        check_method.main([theirs.word, "method=two", *audited.SMALL, "tries=2", "climbs=2"]) == 0
    )
    small = [*audited.SMALL, "trials=10", "steps=1", "audit.m=50", "epochs=0.5"]
    words = ["methods=two", theirs.word, *small, f"results={tmp_path / 'results'}"]
    assert audit.main(words) == 0, capsys.readouterr().err
    assert "two: of ε" in capsys.readouterr().out


@pytest.mark.parametrize("place", ["file:///nowhere/at/all", "pkg://json"])
def test_a_folder_that_is_not_there_is_a_mistake_in_one_line(theirs, tmp_path, place, capsys):
    assert verify.main([f"hydra.searchpath=[{place}]", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: Expected hydra.searchpath") and place in line


def test_every_method_of_conf_states_what_it_releases_itself():
    said = own_methods.methods()
    assert len(said) > 15
    for name in said:
        config = cli.compose([f"method={name}", *DIGITS])
        assert statement_of(config).is_known, name
