"""Which files are the user's own: by where Python finds them, whatever they are called."""

import importlib.util
import py_compile
import subprocess
import sys
import zipfile

import pytest

from dpexp.records.own_code import own_code


def archived(folder):
    with zipfile.ZipFile(folder / "own_lib.zip", "w") as archive:
        archive.writestr("own_in_zip.py", "import own_b")
    sys.path.insert(0, str(folder / "own_lib.zip"))


def compiled(folder):
    py_compile.compile(folder / "own_a.py", cfile=folder / "own_a.pyc")
    (folder / "own_a.py").unlink()


def linked(folder):
    (folder / "own_link").symlink_to(folder / "own_p", target_is_directory=True)


def editable(folder):
    """As an editable install does, with a finder of its own behind Python's."""

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name == "own_ed":
                where = folder / "src" / "core"
                return importlib.util.spec_from_file_location(
                    name, where / "__init__.py", submodule_search_locations=[str(where)]
                )
            return None

    sys.meta_path.append(Finder)


def installed(folder):
    sys.path.insert(0, str(folder / "site-packages"))


FILES = {
    "own_a.py": "import own_b, json\nfrom own_p import sub",
    "own_b.py": "",
    "own_p/sub.py": "from . import side",
    "own_p/side.py": "from .deep.down import x",
    "own_p/deep/down.py": "from ...own_p import nothing\nfrom .... import too_high",
    "own_words.py": """
import importlib, hydra
def late():
    importlib.import_module("own_b")
    importlib.import_module(name=".side", package="own_p")
    hydra.utils.instantiate({"_target_": "own_made.X"}, more=dict(_target_="own_more.X"))
    return hydra.utils.get_class("own_found.X"), __import__("own_last")
""",
    **{f"own_{name}.py": "" for name in ("made", "more", "found", "last")},
    "antigravity.py": "from pip import own",
    "pip/__init__.py": "",
    "pip/own.py": "",
    "src/core/__init__.py": "from own_ed.net import Net",
    "src/core/net.py": "import own_b",
    "site-packages/own_lib.py": "import own_b",
    "own_of_lib.py": "import own_lib",
    "train.py": "",
    "own_zero.py": "import own_b\0",
}
P = ["own_p/sub.py", "own_p/side.py", "own_p/deep/down.py"]
CASES = {
    "a namespace": (None, "own_a.N", ["own_a.py", "own_b.py", *P]),
    "found by words": (None, "own_words.late", [
        "own_words.py", "own_b.py", "own_made.py", "own_more.py", "own_found.py", "own_last.py"]),
    "named like Python's and an installed one": (
        None, "antigravity.N", ["antigravity.py", "pip/__init__.py", "pip/own.py"]),
    "in an archive": (archived, "own_in_zip.N", ["own_lib.zip", "own_b.py"]),
    "bytecode alone": (compiled, "own_a.N", ["own_a.pyc", "own_b.py", *P]),
    "a linked folder": (linked, "own_link.sub.N", [
        each.replace("own_p", "own_link") for each in P]),
    "an editable install": (
        editable, "own_ed.net.Net", ["own_ed/__init__.py", "own_ed/net.py", "own_b.py"]),
    "a library": (installed, "own_of_lib.N", ["own_of_lib.py"]),
    "no program": (None, "own_zero.N", ["own_zero.py"]),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of all these files on Python's path."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    for name in [name for name in sys.modules if name.partition(".")[0] == "pip"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", CASES)
def test_files_are_found_wherever_python_would(folder, name):
    prepare, target, expected = CASES[name]
    if prepare:
        prepare(folder)
    assert {*own_code({"model": {"_target_": target}})[target]} == {*expected}
    assert not {each for each in sys.modules if each.startswith("own_")}  # none was imported


def test_code_that_hydra_finds_by_a_word_counts_and_no_other_word_does(folder):
    config = {
        "one": {"_target_": "hydra.utils.get_class", "path": "own_b.Net"},
        "two": {"parts": [{"_target_": "hydra.utils.get_method", "_args_": ["own_p.side.f"]}]},
        "three": {"_target_": "torch.optim.SGD", "path": "train.csv", "_partial_": True},
        "four": {"_target_": "builtins.dict", "of": {"_target_": "own_a.N", "_partial_": True}},
    }
    assert own_code(config).keys() == {"own_b.Net", "own_p.side.f", "own_a.N"}


@pytest.mark.parametrize("way", ["script", "module", "words"])
def test_a_script_that_runs_is_its_users(folder, way):
    """A model of it that was handed over has its hash in the run's id instead."""
    lines = """
from dpexp.records.own_code import own_code
model = {"_target_": "__main__.Net"}
print(*own_code({"a": model})["__main__.Net"], own_code({"a": {**model, "code": "0"}}))
"""
    (folder / "own_p" / "main.py").write_text("import own_b\n" + lines)
    words = {
        "script": ["own_p/main.py"],
        "module": ["-m", "own_p.main"],
        "words": ["-c", lines.replace('["__main__.Net"]', "")],
    }[way]
    found = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True,
        env={"PYTHONPATH": f"{folder}:{':'.join(sys.path)}"},
    )  # fmt: skip
    expected = {"script": "main.py own_b.py {}", "module": "own_p/main.py own_b.py {}"}
    assert found.stdout.strip() == expected.get(way, "{}"), found.stderr
