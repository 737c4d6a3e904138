"""Methods outside the repository: the page shows the template, and what is wrong is one line."""

import re
import shlex
import subprocess
import sys
from dataclasses import replace

import pytest

from dpexp import cli
from dpexp.cli import artifact, check_method, folders, from_python, verify
from dpexp.methods.dpsgd import DPSGD
from dpexp.privacy.calibration import require_releases
from dpexp.types import ConfigError, Release
from tests.contract import cases
from tests.marks import few, long
from tests.runs import with_words

ROOT = cli.CONF.parent
EXAMPLES = ROOT / "examples"
CONF = str(EXAMPLES / "extension" / "conf")
PAGE = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
SMALL = ["model=cnn", "model.channels=[4,8]", "model.kernel=3", "device=cpu"]
CHECK = ["tries=2", "climbs=2", "trials=40"]


def typed(program):
    """Return the words after a program in the one command of the page that begins with it."""
    (line,) = re.findall(rf"^    {re.escape(program)} (.+)$", PAGE, re.M)
    return shlex.split(line)


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "")


def test_the_pages_code_is_the_templates():
    sources = [p.read_text() for p in EXAMPLES.rglob("*") if p.suffix in (".py", ".yaml")]
    blocks = re.findall(r"^```(?:python|yaml)\n(.*?)^```", PAGE, re.M | re.S)
    assert len(blocks) == 3
    for block in blocks:
        imports, begins, code = block.rpartition("\n\n\nclass ")
        shown = (begins + code if imports else block).strip()
        assert any(shown in source for source in sources), block


def test_the_pages_method_is_a_file_as_it_stands():
    block, *_ = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    module = {"__name__": "my_methods"}
    exec(block, module)
    assert isinstance(module["Filtered"](0.9, ""), DPSGD)


@pytest.mark.long
@pytest.mark.parametrize("name", ["subspace", *map(long, ["two_clips", "filtered"])])
def test_the_pages_check_finds_a_method_of_the_template_sound(name, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = [word.replace("filtered", name) for word in typed("python -m scripts.check_method")]
    assert check_method.main([*words, *SMALL, *CHECK]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("name", few(["layer_wise", "peeking", "steered"], ["peeking"]))
def test_a_refused_method_is_refused_in_the_pages_words(name, capsys):
    conf = EXAMPLES / "refused" / "conf"
    assert check_method.main([f"--config-dir={conf}", f"method={name}", *SMALL]) == 1
    assert capsys.readouterr().out in PAGE


def test_the_contract_suite_holds_the_methods_of_folders_to_it(programs):
    refused = f"--config-dir={EXAMPLES / 'refused' / 'conf'}"
    names = "are_those_stated or empty_draw or was_killed and two_clips"
    chosen = ["-q", "-p", "no:cacheprovider", "--tb=no", "-k", names]
    words = ["-m", "pytest", *typed("python -m pytest"), refused, *chosen]
    done = programs.run(words, cwd=ROOT)
    failed = re.findall(r"^FAILED .*::test_([a-z]+).*\[(\w+)\]", done.stdout, re.M)
    assert failed == [("declared", "layer_wise"), ("an", "peeking"), ("an", "steered")]
    assert "3 failed, 10 passed" in done.stdout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dpsdg: {few: [model=cnn]}", "Did you mean dpsgd"),
        ("dpsgd: {fwe: [model=cnn]}", "Did you mean few"),
        ("dpsgd: {reach: much}", "to be such as 0.999; got much"),
        ("dpsgd: {few: model=cnn}", "to be such as"),
        ("- dpsgd", "to say of methods"),
        ("dpsgd: [1]", "to say of methods"),
        ("dpsgd: {few: [", "to be YAML"),
    ],
)
def test_what_a_folder_says_wrong_of_its_methods_is_one_line(tmp_path, text, said):
    path = tmp_path / "contract.yaml"
    path.write_text("dpsgd: {few: [method.rank=2], reach: 0.5}")
    assert cases.said(path) == {"dpsgd": cases.Case(few=("method.rank=2",), reach=0.5)}
    path.write_text(text)
    with pytest.raises(ConfigError, match=said) as raised:
        cases.said(path)
    assert "\n" not in str(raised.value)


def test_the_pages_run_is_verified_and_without_its_folder_told_what_to_set(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(EXAMPLES)
    words = [word.replace("filtered", "two_clips") for word in typed("python run.py")]
    record = from_python.run([*words, "model=gain_net epochs=0.5 device=cpu"])
    *words, runs = typed("python -m scripts.verify")
    assert [path.samefile(record.directory) for path in tmp_path.glob(runs)] == [True]
    directory = str(record.directory)
    assert verify.main([*words, directory]) == 0
    sys.modules.pop("my_methods")
    capsys.readouterr()
    assert verify.main([directory]) == 1
    assert "Add --config-dir FOLDER" in capsys.readouterr().out


def test_the_pages_table_is_planned_beside_published_values(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("MAKEFLAGS", raising=False)  # of the make that runs the tests
    make = subprocess.run(["make", "-n", *typed("make")], capture_output=True, text=True)
    (line,) = [line for line in make.stdout.splitlines() if "scripts.artifact " in line]
    words = shlex.split(line.partition("scripts.artifact ")[2])
    words += ["run=false", "results=nowhere"]
    assert artifact.main([*words, "plan=true", "rows=dpsgd"]) == 0
    assert artifact.main(with_words(words, ["paper=mien"])) == 2
    assert "did you mean 'mine'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "has none"),
        ({"methods/a.yaml": "x: 1"}, "Did you mean methods to be method?"),
        ({"method/a.yaml": "x: [1"}, "to be YAML"),
        ({"method/a.yaml": "x: 1\ny: 2\nx: 3"}, "a.yaml: Expected 'x' once; line 3 has it again"),
        ({"method/a.yaml": "- 1"}, "holds a list"),
        ({"method/a.yaml": b"\xff\xfe\x00"}, "to be YAML"),
        ({"method/a.yml": "x: 1"}, "Rename it"),
        ({"method/dpsgd.yaml": "x: 1"}, "a name that dpexp does not have"),
        ({"conf/method/a.yaml": "x: 1"}, "Did you mean"),
        ({"method/a.yaml": "_target_: nowhere_at_all.A\nname: a"}, "No module named"),
    ],
)
def test_a_folder_that_is_wrong_is_one_line(tmp_path, files, said, capsys):
    folder = tmp_path / "ü b,c"
    folder.mkdir()
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert verify.main(["--config-dir", str(folder), str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_folder_that_is_spelt_wrong_anywhere_has_a_nearest():
    wrong = str(EXAMPLES / "extention" / "cnof")
    with pytest.raises(ConfigError, match=f"there is none at .* Did you mean {CONF}"):
        folders.taken([f"--config-dir={wrong}"])


@pytest.mark.parametrize("words", [["--config-dir"], ["-cd", "--cfg"], ["--config-dir=/no/where"]])
def test_a_folder_that_is_not_there_is_refused(words):
    with pytest.raises(ConfigError, match="Expected"):
        folders.taken(words)


@pytest.mark.parametrize(
    "wrong",
    [
        {"sensitivity": 0.0},
        {"sensitivity": -1.0},
        {"sensitivity": float("nan")},
        {"clip_norm": float("inf")},
        {"dimension": 0},
        {"noise": "none"},
        {"clip": "l1"},
        {"noise_multiplier": 0.0},
        {"noise_multiplier": float("nan")},
    ],
)
def test_a_release_that_cannot_be_accounted_for_is_refused(wrong):
    with pytest.raises(ConfigError, match="of release all"):
        require_releases([Release(**{"name": "all", "dimension": 1, "clip_norm": 1.0, **wrong})])


GAUSSIAN, LAPLACE = (Release(noise, 1, 1.0, noise=noise) for noise in ("gaussian", "laplace"))


@pytest.mark.parametrize(
    ("releases", "said"),
    [
        ((), "to declare a release"),
        ((GAUSSIAN, replace(GAUSSIAN, clip_norm=2.0)), "every release once; got gaussian twice"),
        ((GAUSSIAN, LAPLACE), "one noise for all releases of a method; got both"),
        ((replace(GAUSSIAN, noise_multiplier=1.0),), "the noise of the budget; got none"),
        (
            (LAPLACE, replace(LAPLACE, name="own", noise_multiplier=1.0)),
            "one noise multiplier for all releases under Laplace noise",
        ),
    ],
)
def test_releases_that_cannot_be_accounted_for_together_are_refused(releases, said):
    with pytest.raises(ConfigError, match=said):
        require_releases(releases)
