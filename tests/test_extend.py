"""Methods outside the repository: the page shows the template, and what is wrong is one line."""

import re
import sys

import pytest

from dpexp import cli
from dpexp.cli import artifact, check_method, folders, from_python, verify
from dpexp.privacy.calibration import require_releases
from dpexp.types import ConfigError, Release

ROOT = cli.CONF.parent
EXAMPLES = ROOT / "examples"
CONF = str(EXAMPLES / "extension" / "conf")
PAGE = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
SMALL = ["model=cnn", "model.channels=[4,8]", "model.kernel=3", "device=cpu"]
CHECK = ["tries=2", "climbs=2", "trials=40"]


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "")


def test_the_pages_code_is_the_templates():
    sources = [p.read_text() for p in EXAMPLES.rglob("*") if p.suffix in (".py", ".yaml")]
    blocks = re.findall(r"^```(?:python|yaml)\n(.*?)^```", PAGE, re.M | re.S)
    assert len(blocks) == 3
    for block in blocks:
        assert any(block.rstrip() in source for source in sources), block


@pytest.mark.parametrize("name", ["subspace", "two_clips", "filtered"])
def test_a_method_of_the_template_is_sound(name, capsys):
    words = ["--config-dir", CONF, f"method={name}", *SMALL, *CHECK]
    assert check_method.main(words) == 0, capsys.readouterr().out


@pytest.mark.parametrize("name", ["layer_wise", "peeking", "steered"])
def test_a_refused_method_is_refused_in_the_pages_words(name, capsys):
    conf = EXAMPLES / "refused" / "conf"
    assert check_method.main([f"--config-dir={conf}", f"method={name}", *SMALL]) == 1
    assert capsys.readouterr().out in PAGE


def test_python_takes_a_relative_folder_and_verify_says_what_to_set(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(EXAMPLES)
    words = "method=two_clips task=digits model=gain_net profile=embedded epochs=0.5 device=cpu"
    record = from_python.run(["-cd extension/conf", words, f"results={tmp_path}"])
    assert verify.main(["-cd", "extension/conf", str(record.directory)]) == 0
    sys.modules.pop("my_methods")
    capsys.readouterr()
    assert verify.main([str(record.directory)]) == 1
    assert "Add --config-dir FOLDER" in capsys.readouterr().out


def test_a_table_of_ones_own_is_planned_beside_published_values(capsys):
    words = ["table1", "paper=mine", "--config-dir", CONF, "run=false", "results=nowhere"]
    assert artifact.main([*words, "plan=true", "rows=dpsgd"]) == 0
    assert artifact.main([*words, "paper=mien"]) == 2
    assert "did you mean 'mine'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "has none"),
        ({"methods/a.yaml": "x: 1"}, "Did you mean methods to be method?"),
        ({"method/a.yaml": "x: [1"}, "to be YAML"),
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
    ],
)
def test_a_release_that_cannot_be_accounted_for_is_refused(wrong):
    with pytest.raises(ConfigError, match="of release all"):
        require_releases([Release(**{"name": "all", "dimension": 1, "clip_norm": 1.0, **wrong})])
