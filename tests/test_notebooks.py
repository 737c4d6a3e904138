"""The notebooks in examples, and pages of Python, run from top to bottom in a user's own folder."""

import ast
import inspect
import json
import re
from pathlib import Path

import pytest

import dpexp
from tests.marks import few

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
PAGES = [ROOT / "docs" / "python.md"]


def cells(path):
    """List a notebook's cells of code."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def code_of(path):
    """Return the code of a notebook or a page."""
    if path.suffix == ".md":
        return "\n".join(re.findall(r"^```python\n(.*?)^```", path.read_text(), re.S | re.M))
    return "\n".join("".join(cell["source"]) for cell in cells(path))


@pytest.mark.parametrize("path", few([*NOTEBOOKS, *PAGES], NOTEBOOKS), ids=lambda path: path.stem)
def test_it_runs(path, tmp_path, programs):
    """As a program: what a cell ends with is printed where a notebook would show it."""
    program = tmp_path / "program.py"
    program.write_text(code_of(path))
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    done = programs.run([program], cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout and [*tmp_path.rglob("model.safetensors")]


@pytest.mark.parametrize("path", [*NOTEBOOKS, *PAGES], ids=lambda path: path.stem)
def test_what_it_calls_of_dpexp_takes_what_it_is_given(path):
    calls = [node for node in ast.walk(ast.parse(code_of(path))) if isinstance(node, ast.Call)]
    ours = [each for each in calls if ast.unparse(each.func).startswith("dpexp.")]
    assert ours
    for each in ours:
        function = getattr(dpexp, ast.unparse(each.func).removeprefix("dpexp."))
        named = {word.arg: word.value for word in each.keywords if word.arg}
        inspect.signature(function).bind(*each.args, **named)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_holds_no_output(path):
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells(path))


def test_there_is_one():
    assert NOTEBOOKS
