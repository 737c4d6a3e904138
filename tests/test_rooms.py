"""The rooms of the house: imports go down the floors, and only the command line knows hydra."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Ground floor first. A room may import what stands below it; rooms of one floor do not know each
# other. Data flows up: gradients of examples know nothing of the clip that they go through, and a
# model's files are looked for as data are.
FLOORS = (
    {"types", "imported", "linalg"},
    {"records"},
    {"kernels"},
    {"grad_sample", "data"},
    {"privacy", "models"},
    {"methods", "distributed"},
    {"training"},
    {"pate"},
    {"attacks", "analysis"},
    {"reporting"},
    {"cli"},
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
REPORTING = ("text", "schema", "collect", "judge", "render")
"""Within `reporting`, lowest first: a part may import those before it."""
HYDRA = {"hydra", "hydra_plugins", "omegaconf"}
ENTRIES = {"run", "scripts"}

LOOSE = {"__init__.py", "imported.py", "types.py", "linalg.py"}

FILES = sorted((ROOT / "dpexp").rglob("*.py"))


def room_of(path, root=ROOT):
    """Name the room a file of dpexp belongs to; None for the package's own __init__."""
    first = path.relative_to(root / "dpexp").parts[0].removesuffix(".py")
    return None if first == "__init__" else first


def imported(path, root=ROOT):
    """List the dotted names a file imports, `from` imports with the name they fetch."""
    package = path.relative_to(root).parts[:-1]
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            names += [f"{base}.{alias.name}" for alias in node.names]
    return names


def rooms_imported(path, root=ROOT):
    parts = [name.split(".") for name in imported(path, root)]
    return {p[1] for p in parts if p[0] == "dpexp" and len(p) > 1}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_downward_only(path):
    room = room_of(path)
    if room is None:
        allowed = {"cli", "records", "imported"}
        assert rooms_imported(path) <= allowed, "dpexp.run is of cli, and gives a record"
        return
    assert room in FLOOR_OF, f"{room} stands on no floor: give it one in this list"
    for other in rooms_imported(path) - {room}:
        assert other in FLOOR_OF, f"{room} imports dpexp.{other}, which stands on no floor"
        assert FLOOR_OF[other] < FLOOR_OF[room], f"{room} may not import {other}"


def test_every_room_stands_on_a_floor_and_nothing_else_stands_loose():
    assert {path.name for path in (ROOT / "dpexp").glob("*.py")} == LOOSE
    assert {room_of(path) for path in FILES} - {None} == FLOOR_OF.keys()


def reporting_part(dotted):
    """Name the part of `reporting` that a dotted name belongs to; None outside of it."""
    parts = dotted.split(".")
    return parts[2] if parts[:2] == ["dpexp", "reporting"] and len(parts) > 2 else None


@pytest.mark.parametrize(
    "path", [f for f in FILES if room_of(f) == "reporting"], ids=lambda path: str(path.name)
)
def test_reporting_goes_from_schema_over_values_and_claims_to_files(path):
    part = reporting_part(".".join(path.relative_to(ROOT).with_suffix("").parts))
    if part == "__init__":
        assert not rooms_imported(path)
        return
    others = {reporting_part(name) for name in imported(path)} - {None, part}
    assert all(REPORTING.index(other) < REPORTING.index(part) for other in others)


def modules_imported(path):
    """List the files that a file of dpexp imports; packages' own __init__ do not count."""
    for name in imported(path):
        place = ROOT.joinpath(*name.split("."))
        for file in (place.with_suffix(".py"), place.parent.with_suffix(".py")):
            if file in FILES:
                yield file
                break


def test_no_module_imports_itself_by_way_of_others():
    before = {path: set(modules_imported(path)) for path in FILES}
    TopologicalSorter(before).prepare()  # it raises where there is a circle


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_command_line_knows_hydra_and_nothing_knows_the_entries(path):
    tops = {name.split(".")[0] for name in imported(path)}
    assert not tops & (ENTRIES if room_of(path) == "cli" else ENTRIES | HYDRA)


def test_the_import_reader_sees_every_form(tmp_path):
    file = tmp_path / "dpexp" / "grad_sample" / "rule.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "import dpexp.training.train as t, torch\nfrom dpexp import records\n"
        "from dpexp.methods.rgp import x\nfrom . import tape\n"
        "from .tape import Tape\nfrom ..linalg import y\n"
        "def f():\n    import dpexp.reporting.collect.build\n"
    )
    expected = {"training", "records", "methods", "grad_sample", "linalg", "reporting"}
    assert rooms_imported(file, tmp_path) == expected
    assert room_of(file, tmp_path) == "grad_sample"
