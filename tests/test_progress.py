"""The bar, and the lines where there is none, say what a person wants to know."""

import errno
import fcntl
import io
import logging
import os
import pty
import re
import struct
import termios
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpexp.cli import errors
from dpexp.training import progress as module
from dpexp.training.progress import LogHandler, Progress
from tests.marks import long
from tests.test_cli import ROOT

LINE = {"step": 10, "epoch": 1.0, "epsilon": 3.2, "train_loss": 0.5, "test_accuracy": 91.25}


class Gone(io.StringIO):
    """A terminal that is gone, or a log on a full disk."""

    def __init__(self, is_terminal):
        super().__init__()
        self.isatty = lambda: is_terminal
        self.is_gone = False

    def write(self, text):
        if self.is_gone:
            raise OSError(errno.EIO, "Input/output error")
        return super().write(text)

    flush = lambda self: self.write("")  # noqa: E731


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_bar_that_nobody_can_see_stops_nothing(is_terminal):
    stream = Gone(is_terminal)
    with Progress(20, label="rgp digits", stream=stream) as progress:
        stream.is_gone = True
        progress.start_from(3)
        progress.advance(64)
        progress.report(LINE)
    assert progress._step == 4


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def at_once(monkeypatch):
    """Draw after every step, however short."""
    monkeypatch.setattr(module, "REDRAW", 0)
    monkeypatch.setattr(module, "LINE_EVERY", 0)
    monkeypatch.setattr(module, "DRAWING", float("inf"))


def test_off_a_terminal_an_evaluation_is_one_line():
    stream = io.StringIO()
    with Progress(20, label="rgp digits", stream=stream) as progress:
        for _ in range(10):
            progress.advance(64)
        progress.report(LINE | {"nonfinite": 0, "clip_fraction": None})
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("rgp digits step 10/20 epsilon=3.2 train_loss=0.5 test_accuracy=91.25 ")
    assert "nonfinite" not in line and len(line) <= 80


@pytest.mark.parametrize("label", ["", "dpsgd", "rgp wrn28_4 cifar10 eps=8", "ü" * 300])
@pytest.mark.parametrize("more", [{}, {"nonfinite": 7}, {f"test_of_set_{i}": 5 for i in range(9)}])
@pytest.mark.parametrize("total", [20, 14652])
def test_a_line_of_a_log_is_no_wider_than_80_columns_and_keeps_its_score(label, more, total):
    stream = io.StringIO()
    with Progress(total, label, stream) as progress:
        progress.report(LINE | {"clip_fraction": 0.123456} | more)
    (line,) = stream.getvalue().splitlines()
    assert len(line) <= 80 and line.startswith(label[:5])
    assert f"step 0/{total} " in line and "epsilon=3.2 " in line and "left=" in line
    assert "test_accuracy=91.25" in line and ("nonfinite=7" in line) == ("nonfinite" in more)


class OutStream(io.StringIO):
    """Where a notebook's kernel writes, which is no terminal."""

    __module__ = "ipykernel.iostream"


def test_a_notebook_gets_one_line_that_is_rewritten_and_taken_away(at_once):
    stream = OutStream()
    with pytest.raises(KeyboardInterrupt), Progress(20, "rgp digits", stream) as progress:
        progress.advance(64)
        progress.report(LINE)
        raise KeyboardInterrupt
    assert "\n" not in stream.getvalue() and "accuracy 91.25" in stream.getvalue()
    *_, last, end = stream.getvalue().split("\r")
    assert not last.strip() and not end
    assert max(map(len, stream.getvalue().split("\r"))) <= 80


def drawn(columns, total, monkeypatch, metric="test_accuracy"):
    """Return what a bar shows in turn on a terminal of some width."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.delenv("TERM", raising=False)
    stream = Terminal()
    spent = lambda step: 8 * step / total  # noqa: E731
    with Progress(total, "rgp wrn28_4 cifar10 eps=8", stream, spent, 8.0) as progress:
        progress.move(0.25)
        progress.move(0.75)
        for _ in range(10):
            progress.advance(64)
        progress.report({**LINE, "epsilon": 80 / total, metric: LINE["test_accuracy"]})
        progress.advance(64)
    return [text for text in stream.getvalue().split("\r") if text.strip()]


@pytest.mark.parametrize("total", [20, 14652])
def test_eighty_columns_hold_step_epsilon_accuracy_and_time_left(total, at_once, monkeypatch):
    *_, last = drawn(80, total, monkeypatch)
    assert f"step 11/{total}" in last and "accuracy 91.25" in last
    shown = float(re.search(r"eps (\S+) of 8", last)[1])
    assert 0 <= shown - 88 / total < 1e-3  # an epsilon is rounded up
    assert re.search(r"\d\d:\d\d left", last)


@pytest.mark.parametrize("columns", [1, 8, 20, 40, 60, 80, 100, 120, 200, 400])
def test_a_bar_is_never_wider_than_its_terminal(columns, at_once, monkeypatch):
    shown = drawn(columns, 14652, monkeypatch)
    assert max(map(len, shown)) < max(columns, 2)
    if columns >= 40:
        assert "11/14652" in shown[-1] and "91.25" in shown[-1] and ":" in shown[-1]


def test_a_wide_terminal_shows_the_runs_name_and_its_speed(at_once, monkeypatch):
    *_, last = drawn(200, 20, monkeypatch)
    assert last.startswith("rgp wrn28_4 cifar10 eps=8") and "examples/s" in last


def test_epsilon_is_shown_after_every_step_and_the_bar_moves_in_between(at_once, monkeypatch):
    shown = drawn(80, 20, monkeypatch)
    spent = [float(re.search(r"eps (\S+)", text)[1]) for text in shown]
    assert sorted(set(spent)) == pytest.approx([0.4 * step for step in range(12)])
    shares = [int(re.match(r" *(\d+)%", text)[1]) for text in shown]
    assert shares[:3] == [1, 4, 5]


def test_a_metric_of_another_name_is_shown_by_it(at_once, monkeypatch):
    line = drawn(100, 20, monkeypatch)[-1]
    assert "accuracy" in line
    stream = Terminal()
    with Progress(20, stream=stream) as progress:
        progress.report({"step": 1, "relative_loss": 0.25, "train_loss": float("nan")})
    assert "relative loss 0.25" in stream.getvalue()


def test_without_a_budget_no_epsilon_is_shown(at_once, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    with Progress(20, stream=stream, spent=lambda step: None) as progress:
        progress.advance(64)
        progress.report({"step": 1, "epsilon": None, "test_accuracy": 50.0})
    assert "eps" not in stream.getvalue() and "accuracy 50" in stream.getvalue()


def test_a_terminal_that_moves_no_cursor_gets_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with Progress(20, stream=stream) as progress:
        progress.report(LINE)
    assert "\r" not in stream.getvalue() and len(stream.getvalue().splitlines()) == 1


class Counting(io.StringIO):
    """A log that counts its lines."""

    lines = 0

    def write(self, text):
        self.lines += text.count("\n")
        return super().write(text)


def test_a_log_gets_a_line_now_and_then(monkeypatch):
    stream, now = Counting(), [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    with Progress(100_000, stream=stream, spent=lambda step: step / 1e5) as progress:
        at = []
        for step in range(100_000):
            now[0] = float(step + 1)  # a second a step, for a day
            progress.advance(1)
            at += [now[0]] * (stream.lines > len(at))
    assert at[:2] == [5.0, 10.0]
    assert 100 < len(at) < 400
    assert re.search(r"step 5/100000 .*epsilon=5e-05 left=", stream.getvalue())


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "latin-1", "utf-8"])
def test_a_bar_is_drawn_in_what_the_terminal_can_write(encoding, at_once, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    stream.isatty = lambda: True
    with Progress(20, "rgp", stream, lambda step: 1.0, 8.0) as progress:
        progress.advance(64)
    assert b"step 1/20" in stream.buffer.getvalue()


def test_what_is_logged_stands_above_the_bar(at_once, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    logger = logging.Logger("above")
    logger.addHandler(LogHandler(stream))
    with Progress(20, stream=stream) as progress:
        progress.advance(64)
        logger.info("a word")
        progress.advance(64)
    # The bar is wiped, the word has a line of its own, and the bar is drawn again below it.
    assert re.search(r"step 1/20[^\n]*\r +\ra word\n\r[^\n]*step 1/20", stream.getvalue())


def test_a_resumed_run_counts_its_speed_from_where_it_went_on():
    stream = io.StringIO()
    progress = Progress(20, stream=stream)
    progress.start_from(15)
    progress.advance(64)
    progress.report(LINE)
    assert "step 16/20" in stream.getvalue()
    assert progress.examples_per_s > 0 and progress.seconds_left < 60
    progress.close()


class Wide(io.StringIO):
    """A terminal."""

    def isatty(self):
        return True


@given(st.text("ab -/=\n", max_size=60), st.integers(4, 30))
def test_a_line_breaks_between_words_where_the_terminal_ends(text, columns):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        shown = module.folded(text, Wide())
    assert shown.split() == text.split()
    assert module.folded(text, io.StringIO()) == text
    for line in shown.split("\n"):
        assert len(line) < columns or len(line.split()) == 1
    if all(len(line) < columns for line in text.split("\n")):
        assert shown == text


def test_a_warning_is_said_once_however_often_it_is_given(capsys):
    for text in ("one and the same", "another", "one and the same"):
        errors.show_warning(UserWarning(text), UserWarning, "file", 1)
    assert capsys.readouterr().err == "warning: one and the same\nwarning: another\n"


# The program on a terminal of its own


def on_a_terminal(programs, tmp_path, columns, *words, **environment):
    """Run `python run.py WORDS` on a terminal; return what it showed, and its exit code."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm", **environment}
    environment.pop("COLUMNS", None)
    command = [str(ROOT / "run.py"), *words, f"results={tmp_path}"]
    program = programs.start(command, cwd=tmp_path, env=environment, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            some = os.read(ours, 65536)
        except OSError:  # Linux's way to say that the other end is closed
            break
        if not some:
            break
        shown += some
    os.close(ours)
    return shown.decode(), program.wait()


SMALL = ["method=rgp", "task=digits", "profile=embedded", "device=cpu", "epochs=0.5", "eps=8"]


@pytest.mark.parametrize(
    ("columns", "environment"),
    [
        (80, {}),
        long(40, {"NO_COLOR": "1"}),
        long(200, {"TERM": "dumb"}),
    ],
)
def test_a_run_shows_how_it_goes_and_what_came_out(programs, tmp_path, columns, environment):
    shown, code = on_a_terminal(programs, tmp_path, columns, *SMALL, **environment)
    assert code == 0 and "\x1b[3" not in shown  # no colours, anywhere
    assert shown.startswith("rgp wrn10_1 digits eps=8 seed=0:")
    assert "74,512 trainable, 0 frozen (-v lists their names)" in " ".join(shown.split())
    assert "stem.weight" not in shown
    lines = [line for line in re.split(r"[\r\n]+", shown) if line.strip()]
    directory = lines[-1]
    whole = " ".join(" ".join(lines[:-1]).split())
    done = rf"done: test_accuracy \S+, eps \S+ of 8 at delta 0.0001, \S+ s; in {directory}$"
    assert re.search(done, whole) and Path(directory).is_dir()
    assert all(len(line) < columns for line in lines if directory not in line)
    bars = [line for line in lines if re.search(r"\d/2\b", line)]
    assert bars
    if environment.get("TERM") != "dumb":
        assert all(len(line) < columns for line in bars)


@pytest.mark.parametrize("word", ["-v", long("--verbose"), long("verbose=true")])
def test_names_are_listed_on_request(programs, tmp_path, word):
    short = [*SMALL[:-2], "epochs=0.05", "eps=null", "noise=false", "clip=false"]
    shown, code = on_a_terminal(programs, tmp_path, 80, *short, word)
    assert code == 0 and re.search(r"stem.weight +144 trainable", shown)


def test_a_word_for_more_that_is_neither_yes_nor_no_is_refused(programs, tmp_path):
    shown, code = on_a_terminal(programs, tmp_path, 80, *SMALL, "verbose=loud")
    assert code == 2
    assert shown.strip() == "error: Expected verbose to be true or false; got verbose=loud. " + (
        "Set verbose=true."
    )
