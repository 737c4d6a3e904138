"""Training examples that are held out of a run: judged at the end, and used for nothing else."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import dpexp
from dpexp import cli, records
from dpexp.cli.errors import mistake
from dpexp.cli.holdout import left_out
from dpexp.cli.lookup import outcome
from dpexp.cli.search import prepared
from dpexp.cli.verify import verify
from dpexp.data.examples import Examples
from dpexp.data.holdout import hold_out
from dpexp.data.task import Task, fingerprint
from dpexp.records.predictions import unpacked
from dpexp.training import model_card
from dpexp.training.train import train
from dpexp.types import ConfigError
from tests.runs import ALONE, CONFIGS, SHORT, assert_same_run, execute, killed, of, one_thread  # noqa: F401

HELD = [*SHORT, "holdout=train", "holdout.size=300"]
N = 1437  # of digits


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return execute(tmp_path_factory.mktemp("held"), *HELD)


def task_of(size, seed=0, count=40):
    inputs = torch.arange(float(count))[:, None]
    train = Examples(inputs, torch.arange(count) % 2)
    test = Examples(inputs[:4] + 0.5, torch.arange(4) % 2)
    whole = Task("made", train, test, None, 2, (1,), 1e-3, count, fingerprint(*train.tensors()))
    return hold_out(whole, size=size, split_seed=seed)


@pytest.mark.parametrize("size", [1, 7, 39])
def test_what_is_held_out_and_what_is_left_make_up_the_whole(size):
    task = task_of(size)
    left, held = task.train.inputs.flatten(), task.holdout.inputs.flatten()
    assert len(held) == size and task.dataset_size == len(left) == 40 - size
    assert sorted([*left.tolist(), *held.tolist()]) == list(range(40))
    assert left.tolist() == sorted(left.tolist())


def test_a_larger_part_holds_a_smaller_one_and_another_seed_is_another():
    few, many = task_of(5), task_of(20)
    assert many.holdout.inputs[:5].equal(few.holdout.inputs)
    other = task_of(20, seed=1)
    assert not other.holdout.inputs.equal(many.holdout.inputs)
    assert len({each.fingerprint for each in (few, many, other)}) == 3


def test_every_method_and_seed_holds_out_the_same():
    words = ["method=dpsgd seed=0", "method=rgp seed=3 eps=2", "method=lsg seed=1", "method=pate"]
    common = ["task=digits", "profile=embedded", "holdout=train", "holdout.size=50"]
    tasks = [
        cli.build_task(CONFIGS.compose_anew([*each.split(), *common]), ALONE.device)
        for each in words
    ]
    assert len({task.holdout_fingerprint for task in tasks}) == 1


def test_the_certificate_is_of_what_is_left_and_says_what_was_left_out(run):
    lines, result, privacy = of(run)
    assert privacy["dataset_size"] == N - 300 and privacy["q"] == 360 / (N - 300)
    assert privacy["holdout"]["examples"] == 300 and privacy["holdout"]["of"] == N
    assert privacy["holdout"]["fingerprint"] == result["holdout_fingerprint"]
    code, said = verify(run)
    assert code == 0 and f"N = {N - 300}, without 300 held out" in said[0]
    right = unpacked(run)[1]["holdout_accuracy"]
    assert len(right) == 300 and 100 * right.mean() == pytest.approx(result["holdout_accuracy"])
    assert [line["holdout_accuracy"] is None for line in lines] == [True] * (len(lines) - 1) + [
        False
    ]


def test_where_a_claim_is_read_it_says_for_whom_it_is(run):
    """The certificate, the line at the end and a kept model's card."""
    record = records.read(run)
    note = record.privacy["holdout"]["note"]
    assert "neighbouring sets differ in an example that is left" in note
    assert "nothing is claimed of these" in note
    assert f" at delta 0.0001 for N = {N - 300}, without 300 held out, " in outcome(run)
    card = model_card.text("id", record.config, record.result, record.privacy, ())
    assert f"300 of {N} training examples were held out: the claim is for the {N - 300}" in card
    assert "settings chosen by how they score are not counted" in card
    plain = {key: value for key, value in record.privacy.items() if key != "holdout"}
    assert "held out" not in model_card.text("id", record.config, record.result, plain, ())


def test_what_is_told_of_them_is_among_what_must_not_be_published(run):
    record = records.read(run)
    for file, content in (("result.json", record.result), ("metrics.jsonl", record.metrics)):
        assert "holdout_accuracy" in str(content)
        assert "holdout" not in str(records.without_diagnostics(file, content))
    kept = records.without_diagnostics("privacy.json", record.privacy)["holdout"]
    assert kept.keys() == {"examples", "of", "note"}


@pytest.mark.parametrize(
    "key, value",
    [
        ("examples", 299),
        ("of", N - 1),
        ("fingerprint", "0" * 64),
        ("note", "they are as private as the others"),
        ("epsilon", 8),
    ],
)
def test_a_certificate_that_says_otherwise_differs(run, key, value):
    from dpexp.privacy.verification.record import verify_record

    record = records.read(run)
    said = {**record.privacy, "holdout": {**record.privacy["holdout"], key: value}}
    changed = replace(record, privacy=said)
    assert any("holdout" in finding for finding in verify_record(changed).findings)


@pytest.mark.parametrize("more", [[], ["method=lsg", "model=cnn"], ["attack=loss_threshold"]])
def test_a_held_out_example_reaches_nothing_of_training(tmp_path, more):
    """Held-out pixels and labels change; weights and every line of training stay."""

    def trained(folder, change):
        config = CONFIGS.compose_anew([*HELD, *more, "epochs=1", f"results={tmp_path / folder}"])
        config["weights"] = "discard"
        parts = cli.build_parts(config, ALONE.device)
        if change:
            held = parts.task.holdout
            other = replace(held, inputs=16 - held.inputs, targets=(held.targets + 1) % 10)
            parts.task = replace(parts.task, holdout=other)
        train(config, parts, ALONE)
        found = records.find(config["results"], config)
        arrays = found.directory / "scores.npz"
        scores = dict(np.load(arrays)) if arrays.exists() else {}
        return found, {key: value.tolist() for key, value in scores.items()}

    (one, scores), (two, others) = trained("a", False), trained("b", True)
    assert one.result["weights_sha256"] == two.result["weights_sha256"]
    assert one.result["holdout_accuracy"] != two.result["holdout_accuracy"]
    assert scores == others and bool(scores) == any("attack" in word for word in more)
    keys = {*one.metrics[0]} - {"holdout_accuracy"}
    for a, b in zip(one.metrics, two.metrics, strict=True):
        assert {key: a[key] for key in keys} == {key: b[key] for key in keys}


def test_a_changed_held_out_example_never_enters_the_training_set():
    config = CONFIGS.compose_anew(HELD)
    plain = {key: value for key, value in config.items() if key != "holdout"}
    plain["task"] = {**config["task"], "dataset_size": N}
    whole = cli.build_task(plain, ALONE.device)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(0))
    inputs = whole.train.inputs.clone()
    inputs[order[:300]] = 0
    other = left_out(replace(whole, train=replace(whole.train, inputs=inputs)), config)
    usual = left_out(whole, config)
    assert other.train.inputs.equal(usual.train.inputs) and not other.holdout.inputs.any()
    assert other.dataset_size == N - 300 and usual.holdout.inputs.any()


def test_a_run_that_is_killed_goes_on_with_the_same_held_out(run, tmp_path):
    killed(tmp_path, *HELD, at=6)
    assert_same_run(of(execute(tmp_path, *HELD)), of(run))


def test_settings_are_chosen_on_a_part_of_what_is_left():
    config, parts = prepared(CONFIGS.compose_anew(HELD))
    usual = cli.build_task(CONFIGS.compose_anew(HELD), ALONE.device)
    chosen = torch.cat([parts.task.train.inputs, parts.task.test.inputs]).flatten(1)
    left = usual.train.inputs.flatten(1)
    assert parts.task.holdout is None and config["task"]["dataset_size"] == len(parts.task.train)
    assert sorted(map(tuple, chosen.tolist())) == sorted(map(tuple, left.tolist()))


def test_a_metric_of_the_training_set_is_of_what_is_left():
    words = ["method=compressive", "task=regression", "profile=embedded"]
    task = cli.build_task(
        CONFIGS.compose_anew([*words, "holdout=train", "holdout.size=50"]), ALONE.device
    )
    assert task.test is task.train and task.holdout_metric == "holdout_relative_loss"
    x, y = task.train.inputs.double().numpy(), task.train.targets.double().numpy()
    best = np.linalg.lstsq(x, y)[0]
    outputs = torch.from_numpy(x @ best)[:, None]
    assert float(task.score(outputs, task.train.targets).mean()) == pytest.approx(0, abs=1e-5)


def test_a_shadow_model_which_takes_a_half_of_what_is_left_verifies(tmp_path):
    directory = execute(tmp_path, *HELD, "attack=shadow", "epochs=1", "batch_size=100")
    privacy = of(directory)[2]
    assert privacy["dataset_size"] == (N - 300) // 2 and privacy["holdout"]["of"] == N
    code, said = verify(directory)
    assert code == 0, said


def test_pate_holds_out_too(tmp_path):
    words = ["method=pate", "task=digits", "profile=embedded", "device=cpu", "holdout=train"]
    words += ["holdout.size=100", "method.teachers=10", "method.teacher_steps=2"]
    words += ["method.queries=30", "method.answers=20", "method.student_steps=5"]
    directory = execute(tmp_path, *words)
    _, result, privacy = of(directory)
    assert privacy["dataset_size"] == N - 100 and privacy["holdout"]["examples"] == 100
    assert "holdout_accuracy" in result and verify(directory)[0] == 0


def test_dpexp_train_holds_out_of_data_in_memory(tmp_path):
    gen = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(60, 8, generator=gen), torch.arange(60) % 3
    tests = torch.randn(30, 8, generator=gen), torch.arange(30) % 3
    found = dpexp.train(
        nn.Linear(8, 3), (inputs, targets), tests, method="dpsgd", eps=8, epochs=1, batch_size=10,
        lr=0.5, device="cpu", results=tmp_path,
        settings={"holdout": "train", "holdout.size": 15},
    )  # fmt: skip
    privacy = found.privacy
    assert privacy["dataset_size"] == 45 and privacy["holdout"]["of"] == 60
    assert privacy["delta"] == 1e-2  # at most 1/90, where 1/120 would have 1e-3
    assert verify(found.directory)[0] == 0


@pytest.mark.parametrize(
    "word, says",
    [
        ("holdout.size=0", r"whole number in \[1, 1436\]"),
        ("holdout.size=-1", "got -1"),
        (f"holdout.size={N}", f"got {N}"),
        ("holdout.size=true", "got True"),
        ("holdout.size=1.5", "got 1.5"),
        ("holdout.size=ten", "got ten"),
        ("holdout.size=null", "none was said"),
        ("holdout.share=0.2", "share"),
        ("holdout=tests", "holdout"),
    ],
)
def test_wrong_settings_are_told(word, says):
    with pytest.raises(Exception, match=says) as raised:  # some are Hydra's
        cli.compose([*HELD, word])
    line = mistake(raised.value)
    assert line and "\n" not in line and "holdout" in line


@pytest.mark.parametrize("seed", [-1, 2**63, True])
def test_a_seed_of_no_permutation_is_told(seed):
    with pytest.raises(ConfigError, match="split_seed"):
        config = CONFIGS.compose_anew([*HELD, f"holdout.split_seed={seed}"])
        cli.build_task(config, ALONE.device)


def test_without_one_nothing_is_said_of_it():
    assert "holdout" not in CONFIGS.compose_anew(SHORT)
