"""Killed, stopped and torn runs end as if never stopped."""

import json
import os
import random
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dpexp import cli, records
from dpexp.privacy import PrivacyError
from dpexp.training import checkpoint
from dpexp.training.train import train
from dpexp.types import ConfigError
from tests.marks import few
from tests.runs import (
    ALONE,
    SHORT,
    assert_same_run,
    copied,
    execute,
    interrupted,
    killed,
    of,
    one_thread,  # noqa: F401 (a fixture)
)
from tests.test_tracking import by_key, finished

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
DIGITS = ["task=digits", "profile=embedded", "device=cpu", "batch_size=360"]
DIGITS += ["model=cnn", "model.channels=[8,16]", "model.kernel=3"]
LONG = ["method=rgp", *DIGITS, "epochs=6", "eval_every=0.25", "method.warm_up_steps=3"]
PATIENCE = 300  # seconds


# Killed


@pytest.mark.parametrize("count", [2, pytest.param(40, marks=pytest.mark.long)])
def test_runs_killed_at_random_moments_end_as_if_never_killed(tmp_path, programs, count):
    """Weights (by their hash), metrics and certificates of methods that keep a state."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed of the moments: {seed}")  # pytest shows it where the test fails
    command = ["-m", "tests.killed", str(tmp_path), str(seed), str(count)]
    done = programs.run(command, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    unbroken, kills = {}, []
    for line in done.stdout.splitlines():
        name, directory, noted = json.loads(line)
        found = of(Path(directory))
        assert len(found[1]["weights_sha256"]) == 64
        assert_same_run(found, unbroken.setdefault(name, found))
        kills += noted
    assert len(unbroken) == 3 and len(kills) == count
    assert len(set(kills)) > min(3, count // 3), kills  # at different steps, or this shows little


# Stopped


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return of(execute(tmp_path_factory.mktemp("unbroken"), *LONG))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, programs):
    """A run that SIGTERM stopped on its way: its directory, exit code and words."""
    results = tmp_path_factory.mktemp("stopped")
    command = ["run.py", *LONG, f"results={results}", "checkpoint.steps=1"]
    directory = records.locate(results, cli.compose(LONG))
    metrics = directory / "metrics.jsonl"
    with programs.start(command, stderr=subprocess.PIPE) as process:
        try:
            for _ in range(24_000):  # two minutes at least
                is_on_its_way = metrics.exists() and len(metrics.read_text().splitlines()) >= 4
                if is_on_its_way or process.poll() is not None:
                    break
                time.sleep(0.005)
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert not (directory / "result.json").exists(), "too fast to be stopped"
    return directory, process.returncode, said


def test_a_run_stopped_by_sigterm_ends_as_if_never_stopped(stopped, unbroken, tmp_path):
    directory, code, said = stopped
    assert code == 128 + signal.SIGTERM
    assert "run it again to go on" in said and "Traceback" not in said
    there = copied(directory, tmp_path)
    saved = checkpoint.load(there / "checkpoint.pt")["position"]
    assert 3 < saved["step"] < 24
    assert execute(tmp_path, *LONG) == there
    assert_same_run(of(there), unbroken)
    assert not list(there.glob("checkpoint*"))


def test_who_awaits_a_clusters_signal_has_its_turn_once_the_run_has_saved(tmp_path):
    config = cli.compose([*SHORT, f"results={tmp_path}", "checkpoint.seconds=null"])
    directory, at = records.locate(tmp_path, config), []

    def queue_again(*_):
        at.append(checkpoint.load(directory / "checkpoint.pt")["position"]["step"])
        raise SystemExit(75)

    def be_told():
        os.kill(os.getpid(), signal.SIGUSR2)
        os.kill(os.getpid(), signal.SIGTERM)  # the limit itself, while the step goes on

    parts = cli.build_parts(config, ALONE.device)
    before = signal.signal(signal.SIGUSR2, queue_again)
    try:
        with pytest.raises(SystemExit, match="75"):
            interrupted(config, parts, 5, be_told)
        assert at == [5] and signal.getsignal(signal.SIGUSR2) is queue_again
    finally:
        signal.signal(signal.SIGUSR2, before)
    execute(tmp_path, *SHORT)
    assert_same_run(of(directory), of(execute(tmp_path / "unbroken", *SHORT)))


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_saves_after_the_step_and_a_second_one_stops_at_once(tmp_path, times, capfd):
    config = cli.compose([*SHORT, f"results={tmp_path}", "checkpoint.seconds=null"])
    directory = records.locate(tmp_path, config)

    def interrupt():
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        interrupted(config, cli.build_parts(config, ALONE.device), 5, interrupt)
    assert "Ctrl-C again stops at once" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if times == 1:
        assert checkpoint.load(directory / "checkpoint.pt")["position"]["step"] == 5
        execute(tmp_path, *SHORT)
        assert_same_run(of(directory), of(execute(tmp_path / "unbroken", *SHORT)))
    else:
        assert not list(directory.glob("checkpoint*"))


def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(stopped, unbroken, tmp_path):
    there = copied(stopped[0], tmp_path)
    path = there / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.warns(UserWarning, match=r"checkpoint\.pt is damaged"):
        execute(tmp_path, *LONG)
    assert_same_run(of(there), unbroken)


@pytest.mark.filterwarnings("ignore:Checkpoint .* is damaged")
def test_a_run_without_a_whole_checkpoint_is_moved_aside_and_begun_again(
    stopped, unbroken, tmp_path
):
    there = copied(stopped[0], tmp_path)
    for path in there.glob("checkpoint*"):
        path.write_bytes(b"not a checkpoint")
    before = (there / "metrics.jsonl").read_bytes()
    with pytest.warns(UserWarning, match=r"moved aside to .*\.broken-1"):
        execute(tmp_path, *LONG)
    assert_same_run(of(there), unbroken)
    aside = there.with_name(f"{there.name}.broken-1")
    assert (aside / "metrics.jsonl").read_bytes() == before


def tampered(there, **position):
    saved = checkpoint.load(there / "checkpoint.pt")
    saved["position"] |= position
    checkpoint.save(there / "checkpoint.pt", saved)


def test_a_run_whose_noise_was_not_drawn_once_a_step_fails(stopped, tmp_path):
    there = copied(stopped[0], tmp_path)
    draws = checkpoint.load(there / "checkpoint.pt")["position"]["noise_draws"]
    tampered(there, noise_draws=draws - 1)
    with pytest.raises(PrivacyError, match="Noise was drawn at 23 steps where 24"):
        execute(tmp_path, *LONG)
    assert not (there / "result.json").exists() and not (there / "privacy.json").exists()


KILLED_AT_THE_END = """
import os, signal, sys
from dpexp import cli
from dpexp.training.lifecycle import Lifecycle
Lifecycle.finish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
cli.execute(cli.compose([*sys.argv[1:], "checkpoint.steps=1"]))
"""


@pytest.fixture(scope="module")
def all_but_finished(tmp_path_factory, programs):
    """A run killed between its last step and its record."""
    results = tmp_path_factory.mktemp("all_but_finished")
    done = programs.run(["-c", KILLED_AT_THE_END, *SHORT, f"results={results}"])
    assert done.returncode == -signal.SIGKILL, done.stderr
    return records.locate(results, cli.compose(SHORT))


def test_a_run_stopped_after_its_last_step_still_states_its_result(all_but_finished, tmp_path):
    """The last checkpoint may be all that is left to do: no step, no evaluation."""
    there = copied(all_but_finished, tmp_path)
    assert checkpoint.load(there / "checkpoint.pt")["position"]["step"] == 12
    assert execute(tmp_path, *SHORT) == there
    lines, result, _ = of(there)
    assert result["test_accuracy"] == lines[-1]["test_accuracy"]


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_run_does_not_go_on_with_other_data(all_but_finished, tmp_path, has_checkpoint):
    there = copied(all_but_finished, tmp_path)
    if not has_checkpoint:  # as if killed before the first one: the ledger knows the data too
        for path in [*there.glob("checkpoint*"), there / "metrics.jsonl"]:
            path.unlink()
    config = cli.compose([*SHORT, f"results={tmp_path}"])
    parts = cli.build_parts(config, ALONE.device)
    parts.task = replace(parts.task, fingerprint="another")
    with pytest.raises(ConfigError, match="fingerprints"):
        train(config, parts, ALONE)


FILES = ["config.yaml", "result.json", "privacy.json"]


@pytest.mark.parametrize("name", few(FILES, ["result.json"]))
def test_a_damaged_run_is_moved_aside_and_run_again(tmp_path, name):
    words = ["method=nonprivate", *DIGITS, "epochs=0.5"]
    directory = execute(tmp_path, *words)
    expected = of(directory)
    (directory / name).write_text("{")
    with pytest.warns(UserWarning, match=r"moved aside to .*\.broken-1"):
        assert execute(tmp_path, *words) == directory
    assert (directory.with_name(f"{directory.name}.broken-1") / name).read_text() == "{"
    assert_same_run(of(directory), expected)


# Dashboards


@pytest.mark.long
def test_a_run_that_goes_on_is_the_same_one_on_a_dashboard(tmp_path):
    words = [*SHORT, "wandb.mode=offline"]
    directory = killed(tmp_path, *words, at=10)
    execute(tmp_path, *words)
    attempts = [finished(path) for path in sorted(directory.glob("wandb/offline-run-*"))]
    ids = {r.run.run_id for kept in attempts for r in kept if r.HasField("run")}
    assert ids == {directory.name} and len(attempts) == 2
    sent = [
        {
            row["_step"]: row
            for r in kept
            if r.HasField("history")
            for row in [by_key(r.history.item)]
            if "test_accuracy" in row  # others are of steps between two evaluations
        }
        for kept in attempts
    ]
    assert list(sent[0]) == [2, 4, 6, 8] and list(sent[1]) == [10, 12]
    lines = {line["step"]: line for line in of(directory)[0]}
    for step, row in (sent[0] | sent[1]).items():
        assert row["train_loss"] == lines[step]["train_loss"]


# Full disks


FILLED = """
import json, resource, sys, warnings
from dataclasses import replace
import torch
from dpexp import cli
from dpexp import records
from dpexp.distributed.ranks import Ranks
from dpexp.records import RecordError
from dpexp.training.train import train

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

root, *words = sys.argv[1:]
for size in (5000, 1200, 300):
    config = cli.compose([*words, f"results={root}/{size}", "checkpoint.steps=4"])
    parts = cli.build_parts(config, torch.device("cpu"))
    saved = records.locate(config["results"], config) / "checkpoint.pt"

    def schedule(step, num_steps):
        if step == 5 and saved.exists():  # it is asked of all steps before the first, too
            limit(size)
        return parts.schedule(step, num_steps)

    error = None
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            train(config, replace(parts, schedule=schedule), Ranks(0, 1, torch.device("cpu")))
        except RecordError as caught:
            error = str(caught)
    limit(resource.RLIM_INFINITY)
    print(json.dumps([error, [str(one.message) for one in said]]))
"""


def test_a_disk_that_fills_up_costs_a_checkpoint_or_ends_the_run_in_one_line(tmp_path, programs):
    """Files may not grow beyond a size: of a checkpoint, of a result, of a ledger."""
    words = [*SHORT, "eval_every=3"]  # or the metrics would be the first to fail
    done = programs.run(["-c", FILLED, str(tmp_path), *words], timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    checkpoints, at_the_end, at_once = map(json.loads, done.stdout.splitlines())
    expected = of(execute(tmp_path / "unbroken", *words))

    warned = [
        f"No checkpoint at step {step}: File too large. The run goes on; the one before it is kept."
        for step in (8, 12)
    ]
    assert checkpoints == [None, warned]
    assert_same_run(of(records.locate(tmp_path / "5000", cli.compose(words))), expected)

    assert at_the_end[1] == warned and at_once[1] == []
    for error, name in ((at_the_end[0], "result.json"), (at_once[0], records.LEDGER)):
        assert f"{name}: File too large" in error and "run the same command again" in error
        assert "\n" not in error
    for size in (1200, 300):
        directory = records.locate(tmp_path / str(size), cli.compose(words))
        assert checkpoint.load(directory / "checkpoint.pt")["position"]["step"] == 4
        execute(tmp_path / str(size), *words)
        assert_same_run(of(directory), expected)
