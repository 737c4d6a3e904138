"""PATE in whole runs: its record, kills and second tries, and mistakes."""

import os
import shutil
import signal
import time
from dataclasses import replace

import pytest
import torch

from dpexp import cli, records
from dpexp.cli.cost_model import CostModel
from dpexp.distributed.ranks import Ranks
from dpexp.pate import loop, stages
from dpexp.pate.stages import assign
from dpexp.privacy import PrivacyError, verify
from dpexp.privacy.verification.record import verify_record
from dpexp.records import read_mark
from dpexp.records.weights import digest
from dpexp.training import checkpoint
from dpexp.types import ConfigError
from tests.marks import pairs_long
from tests.runs import (
    Killed,
    assert_same_run,
    execute,
    of,
    one_thread,  # noqa: F401 (a fixture)
)
from tests.test_pate import ALONE, CPU, SMALL

BRIEF = [*SMALL, "method.teachers=6", "method.teacher_steps=3", "method.student_steps=5"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    results = tmp_path_factory.mktemp("finished")
    return execute(results, *SMALL)


def test_a_run_learns_within_its_budget_and_leaves_every_field_of_its_contract(finished):
    assert sorted(os.listdir(finished)) == [
        "config.yaml",
        "metrics.jsonl",
        "predictions.npz",
        "privacy.json",
        "released.jsonl",
        "result.json",
    ]
    lines, result, privacy = of(finished)
    assert result["test_accuracy"] == lines[-1]["test_accuracy"] > 55  # chance is 10
    assert [line["step"] for line in lines] == [20, 40, 60, 80, 100]
    assert lines[-1]["train_loss"] < lines[0]["train_loss"]
    assert (result["method"], result["model"], result["eps"]) == ("pate", "cnn", 8)
    assert result["asked"] <= 180 and result["answered"] <= 60
    for key in ("wall_s", "examples_per_s", "peak_memory_mb", "teacher_accuracy", "label_accuracy"):
        assert result[key] > 0
    assert len(result["data_fingerprint"]) == 64 and result["versions"] and "git_commit" in result

    verify(privacy)
    assert (privacy["dataset_size"], privacy["delta"], privacy["target_epsilon"]) == (1437, 1e-4, 8)
    assert privacy["steps"] == result["asked"] and privacy["answers"] == result["answered"]
    assert privacy["noise_draws"] == result["asked"] + result["answered"]
    assert {release["at_most"] for release in privacy["releases"]} == {180, 60}
    assert 7.99 < privacy["epsilon"]["rdp"] <= 8
    assert privacy["data_dependent_epsilon"]["rdp"] <= privacy["epsilon"]["rdp"]
    assert privacy["deviations"] == [loop.UNRELEASED, loop.TEST_HALF] and privacy["replayable"]
    assert privacy["trainable"]["head.weight"] > 0 and privacy["frozen"] == {}
    assert all(line["epsilon"] == privacy["epsilon"]["rdp"] for line in lines)


def test_a_second_call_looks_the_run_up(finished):
    before = {path: path.read_bytes() for path in finished.iterdir()}
    began = time.monotonic()
    assert execute(finished.parents[2], *SMALL) == finished
    assert time.monotonic() - began < 1
    assert {path: path.read_bytes() for path in finished.iterdir()} == before


@pytest.mark.filterwarnings("ignore:.* is damaged, or was killed")
def test_a_run_that_was_killed_begins_again_and_ends_alike(tmp_path):
    finished = execute(tmp_path / "unbroken", *BRIEF)
    there = tmp_path / "embedded" / "runs" / finished.name
    shutil.copytree(finished, there)
    for name in ("result.json", "privacy.json"):
        (there / name).unlink()
    assert execute(tmp_path, *BRIEF) == there
    (lines, result, privacy), expected = of(there), of(finished)
    assert (lines, privacy) == (expected[0], expected[2])
    assert result["test_accuracy"] == expected[1]["test_accuracy"]


def test_secret_noise_is_not_replayable_and_says_so(tmp_path):
    words = [*BRIEF, "noise=secret"]
    one, other = (of(execute(tmp_path / name, *words)) for name in "ab")
    assert [a["train_loss"] for a in one[0]] != [b["train_loss"] for b in other[0]]
    assert one[2]["replayable"] is False
    assert any("secret" in word for word in one[2]["deviations"])


def die(step, num_steps):
    if step == 3:
        raise Killed
    return 1.0


@pytest.mark.parametrize("noise", ["true", "secret"])
def test_teachers_answer_once_however_often_the_student_is_killed(tmp_path, noise):
    words = [*BRIEF, f"noise={noise}", f"results={tmp_path}"]
    config = cli.compose(words)
    directory = records.locate(tmp_path, config)
    for _ in range(2):
        parts = replace(cli.build_parts(config, CPU), schedule=die)
        with pytest.raises(Killed):
            loop.train(config, parts, ALONE)
    kept = checkpoint.load(directory / "checkpoint.pt")["position"]["state"]["answers"]
    loop.train(config, cli.build_parts(config, CPU), ALONE)
    lines, result, privacy = of(directory)
    assert (result["asked"], result["answered"]) == (kept["asked"], len(kept["labels"]))
    assert privacy["noise_draws"] == sum(kept["draws"].values())
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    if noise == "true":
        unbroken = of(execute(tmp_path / "unbroken", *BRIEF))
        assert (lines, privacy) == (unbroken[0], unbroken[2])
        assert result["weights_sha256"] == unbroken[1]["weights_sha256"]
        return
    (directory / "result.json").write_text("{")
    with (
        pytest.warns(UserWarning, match="moved aside"),
        pytest.raises(PrivacyError, match="its teachers have answered"),
    ):
        loop.train(config, parts, ALONE)


def stopped(config, when, number):
    """Train until something happens for the third time, and be sent a signal then."""
    parts, seen = cli.build_parts(config, CPU), []

    def send(*_):
        seen.append(1)
        if len(seen) == 3:
            os.kill(os.getpid(), number)

    if when == "teacher":
        make = parts.method.teacher
        parts.method = replace(parts.method, teacher=lambda **given: (send(), make(**given))[1])
    else:
        parts.model.register_forward_hook(lambda *_: send() if parts.model.training else None)
    with pytest.raises((SystemExit, KeyboardInterrupt)):
        loop.train(config, parts, ALONE)
    return checkpoint.load(records.locate(config["results"], config) / "checkpoint.pt")["position"]


@pytest.fixture(scope="module")
def brief(tmp_path_factory):
    return of(execute(tmp_path_factory.mktemp("brief"), *BRIEF))


@pytest.mark.parametrize(
    ("when", "number"),
    pairs_long(
        *(["teacher", "student"], [signal.SIGTERM, signal.SIGINT]),
        short=lambda when, number: (when == "teacher") == (number == signal.SIGINT),
    ),
)
def test_a_run_that_is_stopped_finishes_the_step_and_goes_on_to_the_same_bits(
    when, number, brief, tmp_path, monkeypatch
):
    monkeypatch.setattr("dpexp.pate.stages.assign", counted := Counted(assign))
    config = cli.compose([*BRIEF, f"results={tmp_path}"])
    position = stopped(config, when, number)
    kept = position["state"]
    assert (kept["teachers"], position["step"]) == ((3, 0) if when == "teacher" else (6, 3))
    assert ("answers" in kept) == (when == "student")
    assert_same_run(of(execute(tmp_path, *BRIEF)), brief)
    assert counted.calls == (2 if when == "teacher" else 1)


class Counted:
    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, *given):
        self.calls += 1
        return self.function(*given)


def test_under_another_secret_no_teachers_vote_is_kept(tmp_path, monkeypatch):
    """An example may have another teacher then, and would have two votes."""
    config = cli.compose([*BRIEF, "noise=secret", f"results={tmp_path}"])
    assert stopped(config, "teacher", signal.SIGTERM)["state"]["teachers"] == 3
    numbers, train_teacher = [], stages.train_teacher

    def watched(pate, task, part, number, *rest):
        numbers.append(number)
        return train_teacher(pate, task, part, number, *rest)

    monkeypatch.setattr(stages, "train_teacher", watched)
    _, result, _ = of(execute(tmp_path, *BRIEF, "noise=secret"))
    assert numbers == [*range(6)]
    assert result["steps"] == 5


def test_an_answer_that_was_saved_and_not_yet_noted_is_noted_and_kept(brief, tmp_path):
    config = cli.compose([*BRIEF, f"results={tmp_path}"])
    stopped(config, "student", signal.SIGTERM)
    ledger = records.locate(tmp_path, config) / records.LEDGER
    ledger.write_text(ledger.read_text().split("\n")[0] + "\n")  # as if killed in between
    assert_same_run(of(execute(tmp_path, *BRIEF)), brief)
    assert records.read_mark(ledger.parent).steps == brief[1]["asked"]


def test_a_checkpoint_of_former_code_is_refused_in_one_line(tmp_path):
    config = cli.compose([*BRIEF, f"results={tmp_path}"])
    stopped(config, "student", signal.SIGTERM)
    path = records.locate(tmp_path, config) / "checkpoint.pt"
    saved = checkpoint.load(path)
    checkpoint.save(path, {"of": saved["of"], "data": "", "votes": torch.zeros(1), "answers": {}})
    with pytest.raises(records.RecordError, match="of this code") as refused:
        execute(tmp_path, *BRIEF)
    assert "\n" not in str(refused.value)


def test_a_student_without_answers_stays_as_it_was_and_is_judged(tmp_path):
    words = [*BRIEF, "noise=false", "clip=false", "eps=null", "method.teacher_optimizer.lr=1e30"]
    before = cli.build_parts(cli.compose(words), CPU).model.state_dict()
    (line,), result, _ = of(execute(tmp_path, *words))
    assert (line["step"], line["train_loss"], result["answered"]) == (0, None, 0)
    assert result["weights_sha256"] == digest(before)


def test_what_a_teacher_refuses_is_named_as_it_is_set(tmp_path):
    with pytest.raises(ConfigError, match=r"Set method\.teacher\.channels, method\.teacher\.ker"):
        execute(tmp_path, *BRIEF, "method.teacher.kernel=8")


def test_teachers_answer_again_only_where_they_answer_the_same(tmp_path):
    config = cli.compose([*BRIEF, f"results={tmp_path}"])
    directory = execute(tmp_path, *BRIEF)
    (directory / "result.json").write_text("{")
    parts = cli.build_parts(config, CPU)
    with torch.no_grad():
        next(parts.model.parameters()).add_(1)
    said = r"neither be read nor given again exactly \(changed: weights\)"
    with (
        pytest.warns(UserWarning, match="moved aside"),
        pytest.raises(PrivacyError, match=said) as refused,
    ):
        loop.train(config, parts, ALONE)
    assert "\n" not in str(refused.value)
    parts.task = replace(parts.task, fingerprint="another")
    with pytest.raises(ConfigError, match="fingerprints"):
        loop.train(config, parts, ALONE)


def test_teachers_that_answer_otherwise_are_not_heard(tmp_path):
    """As where their loss reads a clock: two answers would have the same noise."""
    config = cli.compose([*BRIEF, f"results={tmp_path}"])
    directory = execute(tmp_path, *BRIEF)
    before = read_mark(directory)
    (directory / "result.json").write_text("{")
    parts = cli.build_parts(config, CPU)
    loss = parts.task.loss
    parts.task = replace(parts.task, loss=lambda outputs, targets: -loss(outputs, targets))
    with (
        pytest.warns(UserWarning, match="moved aside"),
        pytest.raises(PrivacyError, match="now answer otherwise") as refused,
    ):
        loop.train(config, parts, ALONE)
    assert "\n" not in str(refused.value)
    assert "answers" not in checkpoint.load(directory / "checkpoint.pt")["position"]["state"]
    assert read_mark(directory) == replace(before, surroundings=None, released={})
    with pytest.raises(PrivacyError, match="neither be read nor given again exactly"):
        execute(tmp_path, *BRIEF)


def test_where_the_ledger_was_lost_answers_are_read_but_not_given_again(tmp_path):
    config = cli.compose([*BRIEF, f"results={tmp_path}"])
    with pytest.raises(Killed):
        loop.train(config, replace(cli.build_parts(config, CPU), schedule=die), ALONE)
    directory = records.locate(tmp_path, config)
    (directory / records.LEDGER).unlink()
    assert execute(tmp_path, *BRIEF) == directory
    (directory / "result.json").write_text("{")
    with (
        pytest.warns(UserWarning, match="moved aside"),
        pytest.raises(PrivacyError, match="neither be read nor given again"),
    ):
        execute(tmp_path, *BRIEF)


def test_without_noise_no_epsilon_is_stated(tmp_path):
    lines, result, privacy = of(execute(tmp_path, *BRIEF, "noise=false", "clip=false", "eps=null"))
    assert result["eps"] is None and privacy["target_epsilon"] is None
    assert privacy["noise_draws"] == 0 and lines[-1]["epsilon"] is None
    assert any("no privacy" in word for word in privacy["deviations"])


def test_a_run_whose_noise_was_not_drawn_at_every_query_fails(tmp_path):
    config = cli.compose([*BRIEF, f"results={tmp_path}"])
    with pytest.raises(Killed):
        loop.train(config, replace(cli.build_parts(config, CPU), schedule=die), ALONE)
    path = records.locate(tmp_path, config) / "checkpoint.pt"
    saved = checkpoint.load(path)
    saved["position"]["state"]["answers"]["draws"]["check"] -= 1
    checkpoint.save(path, saved)
    with pytest.raises(PrivacyError, match="drawn"):
        execute(tmp_path, *BRIEF)
    assert not list(tmp_path.rglob("result.json")) and not list(tmp_path.rglob("privacy.json"))


def test_an_estimate_needs_no_run(finished, tmp_path):
    costs = CostModel(tmp_path, "embedded", CPU)
    cost = costs.cost(cli.compose([*SMALL, f"results={tmp_path}"]))
    took = of(finished)[1]["wall_s"]
    assert took / 10 < cost.seconds < 10 * took and cost.megabytes > 0
    assert os.listdir(tmp_path) == []


# Mistakes


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["method.teachers=0"], "Expected method.teachers >= 1; got 0. Set method.teachers"),
        (["method.answers=0"], "Expected method.answers >= 1"),
        (["method.queries=many"], "Expected queries of PATE to be int; got queries=many"),
        (["method.threshold=-0.1"], r"Expected method.threshold in \[0, 1\]"),
        (["method.threshold=1.5"], "got 1.5 and"),
        (["method.check_ratio=0"], "method.check_ratio > 0"),
        (["method.public=test-hlf"], "Did you mean test-half?"),
        (["method.public=task"], "Expected public data for digits"),
        (["clip=false"], "Expected clip=True with method=pate"),
        (["sampling=shuffle"], "Expected sampling=poisson with method=pate"),
        (["noise=maybe"], "Expected noise true, false, secret or correlated"),
        (["eps=0"], "Expected eps > 0; got 0"),
        (["task.delta=2"], r"Expected delta in \(0, 1\)"),
        (["method.teacher.kernel=2"], "odd kernel"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_value_that_cannot_be_meant_is_refused_in_one_line(tmp_path, words, said):
    with pytest.raises(ConfigError, match=said) as caught:
        execute(tmp_path, *BRIEF, *words)
    assert "\n" not in str(caught.value)
    assert not any(tmp_path.rglob("metrics.jsonl"))


def test_several_processes_are_refused():
    config = cli.compose(BRIEF)
    with pytest.raises(ConfigError, match=r"got 2\. Set ranks=1"):
        loop.train(config, cli.build_parts(config, CPU), Ranks(0, 2, CPU))


@pytest.mark.filterwarnings("ignore")
def test_a_budget_that_delta_alone_suffices_for_ends_as_others_do(tmp_path):
    """PRV's number was below 0 there, which the certificate's check took for too little."""
    words = ["method=pate", "task=digits", "profile=embedded", "model=cnn", "device=cpu"]
    words += ["method.teachers=3", "method.teacher_steps=2", "method.student_steps=3"]
    directory = execute(tmp_path, *words, "eps=0.05", "privacy.delta=0.1")
    lines, _, privacy = of(directory)
    assert privacy["epsilon"]["prv"] == 0
    assert all(line["epsilon"] >= 0 for line in lines)
    assert verify_record(records.read(directory)).findings == ()
