"""What a killed run may have released is counted, and repeated only where it is the same."""

import random
import signal
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from dpexp import cli, records
from dpexp.cli.verify import main as verify
from dpexp.distributed.ranks import Ranks
from dpexp.kernels import compiled
from dpexp.models.cnn import CNN
from dpexp.models.wrn import WideResNet
from dpexp.privacy import PrivacyError
from dpexp.records import Ledger, Mark, RecordError, read_mark
from dpexp.training import checkpoint
from dpexp.training.ledger import surroundings_of
from dpexp.training.train import train
from tests.runs import (
    ALONE,
    SHORT,
    Killed,
    assert_same_run,
    copied,
    die,
    execute,
    interrupted,
    killed,
    of,
    one_thread,  # noqa: F401 (a fixture)
)
from tests.steps import cramp


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
def recorded(tmp_path_factory):
    """A run killed in its tenth step: the last checkpoint is of the eighth."""
    return killed(tmp_path_factory.mktemp("recorded"), *SHORT, at=10)


@pytest.fixture(scope="module")
def secret(tmp_path_factory):
    """The same with secret noise."""
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


class DiesAfterTheLastStep:
    """An attack whose report is never made."""

    deviation = "none"

    def stage(self, parts, seed):
        return parts

    def report(self, *_):
        self.hears = signal.getsignal(signal.SIGTERM)
        raise Killed


def test_what_could_not_be_done_again_is_saved_after_the_last_step(tmp_path):
    config = cli.compose([*SECRET, f"results={tmp_path}", "checkpoint.seconds=null"])
    parts = cli.build_parts(config, ALONE.device)
    attack, before = DiesAfterTheLastStep(), signal.getsignal(signal.SIGTERM)
    with pytest.raises(Killed):
        train(config, replace(parts, attack=attack), ALONE)
    assert attack.hears == before  # there is no step left to wait for
    execute(tmp_path, *SECRET)
    _, result, privacy = of(records.locate(tmp_path, config))
    assert result["steps"] == privacy["noise_draws"] == 12 and "lost_steps" not in privacy


def test_what_was_taken_in_halves_is_not_repeated(tmp_path):
    """Its sums were rounded otherwise than those of whole micro-batches will be."""
    config = cli.compose([*SHORT, f"results={tmp_path}", "checkpoint.seconds=null"])
    parts = cli.build_parts(config, ALONE.device)
    cramp(parts.model, 100)
    with pytest.raises(Killed):
        train(config, replace(parts, attack=DiesAfterTheLastStep()), ALONE)
    directory = records.locate(tmp_path, config)
    assert checkpoint.load(directory / "checkpoint.pt")["position"]["step"] == 12
    for path in directory.glob("checkpoint*"):
        path.unlink()
    with (
        pytest.warns(UserWarning, match="moved aside"),
        pytest.raises(PrivacyError, match="all 12 steps may have been released"),
    ):
        execute(tmp_path, *SHORT)


def test_a_step_taken_in_halves_is_not_repeated_if_killed_right_after_its_release(tmp_path):
    config = cli.compose([*SHORT, f"results={tmp_path}"])
    parts = cli.build_parts(config, ALONE.device)
    cramp(parts.model, 100)
    with pytest.raises(Killed):
        interrupted(config, parts, 1, die)
    with pytest.warns(UserWarning, match="1 step after step 0 may have been released"):
        execute(tmp_path, *SHORT)
    assert_lost(records.locate(tmp_path, config), 1)


def test_a_step_that_is_repeated_is_not_taken_in_halves(recorded, tmp_path):
    """Released twice under one noise, it would be rounded in two ways."""
    there = copied(recorded, tmp_path)
    noted = read_mark(there)
    config = cli.compose([*SHORT, f"results={tmp_path}"])
    parts = cli.build_parts(config, ALONE.device)
    hook = cramp(parts.model, 100)
    with pytest.raises(RecordError, match="Memory ran out in step 9, which may have been") as said:
        train(config, parts, ALONE)
    assert "\n" not in str(said.value)
    assert read_mark(there) == noted and noted.steps == 10
    assert checkpoint.load(there / "checkpoint.pt")["position"]["step"] == 8
    hook.remove()  # with more memory it is repeated
    again = copied(there, tmp_path / "again")
    execute(tmp_path / "again", *SHORT)
    assert "lost_steps" not in of(again)[2]
    with pytest.warns(UserWarning, match="2 steps after step 8"):
        execute(tmp_path, *SHORT, "micro_batch=90")
    assert_lost(there, 2)


@pytest.mark.parametrize("name", ["ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA"])
def test_other_instructions_are_other_surroundings(name, monkeypatch):
    layer = torch.nn.Linear(1, 1)
    before = surroundings_of({"model": {}}, "data", layer, ALONE, {})
    assert surroundings_of({"model": {}}, "data", layer, ALONE, {}) == before
    monkeypatch.setenv(name, "default")
    now = surroundings_of({"model": {}}, "data", layer, ALONE, {})
    assert [key for key in now if now[key] != before[key]] == ["instructions"]


@pytest.mark.parametrize(
    ("switch", "on"),
    [
        (torch.backends.mkldnn.set_flags, False),  # convolutions are rounded otherwise
        (torch.use_deterministic_algorithms, True),
        (torch.set_flush_denormal, True),
    ],
)
def test_switches_of_torch_that_change_rounding_are_other_surroundings(switch, on):
    of_run = {"model": {}}, "data", torch.nn.Linear(1, 1), ALONE, {}
    before = surroundings_of(*of_run)
    switch(on)
    try:
        now = surroundings_of(*of_run)
    finally:
        switch(not on)
    assert [key for key in now if now[key] != before[key]] == ["instructions"]
    assert surroundings_of(*of_run) == before


class Functional(torch.nn.Module):
    """Has no layer of torch's, but its weight."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1, 1, 1, 1))


OF_IMAGES = torch.nn.Sequential(torch.nn.Conv2d(1, 1, 1))


@pytest.mark.parametrize(
    ("settings", "model"),
    [
        ({"channels_last": True}, torch.nn.Linear(1, 1)),
        ({}, OF_IMAGES),
        ({}, Functional()),
        ({"channels_last": False}, OF_IMAGES),  # as ConvNeXt, whose norms lay images out anew
    ],
)
def test_other_kernels_are_other_surroundings_where_they_may_run(settings, model, monkeypatch):
    settings = {"model": settings}, "data", model, ALONE, {}
    before = surroundings_of(*settings)
    monkeypatch.setenv("CC", "no-such-compiler")
    compiled.cache_clear()
    try:
        now = surroundings_of(*settings)
    finally:
        compiled.cache_clear()
    if before["kernels"] is None:
        pytest.skip("no C compiler with OpenMP here, or no AVX")
    assert [key for key in now if now[key] != before[key]] == ["kernels"]


@pytest.mark.parametrize(
    ("settings", "model"),
    [
        ({}, torch.nn.Linear(1, 1)),
        ({}, CNN([2, 2], 3, 1, 10, [8, 8])),
        ({"channels_last": False}, WideResNet(10, 1, 1, False, in_channels=1, num_classes=10)),
        ({"channels_last": "auto"}, torch.nn.Linear(1, 1)),
    ],
)
def test_kernels_that_cannot_run_are_not_compiled(settings, model, monkeypatch):
    monkeypatch.setattr("dpexp.training.ledger.compiled", None)
    assert "kernels" not in surroundings_of({"model": settings}, "data", model, ALONE, {})


def test_a_checkpoint_whose_state_is_of_former_code_is_refused_before_anything_counts(tmp_path):
    words = [*SHORT, "method=rgp", "model=wrn10_1", "method.rank=4"]
    directory = killed(tmp_path, *words, at=6)
    saved = checkpoint.load(directory / "checkpoint.pt")
    del saved["position"]["state"]["shapes"]
    checkpoint.save(directory / "checkpoint.pt", saved)
    before = (directory / "released.jsonl").read_bytes()
    with pytest.raises(RecordError, match="its method's state lacks shapes") as refused:
        execute(tmp_path, *words)
    assert "\n" not in str(refused.value)
    assert (directory / "released.jsonl").read_bytes() == before


def test_where_the_first_observation_was_lost_the_run_is_finished_without_it(tmp_path):
    words = [*SECRET, "analysis=noise_norm"]
    directory = killed(tmp_path, *words, at=2)
    with pytest.warns(UserWarning, match="2 steps after step 0"):
        execute(tmp_path, *words)
    assert_lost(directory, 2)
    assert not any("noise_norm" in name for name in of(directory)[1])


def test_on_a_gpu_sums_are_added_in_any_order():
    gpu = Ranks(0, 1, torch.device("cuda"))
    assert surroundings_of({"model": {}}, "data", torch.nn.Linear(1, 1), gpu, {}) is None


@pytest.mark.parametrize("own", [torch.Generator(), np.random.default_rng(0), [random.Random(0)]])
def test_draws_of_a_generator_that_the_model_holds_are_not_repeated(own):
    layer = torch.nn.Linear(1, 1)
    assert surroundings_of({"model": {}}, "data", layer, ALONE, {}) is not None
    layer.own = own
    assert surroundings_of({"model": {}}, "data", layer, ALONE, {}) is None


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


@pytest.mark.parametrize("words", [SHORT, SECRET], ids=["recorded", "secret"])
def test_without_its_ledger_a_run_does_not_go_on(words, request, tmp_path):
    there = copied(request.getfixturevalue("secret" if words is SECRET else "recorded"), tmp_path)
    (there / records.LEDGER).write_text("torn")
    with pytest.raises(PrivacyError, match="ledger is missing, damaged or of former code"):
        execute(tmp_path, *words)
    (there / records.LEDGER).unlink()
    with pytest.raises(PrivacyError, match="ledger is missing") as refused:
        execute(tmp_path, *words)
    assert "\n" not in str(refused.value)


def test_what_a_secret_run_leaves_behind_does_not_tell_its_seed(tmp_path, monkeypatch):
    known = 0x5EC2E75EC2E75EC2
    monkeypatch.setattr("secrets.randbits", lambda _: known)
    there = killed(tmp_path, *SECRET, at=10)
    content = b"".join(path.read_bytes() for path in there.iterdir())
    assert checkpoint.load(there / "checkpoint.pt")["position"]["step"] == 8
    spelled = [known.to_bytes(8, order) for order in ("little", "big")]
    assert not any(word in content for word in [*spelled, str(known).encode(), b"%x" % known])


def test_recorded_noise_is_repeated_in_the_same_surroundings(recorded, tmp_path):
    there, expected = copied(recorded, tmp_path), of(execute(tmp_path / "unbroken", *SHORT))
    execute(tmp_path, *SHORT)
    assert_same_run(of(there), expected)
    assert "lost_steps" not in expected[2]
    # So it is for a finished run whose record was damaged, and in no others.
    (there / "result.json").write_text("{")
    with pytest.warns(UserWarning, match="moved aside"):
        execute(tmp_path, *SHORT)
    assert_same_run(of(there), expected)
    (there / "privacy.json").unlink()
    said = r"all 12 steps may have been released and cannot be .*\(changed: micro_batch\)"
    with (
        pytest.warns(UserWarning, match="moved aside"),
        pytest.raises(PrivacyError, match=said) as refused,
    ):
        execute(tmp_path, *SHORT, "micro_batch=50")
    assert "\n" not in str(refused.value)


def test_recorded_noise_is_passed_over_in_other_surroundings(recorded, tmp_path):
    there = copied(recorded, tmp_path / "moved")
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


def test_a_checkpoint_of_before_the_last_start_is_not_gone_on_with_as_if_nothing_was_lost(
    recorded, tmp_path
):
    """Put back, it leads to other weights than those that the noted steps were released from."""
    there = copied(recorded, tmp_path)
    newest, older = there / "checkpoint.pt", there / "checkpoint.prev.pt"
    assert checkpoint.load(newest)["position"]["step"] == 8
    noted = (there / records.LEDGER).read_text()
    # As if it was killed after the eighth step.
    (there / records.LEDGER).write_text(noted[: noted.index("\n9\n") + 1])
    saved = newest.read_bytes()
    older.replace(newest)
    with pytest.warns(UserWarning, match=r"4 steps after step 4 .*\(changed: micro_batch\)"):
        killed(tmp_path, *SHORT, "micro_batch=50", at=11, every=100)
    newest.write_bytes(saved)
    with pytest.warns(UserWarning, match="3 steps after step 8 .*they were lost before"):
        execute(tmp_path, *SHORT, "micro_batch=50")
    assert_lost(there, 3)


def test_weights_that_start_otherwise_are_other_surroundings(recorded, tmp_path):
    """Such as pretrained ones of another folder: killed early, a run would begin from them."""
    there = copied(recorded, tmp_path)
    for path in [*there.glob("checkpoint*"), there / "metrics.jsonl"]:
        path.unlink()
    config = cli.compose([*SHORT, f"results={tmp_path}"])
    parts = cli.build_parts(config, ALONE.device)
    with torch.no_grad():
        next(parts.model.parameters()).add_(1)
    with pytest.warns(UserWarning, match=r"10 steps after step 0 .*\(changed: weights\)"):
        train(config, parts, ALONE)
    assert_lost(there, 10)


ONE, TWO = {"ranks": 1}, {"ranks": 2}
mark = partial(Mark, "data")


@pytest.mark.parametrize(
    ("mark", "checkpointed", "surroundings", "goes_on_at"),
    [
        pytest.param(mark(10, 0, 0, ONE), 8, ONE, 8, id="repeats"),
        pytest.param(mark(10, 0, 0, ONE), 8, TWO, 10, id="elsewhere"),
        pytest.param(mark(8, 0, 0, ONE), 8, TWO, 8, id="stopped right after a checkpoint"),
        pytest.param(mark(10, 0, 0, None), 8, None, 10, id="nothing can be repeated"),
        pytest.param(mark(12, 8, 10, TWO), 8, TWO, 10, id="loses the same again"),
        pytest.param(mark(12, 8, 10, TWO), 11, TWO, 11, id="repeats behind what was lost"),
        pytest.param(mark(12, 8, 10, TWO), 4, TWO, 12, id="the checkpoint at 8 is damaged"),
        pytest.param(
            mark(12, 8, 10, TWO, starts="8-10"), 10, TWO, 12, id="a checkpoint of before is back"
        ),
        pytest.param(mark(12, 8, 10, TWO, starts="8-10"), 8, TWO, 10, id="and loses the same"),
        pytest.param(mark(5, 0, 0, ONE), 8, TWO, 8, id="the ledger lags after a power cut"),
    ],
)
def test_a_run_goes_on_where_nothing_is_released_twice(
    mark, checkpointed, surroundings, goes_on_at
):
    now = mark.resumed(checkpointed, surroundings)
    assert max(checkpointed, now.begun_at) == goes_on_at
    assert now.steps >= max(mark.steps, checkpointed)


@pytest.mark.parametrize("is_durable", [False, True])
def test_a_ledger_torn_anywhere_says_what_was_noted_before(tmp_path, is_durable):
    ledger = Ledger(tmp_path, mark(7, 3, 7, ONE), is_durable)
    for steps in (8, 9, 10):
        ledger.note(steps)
    whole = (tmp_path / records.LEDGER).read_bytes()
    ledger.close()
    assert read_mark(tmp_path) == mark(10, 3, 7, ONE)
    # Notes are appended, so a kill can only cut the end off: that step had not begun.
    for length, steps in ((-1, 9), (-2, 9), (-3, 9), (-4, 8), (-7, 7)):
        (tmp_path / records.LEDGER).write_bytes(whole[:length])
        assert read_mark(tmp_path).steps == steps
    (tmp_path / records.LEDGER).write_bytes(b"{")
    assert read_mark(tmp_path) is None


LINES = [b"", b"1O", b"\x00\x00", b"-1", b"\xc2\xb2", b"9" * 5000, b"{}", b"[9]", b'[9, "01"]']


@pytest.mark.parametrize("line", LINES)
def test_a_ledger_with_a_line_that_is_no_number_gives_no_step_back(tmp_path, line):
    """The line may have been the one that counted furthest."""
    ledger = Ledger(tmp_path, mark(7, 3, 7, ONE), is_durable=False)
    ledger.note(8)
    ledger.close()
    with (tmp_path / records.LEDGER).open("ab") as file:
        file.write(line + b"\n")
    assert read_mark(tmp_path) is None


@pytest.mark.filterwarnings("ignore:eps=8 has no effect")
def test_a_run_without_noise_keeps_no_ledger(tmp_path):
    directory = execute(tmp_path, *SHORT, "noise=false")
    assert (directory / "result.json").exists() and not (directory / records.LEDGER).exists()


def test_a_run_that_went_on_after_a_loss_goes_on_from_its_next_checkpoints(recorded, tmp_path):
    """They hold the start, or each interruption would cost the steps since them anew."""
    there = copied(recorded, tmp_path)
    with pytest.warns(UserWarning, match=r"2 steps after step 8 .*\(changed: micro_batch\)"):
        killed(tmp_path, *SHORT, "micro_batch=50", at=12, every=1)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*may have been released")
        execute(tmp_path, *SHORT, "micro_batch=50")
    assert_lost(there, 2)
