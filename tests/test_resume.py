"""Killed, stopped and torn runs end as if never stopped, and count what they may have shown."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import run
from dpexp import checkpoint, records
from dpexp.mechanism import PrivacyError
from dpexp.ranks import Ranks
from dpexp.records import Ledger, Mark, read_mark
from dpexp.train import train
from dpexp.types import ConfigError
from scripts.verify import main as verify
from tests.runs import execute, of, one_thread  # noqa: F401 (a fixture)
from tests.test_tracking import by_key, finished

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
ALONE = Ranks(0, 1, torch.device("cpu"))
DIGITS = ["task=digits", "profile=embedded", "device=cpu", "model=wrn10_1", "batch_size=360"]
LONG = ["method=rgp", *DIGITS, "epochs=6", "eval_every=0.25", "method.warm_up_steps=8"]
SHORT = ["method=dpsgd", *DIGITS, "epochs=3", "eval_every=0.5", "model=linear"]  # 12 steps
CLOCK = ("wall_s", "examples_per_s", "peak_memory_mb")


def assert_same_run(got, expected):
    """Compare all that two runs say, to the last bit, but for time and memory."""
    assert got[0] == expected[0] and got[2] == expected[2]
    ours, theirs = ({k: v for k, v in one[1].items() if k not in CLOCK} for one in (got, expected))
    assert ours == theirs


# Killed


def test_runs_killed_twenty_times_at_random_moments_end_as_if_never_killed(tmp_path):
    """Weights (by their hash), metrics and certificates of methods that keep a state."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed of the moments: {seed}")  # pytest shows it where the test fails
    command = [sys.executable, "-m", "tests.killed", str(tmp_path), str(seed), "20"]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    unbroken, kills = {}, []
    for line in done.stdout.splitlines():
        name, directory, noted = json.loads(line)
        found = of(Path(directory))
        assert len(found[1]["weights_sha256"]) == 64
        assert_same_run(found, unbroken.setdefault(name, found))
        kills += noted
    assert len(unbroken) == 3 and len(kills) == 20
    assert len(set(kills)) > 3, kills  # they fell at different steps, or this shows little


# Stopped


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return of(execute(tmp_path_factory.mktemp("unbroken"), *LONG))


def stop(results, number):
    """Start a run, send it a signal halfway, and give its directory and exit code."""
    command = [sys.executable, "run.py", *LONG, f"results={results}", "checkpoint.steps=1"]
    directory = records.locate(results, run.compose(LONG))
    metrics = directory / "metrics.jsonl"
    with subprocess.Popen(
        command, cwd=ROOT, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
    ) as process:
        while process.poll() is None:
            if metrics.exists() and len(metrics.read_text().splitlines()) >= 10:
                process.send_signal(number)
                break
            time.sleep(0.005)
        said = process.stderr.read()
    assert not (directory / "result.json").exists(), "too fast to be stopped"
    return directory, process.returncode, said


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that SIGTERM stopped."""
    return stop(tmp_path_factory.mktemp("stopped"), signal.SIGTERM)


def copied(directory, tmp_path):
    """Copy a run's directory below another results folder."""
    there = tmp_path / "embedded" / "runs" / directory.name
    shutil.copytree(directory, there)
    return there


def test_a_run_stopped_by_sigterm_ends_as_if_never_stopped(stopped, unbroken, tmp_path):
    directory, code, said = stopped
    assert code == 128 + signal.SIGTERM
    assert "run it again to go on" in said and "Traceback" not in said
    there = copied(directory, tmp_path)
    saved = checkpoint.load(there / "checkpoint.pt")["position"]
    assert 8 < saved["step"] < 24
    assert execute(tmp_path, *LONG) == there
    assert_same_run(of(there), unbroken)
    assert not list(there.glob("checkpoint*"))


def test_a_run_that_was_killed_ends_as_if_never_killed(unbroken, tmp_path):
    directory, code, _ = stop(tmp_path, signal.SIGKILL)
    assert code == -signal.SIGKILL
    assert execute(tmp_path, *LONG) == directory
    assert_same_run(of(directory), unbroken)


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


def test_a_run_stopped_after_its_last_step_still_states_its_result(tmp_path):
    """The last checkpoint may be all that is left to do: no step, no evaluation."""
    command = [sys.executable, "-c", KILLED_AT_THE_END, *SHORT, f"results={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    directory = records.locate(tmp_path, run.compose(SHORT))
    assert checkpoint.load(directory / "checkpoint.pt")["position"]["step"] == 12
    assert execute(tmp_path, *SHORT) == directory
    lines, result, _ = of(directory)
    assert result["test_accuracy"] == lines[-1]["test_accuracy"]


KILLED_AT_THE_END = """
import os, signal, sys, run
from dpexp.logbook import Logbook
Logbook.finish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
run.execute(run.compose([*sys.argv[1:], "checkpoint.steps=1"]))
"""


@pytest.mark.parametrize("name", ["config.yaml", "result.json", "privacy.json"])
def test_a_damaged_run_is_moved_aside_and_run_again(tmp_path, name):
    words = ["method=nonprivate", *DIGITS, "epochs=0.5"]
    directory = execute(tmp_path, *words)
    expected = of(directory)
    (directory / name).write_text("{")
    with pytest.warns(UserWarning, match=r"moved aside to .*\.broken-1"):
        assert execute(tmp_path, *words) == directory
    assert (directory.with_name(f"{directory.name}.broken-1") / name).read_text() == "{"
    assert_same_run(of(directory), expected)


def test_a_run_does_not_go_on_with_other_data(tmp_path):
    words = [*SHORT, f"results={tmp_path}"]
    subprocess.run([sys.executable, "-c", KILLED_AT_THE_END, *words], cwd=ROOT, check=False)

    config = run.compose(words)
    parts = run.build_parts(config, torch.device("cpu"))
    parts.task = replace(parts.task, fingerprint="another")
    with pytest.raises(ConfigError, match="fingerprints"):
        train(config, parts, Ranks(0, 1, torch.device("cpu")))


# What may have been released is counted


class Killed(BaseException):
    """As sudden as a kill: nothing is saved on the way out."""


def killed(results, *words, at, every=4):
    """Take a run up and kill it in its step `at` (from 1); checkpoints every few steps."""
    config = run.compose([*words, f"results={results}", f"checkpoint.steps={every}"])
    parts = run.build_parts(config, ALONE.device)

    def make_optimizer(weights):
        optimizer = parts.make_optimizer(weights)
        optimizer.register_step_post_hook(die_in_time)
        return optimizer

    directory = records.locate(results, config)

    def die_in_time(*_):
        if read_mark(directory).steps == at:
            raise Killed

    with pytest.raises(Killed):
        train(config, replace(parts, make_optimizer=make_optimizer), ALONE)
    return directory


def assert_lost(directory, lost, steps=12):
    """A finished run counts some steps as spent that its weights lack, and the checks agree."""
    _, result, privacy = of(directory)
    assert privacy["lost_steps"] == lost
    assert privacy["steps"] == privacy["noise_draws"] == result["steps"] == steps
    assert privacy["epsilon"]["prv"] <= privacy["target_epsilon"] == 8
    assert any("lost" in word for word in privacy["deviations"])
    assert verify([str(directory)]) == 0


SECRET = [*SHORT, "noise=secret"]


@pytest.fixture(scope="module")
def secret(tmp_path_factory):
    """A run with secret noise, killed in its tenth step: the last checkpoint is of the eighth."""
    return killed(tmp_path_factory.mktemp("secret"), *SECRET, at=10)


def test_steps_of_secret_noise_since_the_checkpoint_are_lost(secret, tmp_path):
    there = copied(secret, tmp_path)
    with pytest.warns(UserWarning, match="2 steps after step 8 may have been released.*secret"):
        assert execute(tmp_path, *SECRET) == there
    assert_lost(there, 2)
    assert [line["step"] for line in of(there)[0]] == [2, 4, 6, 8, 10, 12]


def test_a_second_kill_loses_steps_of_its_own(secret, tmp_path):
    there = copied(secret, tmp_path)
    with pytest.warns(UserWarning, match="2 steps after step 8"):
        killed(tmp_path, *SECRET, at=11)
    with pytest.warns(UserWarning, match="3 steps after step 8"):
        execute(tmp_path, *SECRET)
    assert_lost(there, 3)


def test_where_the_last_step_was_lost_the_weights_are_judged_as_they_are(tmp_path):
    directory = killed(tmp_path, *SECRET, at=12)
    with pytest.warns(UserWarning, match="4 steps after step 8"):
        execute(tmp_path, *SECRET)
    assert_lost(directory, 4)
    lines, result, _ = of(directory)
    assert [line["step"] for line in lines] == [2, 4, 6, 8, 12]
    assert lines[-1]["test_accuracy"] == lines[-2]["test_accuracy"] == result["test_accuracy"]


@pytest.mark.filterwarnings("ignore:Checkpoint .* is damaged")
def test_moving_a_run_aside_does_not_give_its_budget_back(secret, tmp_path):
    there = copied(secret, tmp_path)
    for path in there.glob("checkpoint*"):
        path.write_bytes(b"")
    with pytest.warns(UserWarning) as said:
        execute(tmp_path, *SECRET)
    assert any("moved aside" in str(one.message) for one in said)
    assert any("10 steps after step 0" in str(one.message) for one in said)
    assert_lost(there, 10)
    # Nor does damage to what the finished run left.
    (there / "result.json").write_text("{")
    with (
        pytest.warns(UserWarning, match=r"moved aside to .*\.broken-2"),
        pytest.raises(PrivacyError, match="all 12 steps may have been released") as refused,
    ):
        execute(tmp_path, *SECRET)
    assert "\n" not in str(refused.value)


def test_without_its_ledger_a_secret_run_does_not_go_on(secret, tmp_path):
    there = copied(secret, tmp_path)
    (there / records.LEDGER).write_text("torn")
    with pytest.raises(PrivacyError, match="ledger is missing or damaged"):
        execute(tmp_path, *SECRET)


def test_what_a_secret_run_leaves_behind_does_not_tell_its_seed(tmp_path, monkeypatch):
    known = 0x5EC2E75EC2E75EC2
    monkeypatch.setattr("secrets.randbits", lambda _: known)
    there = killed(tmp_path, *SECRET, at=10)
    content = b"".join(path.read_bytes() for path in there.iterdir())
    assert checkpoint.load(there / "checkpoint.pt")["position"]["step"] == 8
    spelled = [known.to_bytes(8, order) for order in ("little", "big")]
    assert not any(word in content for word in [*spelled, str(known).encode(), b"%x" % known])


def test_recorded_noise_is_repeated_in_the_same_surroundings_and_passed_over_in_others(tmp_path):
    expected = of(execute(tmp_path / "unbroken", *SHORT))
    directory = killed(tmp_path / "killed", *SHORT, at=10)
    there = copied(directory, tmp_path / "moved")
    execute(tmp_path / "killed", *SHORT)
    assert_same_run(of(directory), expected)
    assert "lost_steps" not in expected[2] and not (directory / records.LEDGER).exists()

    with pytest.warns(UserWarning, match=r"2 steps after step 8 .*\(changed: micro_batch\)"):
        killed(tmp_path / "moved", *SHORT, "micro_batch=50", at=11)
    # Killed again, it repeats the eleventh step but not the two that were lost before it.
    again = copied(there, tmp_path / "again")
    with pytest.warns(UserWarning, match="they were lost before"):
        execute(tmp_path / "moved", *SHORT, "micro_batch=50")
    assert_lost(there, 2)
    with pytest.warns(UserWarning, match="3 steps after step 8"):
        execute(tmp_path / "again", *SHORT, "micro_batch=60")
    assert_lost(again, 3)


@pytest.mark.parametrize(
    ("mark", "checkpointed", "surroundings", "goes_on_at"),
    [
        (Mark(10, 0, 0, {"ranks": 1}), 8, {"ranks": 1}, 8),  # repeats two steps
        (Mark(10, 0, 0, {"ranks": 1}), 8, {"ranks": 2}, 10),
        (Mark(8, 0, 0, {"ranks": 1}), 8, {"ranks": 2}, 8),  # stopped right after a checkpoint
        (Mark(10, 0, 0, None), 8, None, 10),  # nothing can be repeated
        (Mark(12, 8, 10, {"ranks": 2}), 8, {"ranks": 2}, 10),  # loses the same again
        (Mark(12, 8, 10, {"ranks": 2}), 11, {"ranks": 2}, 11),
        (Mark(12, 8, 10, {"ranks": 2}), 4, {"ranks": 2}, 12),  # the checkpoint at 8 is damaged
        (Mark(5, 0, 0, {"ranks": 1}), 8, {"ranks": 2}, 8),  # the ledger lags: a power cut
    ],
)
def test_a_run_goes_on_where_nothing_is_released_twice(
    mark, checkpointed, surroundings, goes_on_at
):
    now = mark.taken_up(checkpointed, surroundings)
    assert max(checkpointed, now.begun_at) == goes_on_at
    assert now.steps >= max(mark.steps, checkpointed)


@pytest.mark.parametrize("is_durable", [False, True])
def test_a_ledger_torn_anywhere_says_what_was_noted_before(tmp_path, is_durable):
    ledger = Ledger(tmp_path, Mark(7, 3, 7, {"ranks": 1}), is_durable)
    for steps in (8, 9, 10):
        ledger.note(steps)
    whole = (tmp_path / records.LEDGER).read_bytes()
    ledger.close()
    assert read_mark(tmp_path) == Mark(10, 3, 7, {"ranks": 1})
    # Notes are appended, so a kill can only cut the end off: that step had not begun.
    for length, steps in ((-1, 9), (-2, 9), (-3, 9), (-4, 8), (-7, 7)):
        (tmp_path / records.LEDGER).write_bytes(whole[:length])
        assert read_mark(tmp_path).steps == steps
    (tmp_path / records.LEDGER).write_bytes(b"{")
    assert read_mark(tmp_path) is None


@pytest.mark.filterwarnings("ignore:eps=8 has no effect")
def test_a_run_without_noise_keeps_no_ledger(tmp_path):
    words = [*SHORT, "noise=false"]
    run_dir = records.locate(tmp_path, run.compose([*words, f"results={tmp_path}"]))
    seen = []
    config = run.compose([*words, f"results={tmp_path}"])
    parts = run.build_parts(config, ALONE.device)

    def schedule(step, num_steps):
        seen.append((run_dir / records.LEDGER).exists())
        return parts.schedule(step, num_steps)

    train(config, replace(parts, schedule=schedule), ALONE)
    assert len(seen) == 12 and not any(seen)


# Dashboards


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
import torch, run
from dpexp.ranks import Ranks
from dpexp.records import RecordError
from dpexp.train import train

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

root, *words = sys.argv[1:]
for size in (5000, 700, 300):
    config = run.compose([*words, f"results={root}/{size}", "checkpoint.steps=4"])
    parts = run.build_parts(config, torch.device("cpu"))

    def schedule(step, num_steps):
        if step == 5:
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


def test_a_disk_that_fills_up_costs_a_checkpoint_or_ends_the_run_in_one_line(tmp_path):
    """Files may not grow beyond a size: of a checkpoint's, of a certificate's, of a ledger's."""
    words = [*SHORT, "eval_every=3"]  # or the metrics would be the first to fail
    command = [sys.executable, "-c", FILLED, str(tmp_path), *words]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    checkpoints, at_the_end, at_once = map(json.loads, done.stdout.splitlines())
    expected = of(execute(tmp_path / "unbroken", *words))

    warned = [
        f"No checkpoint at step {step}: File too large. The run goes on; one before it is kept."
        for step in (8, 12)
    ]
    assert checkpoints == [None, warned]
    assert_same_run(of(records.locate(tmp_path / "5000", run.compose(words))), expected)

    assert at_the_end[1] == warned and at_once[1] == []
    for error, name in ((at_the_end[0], "privacy.json"), (at_once[0], records.LEDGER)):
        assert f"{name}: File too large" in error and "run the same command again" in error
        assert "\n" not in error
    for size in (700, 300):
        directory = records.locate(tmp_path / str(size), run.compose(words))
        assert checkpoint.load(directory / "checkpoint.pt")["position"]["step"] == 4
        execute(tmp_path / str(size), *words)
        assert_same_run(of(directory), expected)
