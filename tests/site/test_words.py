"""Every setting, choice, module, file and test that README and docs name is there."""

import importlib
import re
from functools import cache
from inspect import signature

import pytest
from markdown_it import MarkdownIt

import dpexp
from docs._ext import options
from dpexp import cli
from dpexp.cli.config_cache import Configs
from dpexp.records import DIAGNOSTICS

ROOT = cli.CONF.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
CHOICES = {group: {c.name: c for c in options.choices_of(group)} for group in options.groups()}
SETTINGS = {o.name for group in CHOICES.values() for c in group.values() for o in c.options}
EVERY_RUN = {o.name for o in options.top_level()}
OF_NO_FILE = {
    "method.freeze": "method=rgp task=digits profile=embedded method.freeze=[conv1]",
    "method.embeddings": "method=rgp task=sentiment profile=embedded method.embeddings=true",
    "model.fix": "method=rgp task=digits profile=embedded model=wrn10_1 model.fix=true",
    "noise.bands": "method=dpsgd task=digits profile=embedded noise=correlated noise.bands=4",
}
"""Words that no file of conf has, each with a command whose config it changes."""

OF_RECORDS = {name for names in DIAGNOSTICS.values() for name in names}
"""Entries of a run's files, which are no settings though they may begin as one."""

FREE = ("model.args.", "model._target_", "hydra.")
"""What begins so is a library's, or a class of the user's."""

CONFIGS = Configs()
SHORT = {"repo", "name", "target"}  # of model.repo and so on
FILES = r"\.(?:npz|safetensors|pt|py|json|jsonl|yaml|csv|md|parquet|png|ya?ml|ipynb)$"
IN_THE_TREE = re.compile(r"(?:\./)?((?:conf|dpexp|scripts|results|tests|docs|examples)/\S*)")
MADE_BY_RUNS = re.compile(r"results/(?:own|mine|paper|PROFILE|<profile>|\.\.\.)(?=/|$)")


def words_of(text):
    """Yield the words of a page's inline code and shell blocks; of tables as they are shown."""
    for token in MarkdownIt().enable("table").parse(text):
        if token.type == "inline":
            codes = [child.content for child in token.children if child.type == "code_inline"]
            # A Python call has its arguments' names, and a run's name no words: `a with width=7`.
            codes = [code for code in codes if "(" not in code and " with " not in code]
            yield from (word for code in codes for word in code.split())
        elif token.type in ("fence", "code_block"):
            if token.info.strip() in ("", "sh", "console", "bash"):
                lines = [line for line in token.content.splitlines() if "(" not in line]
                yield from (word for line in lines for word in line.split())


@cache
def said_by_commands():
    """Return every WORD= that a command's own help has, and the arguments of dpexp.train."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "dpexp/cli").glob("*.py")]
    docstrings = "\n".join(re.findall(r'""".*?"""', "\n".join(texts), re.S))
    return {*re.findall(r"\b([a-z_]+)=", docstrings)} | {*signature(dpexp.train).parameters}


@cache
def own_choices(group):
    """Return a group's choices in the examples' folders."""
    return {path.stem for path in ROOT.glob(f"examples/*/conf/{group}/*.yaml")}


def wrong(word):
    """Return what a word names that is not there, or ""."""
    word = word.strip("'\"").rstrip(".,;:").replace("\\|", "|")
    if found := IN_THE_TREE.fullmatch(word):
        place = re.sub(r"<\w+>|\b(?:[A-Z]+)\b|\.\.\.", "*", found[1].rstrip("/"))
        is_there = MADE_BY_RUNS.match(found[1]) or any(ROOT.glob(place))
        return "" if is_there else f"no file {word}"
    if re.fullmatch(r"dpexp(?:\.\w+)+", word):
        return "" if _is_importable(word) else f"nothing to import as {word}"
    if re.fullmatch(r"test(?:_[a-z0-9]+){3,}", word):  # test_accuracy is a metric
        return "" if word in _tests() else f"no test {word}"
    key, equals, value = word.partition("=")
    if not re.fullmatch(r"[a-z_]\w*(?:\.\w+)*", key) or value in ("True", "False"):
        return ""
    if "." in key:
        is_one = key.partition(".")[0] in CHOICES and not re.search(FILES, key)
        known = SETTINGS | EVERY_RUN | OF_RECORDS | {*OF_NO_FILE}
        is_known = key in known or key.startswith(FREE)
        return f"no setting {key}" if (is_one or equals) and not is_known else ""
    if not equals:
        return ""
    if key in CHOICES and value:
        said = re.split(r"[|,]", value.strip("[]"))
        known = {*CHOICES[key], *own_choices(key), "NAME", "<name>", "none", "null"}
        return "; ".join(f"no {key}={one}" for one in said if one not in known)
    known = SETTINGS | EVERY_RUN | SHORT | {*CHOICES} | said_by_commands()
    return "" if key in known else f"no word {key}="


def _is_importable(name):
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for part in parts[end:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


@cache
def _tests():
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    found = {name for text in texts for name in re.findall(r"def (test_\w+)", text)}
    return found | {path.stem for path in (ROOT / "tests").rglob("test_*.py")}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_a_page_names_is_there(path):
    found = map(wrong, words_of(path.read_text(encoding="utf-8")))
    assert [said for said in found if said] == []


@pytest.mark.parametrize(("word", "command"), OF_NO_FILE.items())
def test_a_word_of_no_file_is_taken_and_on_the_page_of_settings(word, command):
    words = command.split()
    (own,) = (one for one in words if one.startswith(f"{word}="))
    without = [one for one in words if one != own]
    assert CONFIGS.compose(words) != CONFIGS.compose(without)
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert f"`{word}`" in page


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("take `method=rpg`", "no method=rpg"),
        ("`method=rgp\\|rpg`", "no method=rpg"),
        ("`method.carrier=both`", "no setting method.carrier"),
        ("its `clipping.quantil`", "no setting clipping.quantil"),
        ("    python run.py optimiser.lr=1", "no setting optimiser.lr"),
        ("```sh\npython run.py method=rgp epoch=3\n```", "no word epoch="),
        ("| a |\n| --- |\n| `averaging=ema\\|first` |", "no averaging=first"),
        ("`conf/methods`", "no file conf/methods"),
        ("`conf/tuned/<profile>/rpg`", "no file conf/tuned/<profile>/rpg"),
        ("`dpexp.privacy.verfy`", "nothing to import as dpexp.privacy.verfy"),
        ("`test_no_such_thing_here`", "no test test_no_such_thing_here"),
    ],
)
def test_what_is_not_there_is_found(text, said):
    assert [one for one in map(wrong, words_of(text)) if one] == [said]


@pytest.mark.parametrize(
    "text",
    ["`method=filtered`", "`model.args.width=64`", "`analysis.npz`", "`results/own/runs/ID`",
     "`conf/scale/<profile>.yaml`", "`method.rank=`", "`clip=false`", "`f(epoch=3)`",
     "`only=rgp/*`", "`dpexp.linalg`"],
)  # fmt: skip
def test_what_is_there_is_not(text):
    assert not any(map(wrong, words_of(text)))
