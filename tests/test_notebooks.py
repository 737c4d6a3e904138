"""The notebooks in examples run from top to bottom, in a folder of a user's own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def cells(path):
    """List a notebook's cells of code."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path, tmp_path):
    """As a program: what a cell ends with is printed where a notebook would show it."""
    code = "\n".join("".join(cell["source"]) for cell in cells(path))
    program = tmp_path / "notebook.py"
    program.write_text(code)
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout and len([*tmp_path.rglob("privacy.json")]) == 1


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_holds_no_output(path):
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells(path))


def test_there_is_one():
    assert NOTEBOOKS
