"""A reader who leaves early stops nothing."""

import os
import subprocess
import sys

import pytest

from scripts.pipes import patience
from tests.test_cli import ROOT


@pytest.fixture
def unheard():
    """A pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        yield pipe


@pytest.mark.parametrize("flush", [True, False])
@pytest.mark.parametrize("count", [1, 5000])
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_what_is_running_goes_on_unheard(stream, count, flush, unheard, tmp_path):
    script = f"""
import sys
from scripts.pipes import patience
with patience():
    for k in range({count}):
        print("word", k, file=sys.{stream}, flush={flush})
open({str(tmp_path / "done")!r}, "w")
"""
    others = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: unheard}
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, **others)
    assert done.returncode == 0
    assert (tmp_path / "done").exists()


def test_a_program_that_nobody_hears_ends_well(unheard):
    command = [sys.executable, "-m", "scripts.artifact", "--help"]
    done = subprocess.run(
        command, cwd=ROOT, stdout=unheard, stderr=subprocess.PIPE, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_streams_are_given_back(capsys):
    before = sys.stdout, sys.stderr
    with pytest.raises(ValueError), patience():
        assert sys.stdout.encoding == before[0].encoding
        print("heard")
        raise ValueError
    assert (sys.stdout, sys.stderr) == before
    assert capsys.readouterr().out == "heard\n"
