"""What README's first commands and docs/transcripts.md show is what a person gets."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from dpexp import cli, records
from dpexp.cli import lookup, transcripts
from dpexp.cli.execution import with_weights

ROOT = cli.CONF.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = transcripts.PAGE.read_text(encoding="utf-8")


def first_block():
    """Return the commands of README's first block, without what is said of them."""
    block = re.findall(r"^```sh\n(.*?)^```", README, re.M | re.S)[0]
    return [shlex.split(line, comments=True) for line in block.splitlines()]


def test_readmes_first_command_trains_in_a_fresh_copy(tmp_path, monkeypatch):
    """With the repository's records beside it, none of which may answer in its place."""
    setup, (python, script, *words), test = first_block()
    assert (setup, python, script) == (["make", "setup"], ".venv/bin/python", "run.py")
    assert test == ["make", "test"]
    assert shlex.join(["python", "run.py", *words]) == transcripts.FIRST
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").symlink_to(ROOT / "results")
    config = with_weights(cli.compose(words))
    assert lookup.done_before(config) == ""
    # Not by chance: without its last word a record of ours would answer.
    assert words[-1] == "results=mine"
    assert records.find("results", cli.compose(words[:-1])) is not None


@pytest.mark.long
def test_readmes_first_block_trains(tmp_path):
    _, (_, script, *words), _ = first_block()
    (tmp_path / "results").symlink_to(ROOT / "results")
    command = [sys.executable, str(ROOT / script), *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "done: " in done.stderr, done.stderr
    assert "80 steps" in done.stderr and "done before" not in done.stderr
    (made,) = (tmp_path / "mine" / "embedded" / "runs").iterdir()
    assert done.stdout.split() == [str(made.relative_to(tmp_path))]


def parts():
    """Return the page's parts by title."""
    found = re.split(r"^(?=## )", PAGE, flags=re.MULTILINE)[1:]
    return {part.partition("\n")[0].removeprefix("## "): part for part in found}


def test_the_page_has_every_transcript_and_no_line_wider_than_a_terminal():
    assert "(docs/transcripts.md)" in README
    assert [*parts()] == [each.title for each in transcripts.TRANSCRIPTS.values()]
    for each in transcripts.TRANSCRIPTS.values():
        (shown,) = re.findall(r"```console\n(.*)\n```", parts()[each.title], re.DOTALL)
        assert max(map(len, shown.splitlines())) < transcripts.COLUMNS + 1
        typed = re.findall(r"^\$ ((?:.*\\\n)*.*)$", shown, re.MULTILINE)
        assert [shlex.split(re.sub(r"\\\n", " ", command))[0] for command in typed] == [
            command.split()[0] for command in each.commands
        ]


def same_shape(name):
    part = parts()[transcripts.TRANSCRIPTS[name].title]
    assert transcripts.shape(transcripts.made(name)) == transcripts.shape(part)


@pytest.mark.long
@pytest.mark.parametrize("name", transcripts.TRANSCRIPTS)
def test_every_transcript_is_what_its_commands_print(name):
    if name == "texts" and not os.environ.get("DPEXP_MODEL_ROOT"):
        pytest.skip("MiniLM is looked for in DPEXP_MODEL_ROOT, which is not set")
    same_shape(name)


def test_the_shape_of_a_transcript_is_its_words():
    shape = transcripts.shape
    assert shape("done: 93.06, 12.7 s; in\n  runs/0123456789ab") == (
        shape("done: 7, 1e-05 s;\n  in runs/ba9876543210")
    )
    assert shape("a 1 b") != shape("a 1 c")
