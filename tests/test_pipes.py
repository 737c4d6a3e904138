"""A reader who leaves early stops nothing."""

import os
import subprocess
import sys

import pytest

from dpexp.cli.streams import safe_output
from tests.marks import few, pairs_long
from tests.test_cli import ROOT


@pytest.fixture
def unheard():
    """A pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        yield pipe


@pytest.mark.parametrize(
    ("stream", "count", "flush"),
    pairs_long(
        *(["stdout", "stderr"], [1, 5000], [True, False]),
        short=lambda *each: each in [("stdout", 1, True), ("stderr", 5000, True)],
    ),
)
def test_what_is_running_goes_on_unheard(stream, count, flush, unheard, tmp_path):
    script = f"""
import sys
from dpexp.cli.streams import safe_output
with safe_output():
    for k in range({count}):
        print("word", k, file=sys.{stream}, flush={flush})
open({str(tmp_path / "done")!r}, "w")
"""
    others = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: unheard}
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, **others)
    assert done.returncode == 0
    assert (tmp_path / "done").exists()


def test_a_program_that_nobody_hears_ends_well(unheard, programs):
    done = programs.run(["-m", "scripts.artifact", "--help"], stdout=unheard.fileno())
    assert (done.returncode, done.stderr) == (0, "")


def test_streams_are_given_back(capsys):
    before = sys.stdout, sys.stderr
    with pytest.raises(ValueError), safe_output():
        assert sys.stdout.encoding == before[0].encoding
        print("heard")
        raise ValueError
    assert (sys.stdout, sys.stderr) == before
    assert capsys.readouterr().out == "heard\n"


PROGRAM = """
import os, sys
from dpexp.cli.streams import safe_output
with safe_output():
    opened = open(sys.argv[1], "w")
    print("said")
    print("told", file=sys.stderr, flush=True)
    os.write(2, b"from below")
    opened.write("done")
    opened.close()
    if sys.argv[2:]:
        sys.exit(0)
"""


CLOSED = ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"]


@pytest.mark.parametrize("closed", few(CLOSED, CLOSED[3:]))
def test_a_program_whose_streams_are_closed_does_its_work(closed, tmp_path):
    """And no file that it opens is taken for one of them."""
    command = f'"{sys.executable}" -c "$0" "$1" {closed}'
    done = subprocess.run(
        ["sh", "-c", command, PROGRAM, str(tmp_path / "done")], cwd=ROOT, capture_output=True
    )
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr
    assert (tmp_path / "done").read_text() == "done"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux")
@pytest.mark.parametrize("exits", few([[], ["exits"]], [[]]))
@pytest.mark.parametrize(("stream", "code"), [("stdout", 2), ("stderr", 0)])
def test_output_that_finds_the_disk_full_is_one_line_after_the_work(stream, code, exits, tmp_path):
    with open("/dev/full", "w") as full:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: full}
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / "done"), *exits]
        done = subprocess.run(command, cwd=ROOT, text=True, **streams)
    assert done.returncode == code
    if stream == "stdout":
        (line,) = [line for line in done.stderr.splitlines() if "error" in line]
        assert line.endswith("error: Cannot write the output: No space left on device.")
    assert (tmp_path / "done").read_text() == "done"


@pytest.mark.parametrize("encoding", few(["cp1252", "ascii", "utf-8"], ["ascii", "utf-8"]))
def test_what_an_encoding_lacks_is_written_in_words(encoding):
    program = "from dpexp.cli.streams import safe_output\nwith safe_output(): print('ε = 8 ± 1…✓')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    shown = {
        "cp1252": "eps = 8 ± 1…\\u2713",
        "ascii": "eps = 8 +- 1...\\u2713",
        "utf-8": "ε = 8 ± 1…✓",
    }
    assert (done.returncode, done.stdout.decode(encoding).strip()) == (0, shown[encoding])


def test_a_stream_that_has_become_a_pipe_is_written_to(tmp_path):
    """Python thinks that it is a file still, and finds no position in it."""
    program = f"""
import os, sys
from dpexp.cli.streams import safe_output
pipe = os.dup(1)
sys.stdout = open({str(tmp_path / "file")!r}, "w")
os.dup2(pipe, sys.stdout.fileno())
with safe_output():
    print("heard")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True)
    assert (done.returncode, done.stdout.decode(), done.stderr.decode()) == (0, "heard\n", "")
