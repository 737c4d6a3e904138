"""What the pages of README, CONTRIBUTING and docs show can be typed."""

import ast
import importlib
import importlib.util
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt

from dpexp import cli
from dpexp.cli.__main__ import COMMANDS
from dpexp.cli.config_cache import Configs

ROOT = cli.CONF.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAM = re.compile(
    r"^(?:\$ )?(?:\.venv/bin/)?((?:python (?:run\.py|-m scripts\.\w+)|make|dpexp)\b.*)"
)
LANGUAGES = {"", "python", "yaml", "console", "sh", "bash", "text", "json", "toml", "c", "mermaid"}
CONFIGS: dict[tuple[Path, ...], Configs] = {}


def blocks(path):
    """Yield a page's blocks of code, each with its language and its line."""
    for token in MarkdownIt().parse(path.read_text(encoding="utf-8")):
        if token.type in ("fence", "code_block"):
            yield token.info.strip(), token.content, token.map[0] + 1


def commands():
    """Yield every command that the pages show, in blocks or in a sentence, with its place."""
    for path in PAGES:
        name = path.relative_to(ROOT).as_posix()
        for language, content, line in blocks(path):
            content = re.sub(r"\\\n(?:> )?\s*", "", content)  # a command goes on
            for text in content.splitlines() if language in ("", "console", "sh", "bash") else ():
                if found := PROGRAM.match(text):
                    yield f"{name}:{line}", found[1]
        for text in re.findall(
            r"(?<!`)`((?:python run\.py|dpexp|make) [^`\n]+)`", path.read_text()
        ):
            if found := PROGRAM.match(text):
                yield name, found[1]


FOUND = sorted({command: place for place, command in commands()}.items())
RUNS = [(place, command) for command, place in FOUND
        if command.startswith(("python run.py", "dpexp run ")) and "=" in command]  # fmt: skip


def words_of(command):
    """Return the overrides of a command, and its folders; of a sweep its first run."""
    words = shlex.split(command, comments=True)[2:]
    folders, overrides = [], []
    while words:
        word = words.pop(0)
        if word in ("--config-dir", "-cd"):
            folders.append(ROOT / words.pop(0))
        elif word == "--cfg":
            words.pop(0)
        elif not word.startswith(("-", "hydra", "...")) and "=" in word:
            key, _, value = word.partition("=")
            if "interval(" in value:
                value = "1"
            elif not set("[{'\"") & set(value) and key != "data":
                value = value.partition(",")[0]
            if key == "dataset_size" and not value.isdigit():
                value = "100"  # `count` would count files, and a person's N is a number
            overrides.append(f"{key}={value}")
    return tuple(folders), overrides


@pytest.mark.parametrize(("place", "command"), RUNS, ids=[command for _, command in RUNS])
def test_every_run_that_a_page_shows_composes(place, command, monkeypatch, tmp_path):
    folders, words = words_of(command)
    if "tracking=tensorboard" in command and not importlib.util.find_spec("tensorboard"):
        pytest.skip("the extra tensorboard is not installed")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "columns.yaml").write_text("rooms: [1, 12]\n")
    configs = CONFIGS.setdefault(folders, Configs(own=folders))
    config = configs.compose(words)
    assert config["method"]["name"] and config["task"]["name"], place


def test_every_other_command_is_there():
    made = set()
    for command, place in FOUND:
        program, word, *rest = [*command.split(), ""]
        if program == "make" and "=" not in word and re.fullmatch(r"[a-z-]+\d*", word):
            made.add(word)
        elif program == "dpexp" and re.fullmatch(r"[a-z]+", word):
            assert word in COMMANDS, f"{place}: dpexp {word}"
        elif word == "-m":
            assert (ROOT / f"{rest[0].replace('.', '/')}.py").is_file() or (
                ROOT / rest[0].replace(".", "/")
            ).is_dir(), f"{place}: {command}"
    assert {"docs", "setup"} & made or len(made) > 2
    done = subprocess.run(
        ["make", "-n", "-o", ".venv/.ready", "TORCH=", *sorted(made)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_blocks_are_of_a_language_that_they_parse_in(path):
    for language, content, line in blocks(path):
        where = f"{path.relative_to(ROOT)}:{line}"
        assert language in LANGUAGES or language.startswith("{"), where
        if language == "yaml":
            yaml.safe_load(content)
        elif language == "python" or (not language and _is_python(content)):
            for node in ast.walk(ast.parse(content, where)):
                _require_names(node, where)


def _is_python(content):
    return bool(re.search(r"^(import|from \S+ import|def|class|@\w+)\b", content, re.M))


def _require_names(node, where):
    """Import what a block takes of dpexp, and look up what it calls of it."""
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dpexp":
        module = importlib.import_module(node.module)
        for alias in node.names:
            there = hasattr(module, alias.name) or importlib.util.find_spec(
                f"{node.module}.{alias.name}"
            )
            assert there, f"{where}: {node.module} has no {alias.name}"
    elif isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.split(".")[0] == "dpexp":
                importlib.import_module(alias.name)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        if node.value.id == "dpexp":
            assert hasattr(importlib.import_module("dpexp"), node.attr), (
                f"{where}: dpexp.{node.attr}"
            )


@pytest.mark.parametrize(
    ("text", "wrong"),
    [("from dpexp import trian", "trian"), ("import dpexp\ndpexp.tarin()", "tarin")],
)
def test_a_name_that_is_not_there_is_found(text, wrong):
    with pytest.raises(AssertionError, match=wrong):
        for node in ast.walk(ast.parse(text)):
            _require_names(node, "a page")
