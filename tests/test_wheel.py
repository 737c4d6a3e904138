"""What `pip install .` brings: the package with all of its files, conf inside it, and a command."""

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.marks import long

ROOT = Path(__file__).resolve().parents[1]
UNKEPT = shutil.ignore_patterns("__pycache__")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel of what is here, from a copy: building leaves folders behind."""
    for needed in ("pip", "setuptools"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"no {needed} is here to build a wheel with, and none is fetched")
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copy(ROOT / name, source)
    for name in ("dpexp", "conf"):
        shutil.copytree(ROOT / name, source / name, ignore=UNKEPT)
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    command = [sys.executable, "-m", "pip", "wheel", str(source), *offline, "-w", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    return path


def files_of(folder):
    kept = (path for path in (ROOT / folder).rglob("*") if path.is_file())
    return {str(path.relative_to(ROOT)) for path in kept if "__pycache__" not in path.parts}


def test_a_wheel_has_every_file_of_the_package_and_of_conf_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == files_of("dpexp") | {f"dpexp/{name}" for name in files_of("conf")}


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Unpack the wheel as an installation would, away from the checkout."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    (text,) = folder.glob("*.dist-info/entry_points.txt")
    assert "dpexp = dpexp.cli.__main__:main" in text.read_text()
    return folder


@pytest.fixture
def command(installed, tmp_path, programs, monkeypatch):
    """Run the installed `dpexp WORDS` in an empty folder."""
    monkeypatch.setenv("PYTHONPATH", str(installed))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    code = (
        "import sys; from dpexp.cli import CONF; from dpexp.cli.__main__ import main; "
        f"assert str(CONF) == {str(installed / 'dpexp' / 'conf')!r}; sys.exit(main())"
    )
    return lambda *words: programs.run(["-c", code, *words], cwd=tmp_path)


def test_what_is_installed_trains_verifies_and_shows_in_an_empty_folder(command, tmp_path):
    done = command("run", "method=dpsgd", "task=digits", "eps=8", "profile=embedded", "epochs=0.2")
    assert done.returncode == 0, done.stderr
    directory = done.stdout.splitlines()[-1]
    checked = command("verify", directory)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert f"{directory}: pass: epsilon" in checked.stdout
    table = command("table", "table1", "paper=gep", "run=false", "results=mine")
    assert table.returncode == 0, table.stderr
    assert (tmp_path / table.stdout.splitlines()[-1]).is_file()


@pytest.mark.long
def test_what_is_installed_plans_the_papers_runs_without_their_data(command, tmp_path):
    words = ["table3", "paper=gep", "profile=paper", "plan=true", "data_root=none"]
    done = command("table", *words)
    assert done.returncode == 0
    (note,) = done.stderr.splitlines()
    assert note.startswith("note: 13 cells with a grid of settings that are not all tried")
    (total,) = [line for line in done.stdout.splitlines() if line.startswith("| **total** |")]
    runs, hours, petaflops = [float(word.replace(",", "")) for word in total.split("|")[2:5]]
    assert runs > 0 and hours > 0 and petaflops > 0
    assert "Not in it" not in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["tabel"],
            "Expected one of run, table, figure, verify, tune, predict, budget; got "
            "tabel. Did you mean table?",
        ),
        long(["run", "method=rpg", "task=digits"], "Did you mean rgp?"),
        long(["table", "tabel1", "paper=gep"], "did you mean 'table1'?"),
        long(["verify", "nowhere"], "Expected a run's directory; there is none at nowhere."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_words_are_one_line_and_exit_code_2(command, words, said):
    done = command(*words)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and said in line


@pytest.mark.parametrize(
    ("words", "code"),
    [([], 2), long(["--help"], 0), (["table", "--help"], 0), long(["tune", "--help"], 0)],
)
def test_help_speaks_of_the_command_that_was_asked(command, words, code):
    done = command(*words)
    assert (done.returncode, done.stderr) == (code, "")
    example = "dpexp tune table3" if words[:1] == ["tune"] else "dpexp table table3"
    assert example in done.stdout and "scripts" not in done.stdout
