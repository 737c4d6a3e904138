"""`make gpu-report`: every bench is in it, it goes on where it stopped, and keeps to its time."""

import os
import sys
import time

import pandas as pd

from scripts import gpu_report
from scripts.bench.words import STEPS
from scripts.gpu_report import Part, report


def part(name, code, minutes=0.001):
    return Part(name, [sys.executable, "-c", code], minutes)


def outcomes(path):
    return dict(pd.read_csv(path)[["part", "outcome"]].values.tolist())


def test_every_bench_is_a_part_and_all_fit_together(tmp_path):
    parts = gpu_report.parts("cuda", tmp_path)
    assert [each.name for each in parts] == ["tests", *STEPS, "gep"]
    assert all("cuda" in each.command for each in parts[1:])
    assert sum(each.minutes for each in parts) <= 25


def test_what_failed_is_done_again_and_what_is_done_is_not(tmp_path, capsys):
    path, said = tmp_path / "report.csv", tmp_path / "said"
    note = f"open({str(said)!r}, 'a').write('once ')"
    todo = [part("good", note), part("bad", "raise SystemExit(3)")]
    assert report(todo, path, 1.0, "abc") == 1
    assert outcomes(path) == {"good": "done", "bad": "exit code 3"}
    mended = [todo[0], part("bad", "pass")]
    assert report(mended, path, 1.0, "abc") == 0
    assert said.read_text() == "once " and outcomes(path) == {"good": "done", "bad": "done"}
    assert "good: done before" in capsys.readouterr().out
    assert report(mended, path, 1.0, "later") == 0  # other code, other numbers
    assert report(mended, path, 1.0, "later+dirty") == report(mended, path, 1.0, "later+dirty") == 0
    assert said.read_text() == "once " * 4


def test_a_part_is_not_begun_that_would_not_end_and_stopped_when_time_is_up(tmp_path):
    path = tmp_path / "report.csv"
    todo = [part("long", "pass", minutes=2.0), part("slow", "import time; time.sleep(60)")]
    assert report(todo, path, 0.02, "abc") == 2
    assert outcomes(path) == {"slow": "out of time"}


def test_a_dry_run_says_what_it_would_do_and_makes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gpu_report", "--dry", "--results", str(tmp_path)])
    assert gpu_report.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["tests", *STEPS, "gep"]
    assert not list(tmp_path.iterdir())


def test_what_a_part_started_ends_with_it(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    held = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    slow = Part("slow", ["sh", "-c", f"sleep 20 > {pipe} & wait"], 0.001)
    assert gpu_report.take(slow, 0.5) == ("out of time", "")
    ends = time.monotonic() + 5
    while is_open(held) and time.monotonic() < ends:
        time.sleep(0.01)
    assert not is_open(held)
    os.close(held)


def is_open(reading):
    """Return whether a process has a pipe's other end open."""
    try:
        return os.read(reading, 1) != b""
    except BlockingIOError:
        return True
