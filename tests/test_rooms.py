"""The rooms of the house: imports go down the floors, and only the command line knows hydra."""

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Ground floor first. A room may import what stands below it; rooms of one floor do not know each
# other. Data flows up: gradients of examples know nothing of the clip that they go through, and a
# model's files are looked for as data are.
FLOORS = (
    {"types", "imported", "linalg", "warned"},
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

LOOSE = {"__init__.py", "imported.py", "types.py", "linalg.py", "warned.py"}

FILES = dict.fromkeys(sorted((ROOT / "dpexp").rglob("*.py")))


def room_of(path, root=ROOT):
    """Name the room a file of dpexp belongs to; None for the package's own __init__."""
    first = path.relative_to(root / "dpexp").parts[0].removesuffix(".py")
    return None if first == "__init__" else first


@cache
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


def wrong_floors(path):
    """List what a file imports that does not stand below it."""
    room, others = room_of(path), rooms_imported(path)
    if room is None:  # dpexp.run is of cli, and gives a record
        return sorted(others - {"cli", "records", "imported"})
    return sorted(o for o in others - {room} if not FLOOR_OF.get(o, len(FLOORS)) < FLOOR_OF[room])


def test_imports_go_downward_only():
    wrong = {str(path.relative_to(ROOT)): wrong_floors(path) for path in FILES}
    assert {path: rooms for path, rooms in wrong.items() if rooms} == {}


def test_every_room_stands_on_a_floor_and_nothing_else_stands_loose():
    assert {path.name for path in (ROOT / "dpexp").glob("*.py")} == LOOSE
    assert {room_of(path) for path in FILES} - {None} == FLOOR_OF.keys()


def reporting_part(dotted):
    """Name the part of `reporting` that a dotted name belongs to; None outside of it."""
    parts = dotted.split(".")
    return parts[2] if parts[:2] == ["dpexp", "reporting"] and len(parts) > 2 else None


def later_parts(path):
    """List the parts of `reporting` that a file of another imports though they come after it."""
    part = reporting_part(".".join(path.relative_to(ROOT).with_suffix("").parts))
    if part == "__init__":
        return sorted(rooms_imported(path))
    others = {reporting_part(name) for name in imported(path)} - {None, part}
    return sorted(o for o in others if not REPORTING.index(o) < REPORTING.index(part))


def test_reporting_goes_from_schema_over_values_and_claims_to_files():
    files = [path for path in FILES if room_of(path) == "reporting"]
    wrong = {str(path.relative_to(ROOT)): later_parts(path) for path in files}
    assert len(files) > 10 and {path: parts for path, parts in wrong.items() if parts} == {}


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


def test_only_the_command_line_knows_hydra_and_nothing_knows_the_entries():
    wrong = {}
    for path in FILES:
        tops = {name.split(".")[0] for name in imported(path)}
        if found := tops & (ENTRIES if room_of(path) == "cli" else ENTRIES | HYDRA):
            wrong[str(path.relative_to(ROOT))] = found
    assert wrong == {}


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
