"""Read a config file as a person does: its options, their values, and what comments say of them."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import yaml

from dpexp.cli.groups import CONF

PACKAGE = re.compile(r"# @package (\S+)")
MANY = 20
"""Entries above which a mapping is one option: a table's columns, say."""

ALIAS = re.compile(r"^\$\{(?:oc\.select:)?([\w.]+)(?:,null)?\}$")


@dataclass(frozen=True)
class Option:
    """A setting of a config file.

    Attributes:
        name: as typed in a command, e.g. method.rank.
        value: the file's own text.
        says: what it means, "" if the file says nothing.
    """

    name: str
    value: str
    says: str


@dataclass(frozen=True)
class Choice:
    """A file of a config group.

    Attributes:
        group, name: as typed, group=name.
        says: the comment that it opens with, "" if there is none.
        target: the class or function that it configures, "" if there is none.
        options: its settings, in order, those of the choice that it extends included.
        chooses: what it chooses of other groups, as typed.
    """

    group: str
    name: str
    says: str
    target: str
    options: tuple[Option, ...]
    chooses: tuple[str, ...] = ()


def choices_of(group: str) -> list[Choice]:
    """Return a group's choices, by name; those in folders as FOLDER/NAME."""
    folder = CONF / group
    names = sorted(p.relative_to(folder).with_suffix("").as_posix() for p in folder.rglob("*.yaml"))
    return [choice(group, name) for name in names if not name.startswith("auto/")]


def choice(group: str, name: str) -> Choice:
    """Read `conf/<group>/<name>.yaml`."""
    lines = (CONF / group / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    stated = next((m[1] for m in map(PACKAGE.match, lines) if m), group.replace("/", "."))
    package = "" if stated == "_global_" else f"{stated}."
    root = yaml.compose("\n".join(lines))
    head = []
    for line in lines:
        if not line.startswith("#"):
            break
        if not PACKAGE.match(line):
            head.append(line.lstrip("# "))
    found = [*_leaves(root, lines, package)] if isinstance(root, yaml.MappingNode) else []
    tree = yaml.safe_load("\n".join(lines)) or {}
    defaults = tree.get("defaults", []) if isinstance(tree, dict) else []
    bases = [entry.partition("@")[0] for entry in defaults if isinstance(entry, str)]
    bases = [base for base in bases if (CONF / group / f"{base}.yaml").is_file() and base != "none"]
    inherited = choice(group, bases[0]) if bases else None
    targets = [o.value for o in found if o.name in (f"{package}_target_", f"{group}._target_")]
    target = targets[0] if targets else inherited.target if inherited else ""
    own = {o.name: _described(o, target) for o in found if not _is_label(o.name)}
    options = {o.name: o for o in inherited.options} | own if inherited else own
    for place, option in options.items():
        if inherited and not option.says:
            (says,) = [o.says for o in inherited.options if o.name == place] or [""]
            options[place] = Option(place, option.value, says)
    chooses = [
        f"{key.removeprefix('override ').lstrip('/')}={value}"
        for entry in defaults
        if isinstance(entry, dict)
        for key, value in entry.items()
        if key.startswith("override ") and "$" not in str(value)
    ]
    own_choices = inherited.chooses if inherited else ()
    return Choice(
        group, name, " ".join(head), target, tuple(options.values()), (*own_choices, *chooses)
    )


def _is_label(name: str) -> bool:
    """Return whether a key says what a choice is called and built by, and is no setting."""
    last = name.rpartition(".")[2]
    return last == "name" or last.startswith("_")


def top_level() -> list[Option]:
    """Return the settings of conf/config.yaml, without Hydra's own."""
    lines = (CONF / "config.yaml").read_text(encoding="utf-8").splitlines()
    found = _leaves(yaml.compose("\n".join(lines)), lines, "")
    return [_described(o, "") for o in found if not o.name.startswith("hydra.")]


def groups() -> dict[str, str]:
    """Return the groups that conf/config.yaml chooses from, each with what the file says of it."""
    lines = (CONF / "config.yaml").read_text(encoding="utf-8").splitlines()
    root = yaml.compose("\n".join(lines))
    (defaults,) = (value for key, value in root.value if key.value == "defaults")
    found = {}
    for entry in defaults.value:
        if isinstance(entry, yaml.MappingNode):
            ((key, value),) = entry.value
            if "override" not in key.value and not key.value.startswith("optional"):
                found[key.value] = _comment(entry, key, value, lines)
            if key.value == "method":
                found["model"] = "a profile names each task's; say another here"
    return found


def _leaves(node: yaml.MappingNode, lines: Sequence[str], prefix: str) -> Iterator[Option]:
    first = True
    for key, value in node.value:
        if key.start_mark.column == 0 and key.value == "defaults":
            first = False
            continue
        is_block = isinstance(value, yaml.MappingNode) and not value.flow_style
        if is_block and len(value.value) > MANY:
            says = _comment(key, key, key, lines)
            yield Option(prefix + key.value, f"{len(value.value)} entries", says)
        elif is_block:
            yield from _leaves(value, lines, f"{prefix}{key.value}.")
        else:
            says = _comment(key, key, value, lines, is_first=first and key.start_mark.column == 0)
            yield Option(prefix + key.value, _text(value, lines), says)
        first = False


def _text(value: yaml.Node, lines: Sequence[str]) -> str:
    """Return a value as the file has it, on one line, without comments."""
    start, end = value.start_mark, value.end_mark
    if start.line == end.line:
        return lines[start.line][start.column : end.column]
    if isinstance(value, yaml.ScalarNode):
        return " ".join(value.value.split())
    tree = yaml.safe_load(yaml.serialize(value))
    return yaml.safe_dump(tree, default_flow_style=True, width=10**6).strip()


def _comment(
    entry: yaml.Node, key: yaml.Node, value: yaml.Node, lines: Sequence[str], is_first: bool = False
) -> str:
    """Return the comment behind a value, or else the one right above its key."""
    for mark in (value.end_mark, key.end_mark):
        behind = lines[mark.line][mark.column :] if mark.line < len(lines) else ""
        match = re.match(r"\s*:?\s*#\s*(.*)", behind)
        if match:
            return match[1]
    above: list[str] = []
    number = entry.start_mark.line - 1
    while number >= 0 and lines[number].strip().startswith("#") and not is_first:
        above.insert(0, lines[number].strip().lstrip("# "))
        number -= 1
    return " ".join(above)


def _described(option: Option, target: str) -> Option:
    """Return an option with what its class says of it, where the file does not."""
    if option.says:
        return option
    says = arguments(target).get(option.name.rpartition(".")[2], "") or _shared(option.name)
    alias = ALIAS.match(option.value)
    if not says and alias:
        says = f"as {alias[1]}"
    return Option(option.name, option.value, says)


@cache
def _shared(name: str) -> str:
    """Return what is said once of a setting that many files have."""
    if name == "model.head":
        return "the classifier's name in the model"
    if name == "optimizer.lr":
        return "learning rate"
    lines = (CONF / "config.yaml").read_text(encoding="utf-8").splitlines()
    every = _leaves(yaml.compose("\n".join(lines)), lines, "")
    return next((option.says for option in every if option.name == name), "")


@cache
def arguments(target: str) -> dict[str, str]:
    """Return what a class or function of dpexp says of its arguments, without importing it."""
    module, _, name = target.rpartition(".")
    place = CONF.parent.joinpath(*module.split("."))
    for path in (place.with_suffix(".py"), place / "__init__.py"):
        if module.startswith("dpexp") and path.is_file():
            return _documented(ast.parse(path.read_text(encoding="utf-8")), name)
    return {}


def _documented(tree: ast.Module, name: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            inner = [
                n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"
            ]
            for each in (node, *inner):
                found |= _args(ast.get_docstring(each) or "")
    return found


def _args(docstring: str) -> dict[str, str]:
    """Return the entries of a docstring's Args or Attributes."""
    found = {}
    for section in re.findall(r"^(?:Args|Attributes):\n((?:(?: .*)?\n?)+)", docstring, re.M):
        for entry in re.split(r"\n(?=\S)", textwrap.dedent(section).strip()):
            names, _, says = entry.partition(":")
            for name in names.split(","):
                found[name.strip().lstrip("*")] = " ".join(says.split())
    return found
