"""A bar for runs side by side, and what it leaves to them where there is no terminal."""

import io
import os
import pty
import re
import select
import sys
from contextlib import contextmanager

import pytest

from dpexp.cli import CONF, many
from dpexp.distributed import memory
from dpexp.distributed.cores import cores
from dpexp.reporting.collect import cells
from dpexp.training import progress
from dpexp.training.overview import Overview
from dpexp.training.progress import Progress


@contextmanager
def a_terminal():
    """Make standard error a terminal that says it has no columns and no rows, as some do.

    Gives what reads what it shows, up to some last words of it.
    """
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        patch.setenv("TERM", "xterm")
        patch.delenv("COLUMNS", raising=False)
        patch.delenv("LINES", raising=False)

        def shown(last):
            stream.flush()
            read = b""
            while last not in read.decode(errors="replace"):
                assert select.select([ours], [], [], 10)[0], read  # it comes a moment later
                read += os.read(ours, 65536)
            return read.decode()

        yield shown
    os.close(ours)


def test_a_terminal_without_a_size_has_a_bar_too(monkeypatch):
    monkeypatch.setattr(progress, "REDRAW", 0)
    with a_terminal() as shown, Progress(20, "rgp") as bar:
        bar.advance(64)
        assert "step 1/20" in shown("examples/s")


def test_one_bar_adds_up_the_parts_of_all_runs_and_lines_stand_above_it():
    with a_terminal() as shown:
        overview = Overview(4)
        assert overview.prepare is progress.tell and "0.0 of 4 runs" in shown(" left")
        overview.at("first", 0.25)
        overview.at("second", 0.5)
        overview.at("first", 0.75)
        assert " 31% |" in shown("1.2 of 4 runs")
        overview.say("warning: few examples")
        before, line, _ = shown("1.2 of 4 runs").partition("warning: few examples\r\n")
        assert line and "|" not in before
        overview.close()
        print("end", file=sys.stderr)
        *_, blank, after = shown("end").partition("end")[0].split("\r")
        assert blank.strip() == after == ""


def test_where_there_is_no_terminal_runs_show_their_own_parts(capsys, monkeypatch):
    for stream in (io.StringIO(), None):
        monkeypatch.setattr(sys, "stderr", stream)
        overview = Overview(4)
        assert overview.prepare is progress.tell_lines
        overview.at("first", 0.25)
        for _ in range(2):  # runs, of one warning
            overview.say("warning: few examples")
        overview.report("[1/4] first")
        overview.close()
        assert stream is None or stream.getvalue() == "warning: few examples\n"
    assert capsys.readouterr().out == "[1/4] first\n" * 2


def runs(num, **config):
    return [{**config, "seed": seed} for seed in range(num)]


def test_as_many_runs_go_side_by_side_as_cores_and_memory_hold(tmp_path, monkeypatch):
    assert many.number(runs(3, ranks="auto"), 2) == 2 and many.number(runs(3), 64) == 3
    assert many.number(runs(100), None) <= cores()
    assert many.number(runs(100, ranks=2), None) == 1
    little = tmp_path / "meminfo"
    monkeypatch.setattr(memory, "MEMINFO", little)
    little.write_text("MemAvailable:    1000 kB\n")
    assert many.number(runs(100), None) == 1
    monkeypatch.setattr("dpexp.distributed.cores.cores", lambda: 8)
    little.write_text("MemAvailable:    9500000 kB\n")
    small = {"profile": {"name": "embedded"}, "model": {"name": "wrn10_1"}}
    views, other = {**small, "augmentation": {"multiplicity": 4}}, {"model": {"name": "roberta"}}
    assert many.number(runs(100, **small), None) in (6, 7)  # this process counts, and grows
    for large in ({}, other, {**small, **other}, views):
        assert many.number(runs(100, **large), None) == 2
        assert many.number([*runs(99, **small), *runs(1, **large)], None) == 2
    first, then = (
        [cells.Job(("row", "column"), "name", (), 0, (), config) for config in runs(num, **kind)]
        for num, kind in ((9, small), (3, views))
    )
    assert many.batches([*then[:2], *first, *then[2:]], None) == [first, then]
    assert many.batches([*first, *then], 2) == [[*first, *then]] and many.batches([], None) == []
    assert many.batches(first, None) == [first] and many.batches(then, None) == [then]


def test_small_models_are_the_embedded_profile_s_own():
    """Each is its task's there; another would be given too little memory."""
    text = (CONF / "profile" / "embedded.yaml").read_text(encoding="utf-8")
    assert {*many.SMALL} <= {*re.findall(r": (\w+)", text.partition("defaults:")[2])}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_cores_are_those_that_this_process_may_use():
    whole = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(whole)})
        assert cores.__wrapped__() == 1
    finally:
        os.sched_setaffinity(0, whole)
