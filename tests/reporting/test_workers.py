"""Runs side by side: all are done, a mistake stops them, a process that dies is replaced."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from dpexp import records
from dpexp.cli import errors
from dpexp.distributed import pool
from dpexp.reporting import collect
from dpexp.reporting.collect import build, cells, workers
from dpexp.training import progress
from dpexp.types import ConfigError, MissingData


def execute(config):
    """Do as the config's method says; importable by name, as workers need it."""
    match config["method"]["name"]:
        case "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        case "no data":
            raise MissingData("No data under data/big.")
        case "mistaken":
            raise ConfigError("Expected epochs > 0; got -1.")
        case "busy" if not (begun := Path(config["results"], "begun")).exists():
            begun.touch()
            raise records.Busy("another process")
        case "tells":
            warnings.showwarning = errors.show_warning
            with progress.Progress(4, "tells") as shown:
                shown.report({"test_accuracy": 50.0})
                shown.advance(8)
                warnings.warn("its public examples are few", stacklevel=1)
                shown.report({"test_accuracy": 60.0})
    Path(config["results"], f"{config['seed']}.done").write_text(os.environ["OMP_NUM_THREADS"])


def job(method, seed, results):
    config = {
        "method": {"name": method},
        "task": {"name": "big"},
        "model": {"name": "tiny"},
        "profile": {"name": "embedded"},
        "seed": seed,
        "results": str(results),
    }
    return cells.Job(
        ("row", "column"), method, ("value",), seed, (), config, records.run_id(config)
    )


class Board:
    """Keeps what runs tell."""

    prepare = staticmethod(progress.tell)

    def __init__(self):
        self.parts, self.lines = {}, []

    def at(self, run, part):
        self.parts.setdefault(run, []).append(part)

    def say(self, line):
        self.lines.append(line)


def together(jobs, results, stop_at_mistake=False, board=None, num_workers=2):
    said = []
    report = build.Report(len(jobs), results, said.append, stop_at_mistake)
    workers.side_by_side(jobs, execute, results, report, board or Board(), num_workers, 1)
    return said


def test_a_process_that_dies_takes_its_run_alone_and_leaves_a_log(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    jobs = [job("dies", 0, tmp_path), *(job("fine", seed, tmp_path) for seed in (1, 2))]
    jobs += [job("tells", 3, tmp_path), job("busy", 4, tmp_path)]
    board = Board()
    said = together(jobs, tmp_path, board=board)
    assert {path.name for path in tmp_path.glob("*.done")} == {f"{n}.done" for n in (1, 2, 3, 4)}
    assert (tmp_path / "1.done").read_text() == "1"
    assert "OMP_NUM_THREADS" not in os.environ
    log = collect.log_path(tmp_path, jobs[0].config, jobs[0].run_id).read_text()
    assert "code -9" in log
    assert len(said) == 5 and sum("the process died" in line for line in said) == 1
    *others, telling, waiting = (board.parts[one.run_id] for one in jobs)
    assert others == [[1.0]] * 3 and telling == [0.0, 0.25, 1.0]
    assert waiting == [0.0, 1.0]
    assert board.lines == ["warning: its public examples are few"]


@pytest.mark.long
def test_missing_data_are_met_once_and_the_rest_of_their_runs_need_no_process(tmp_path):
    jobs = [job("no data", seed, tmp_path) for seed in range(5)]
    board = Board()
    said = together(jobs, tmp_path, board=board)
    assert all(board.parts[one.run_id] == [1.0] for one in jobs)
    assert len(said) == 5 and "[5/5]" in said[-1]
    assert sum("no data, as above" in line for line in said) >= 3
    assert all(collect.outcome(one, tmp_path).status == "no data" for one in jobs)


@pytest.mark.long
def test_a_mistake_in_the_users_words_ends_it_all(tmp_path):
    jobs = [job("mistaken", 0, tmp_path), *(job("fine", seed, tmp_path) for seed in range(1, 4))]
    with pytest.raises(ConfigError, match="epochs > 0"):
        together(jobs, tmp_path, stop_at_mistake=True, num_workers=1)


ORPHANED = """
import multiprocessing, os, signal, sys, time
from pathlib import Path
from dpexp.distributed import pool

def execute(folder):
    Path(folder, "begun").write_text("")
    time.sleep(20)
    print("went on", flush=True)
    os._exit(0)  # its own end of the pipe, which a fork has too, would keep it

forked = multiprocessing.get_context("fork")  # begins at once, where others import for seconds
pool.multiprocessing.get_context = lambda _: forked
worker = pool.Worker(execute)
worker.begin(sys.argv[1])
while not Path(sys.argv[1], "begun").exists():
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's")
def test_the_processes_of_a_build_that_is_killed_end_with_it(tmp_path, programs):
    pipes = {"stdout": subprocess.PIPE}
    with programs.start(["-c", ORPHANED, str(tmp_path)], **pipes) as build_of_one:
        assert build_of_one.stdout.read() == ""  # to its end, which comes once none has it open
        assert build_of_one.wait() == -signal.SIGKILL


def test_a_process_that_starts_does_not_hear_ctrl_c(monkeypatch):
    class Process:
        def __init__(self, **_):
            self.blocked = set()

        def start(self):
            self.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())

    spawn = multiprocessing.get_context("spawn")
    monkeypatch.setattr(spawn, "Process", Process, raising=False)
    assert signal.SIGINT in pool.Worker(execute)._process.blocked
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


SHARE = """
import sys, time
from pathlib import Path
from dpexp import records
from dpexp.reporting.collect import build
from tests.reporting.test_workers import job

def execute(config):
    done = Path(config["results"], f"{config['seed']}.done")
    with records.held(config["results"], config):
        if not done.exists():
            time.sleep(0.3)
            with done.open("a") as file:
                file.write(f"by {sys.argv[2]}\\n")

jobs = [job("fine", seed, sys.argv[1]) for seed in range(6)]
print("ready", flush=True)
sys.stdin.readline()
build.run_missing(jobs, execute, Path(sys.argv[1]))
"""


@pytest.mark.long
def test_two_builds_of_one_table_share_its_runs(tmp_path, programs):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    builds = [programs.start(["-c", SHARE, str(tmp_path), name], **pipes) for name in "AB"]
    assert [each.stdout.readline() for each in builds] == ["ready\n"] * 2
    for each in builds:
        each.stdin.write("go\n")
        each.stdin.flush()
    said = [each.communicate(timeout=60)[0] for each in builds]
    assert [each.returncode for each in builds] == [0, 0]
    lines = [(tmp_path / f"{seed}.done").read_text().splitlines() for seed in range(6)]
    assert all(len(one) == 1 for one in lines), "a run was done twice"
    assert {one[0] for one in lines} == {"by A", "by B"}
    assert all(len(text.splitlines()) == 6 for text in said), "each build tells of every run"


IN_ONE_PROCESS = """
import json, logging, os, signal, sys, warnings
import torch
from dpexp.cli.composition import compose
from dpexp.cli.execution import execute
from dpexp.reporting.collect import build
from dpexp import records
from pathlib import Path

def left_behind():
    signals = signal.SIGTERM, signal.SIGINT, signal.SIGUSR2
    heard = [str(signal.getsignal(each)) for each in signals]
    log = logging.getLogger("dpexp")
    return [str(torch.get_default_dtype()), torch.get_float32_matmul_precision(),
            torch.get_num_threads(), torch.is_grad_enabled(), str(torch.get_default_device()),
            torch.are_deterministic_algorithms_enabled(), torch.backends.mkldnn.enabled, heard,
            log.level, logging.getLogger().level, [type(h).__name__ for h in log.handlers],
            warnings.filters[0] == first, os.getcwd(), dict(os.environ)]

first = warnings.filters[0]
ends, states = [], []
for number, words in enumerate(json.loads(sys.argv[2])):
    results = Path(sys.argv[1], str(number))
    config = compose([*words.split(), f"results={results}"])
    ends.append([str(records.locate(results, config)),
                 build.attempt(config, records.run_id(config), execute, results)])
    states.append(left_behind())
assert all(each == states[0] for each in states), states
print(json.dumps(ends))
"""

RUN = "method=rgp_random task=digits profile=embedded epochs=0.5 seed=3"
BEFORE = (
    "method=lsg task=digits profile=embedded epochs=0.3 optimizer=adam optimizer.lr=1e-3",
    "method=rgp task=digits profile=embedded method.rank=999",  # which fails
    "method=compressive task=regression profile=embedded epochs=0.1",
)
TIMES = ("seconds", "wall_s", "examples_per_s", "peak_memory_mb", "time")


def test_a_run_after_others_in_one_process_is_the_run_of_a_process_of_its_own(tmp_path, programs):
    """Runs of a table share warm processes: what one leaves behind must not reach the next."""
    words = ["-c", IN_ONE_PROCESS, str(tmp_path), json.dumps([RUN, *BEFORE, RUN])]
    done = programs.run(words)
    assert done.returncode == 0, done.stderr
    ends = json.loads(done.stdout.splitlines()[-1])
    assert [bool(reason) for _, reason in ends] == [False, False, True, False, False]
    found = []
    for directory in (ends[0][0], ends[-1][0]):  # of the first nothing was before
        record = records.read(Path(directory))
        lines = [{k: v for k, v in line.items() if k not in TIMES} for line in record.metrics]
        with np.load(Path(directory, "predictions.npz")) as predictions:
            right = {key: predictions[key].tolist() for key in predictions}
        result = {k: v for k, v in record.result.items() if k not in TIMES}
        found.append([record.privacy, lines, right, result])
    for one, other in zip(*found, strict=True):
        assert one == other
    assert found[0][3]["weights_sha256"]
