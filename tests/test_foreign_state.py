"""What another run left in a run's folder is never gone on with: checkpoint, ledger, metrics."""

import json
import shutil

import pytest
import torch

from dpexp import cli, records
from dpexp.privacy import PrivacyError
from dpexp.records import LEDGER, Ledger, Mark, RecordError, read_mark
from dpexp.training import checkpoint
from tests.runs import (
    SHORT,
    assert_same_run,
    execute,
    killed,
    of,
    one_thread,  # noqa: F401 (a fixture)
)

ABSURD, CLAIMED = [*SHORT, "eps=1000"], [*SHORT, "eps=0.5"]


@pytest.fixture
def two(tmp_path):
    """Return the folders of two killed runs: one of no privacy to speak of, one of eps = 0.5."""
    return killed(tmp_path, *ABSURD, at=6), killed(tmp_path, *CLAIMED, at=6)


def goes_on(tmp_path, words=CLAIMED):
    return of(execute(tmp_path, *words))


def saved(path, change):
    """Save a changed checkpoint, whole, as whoever forges one would."""
    state = checkpoint.load(path)
    change(state)
    checkpoint.save(path, state)


def test_a_checkpoint_of_another_budget_is_refused_in_one_line(two, tmp_path):
    foreign, own = two
    shutil.copy(foreign / "checkpoint.pt", own / "checkpoint.pt")
    with pytest.raises(RecordError, match=f"its run is {foreign.name}, this run's is") as caught:
        goes_on(tmp_path)
    assert "\n" not in str(caught.value) and not (own / "result.json").exists()


def test_all_of_another_run_but_its_config_is_refused(two, tmp_path):
    foreign, own = two
    for path in foreign.iterdir():
        if path.name != "config.yaml":
            shutil.copy(path, own / path.name)
    with pytest.raises(RecordError, match="its run is"):
        goes_on(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("sampling", "shuffle"), ("dataset_size", 9999), ("batch_size", 100), ("steps", 99)),
        *(("noise_multiplier", 0.01), ("releases", []), ("seed", 5), ("target epsilon", 1000.0)),
        *(("delta", 0.1), ("noise", False), ("clip", False)),
    ],
)
def test_a_checkpoint_of_another_mechanism_is_refused_by_what_differs(key, value, tmp_path):
    of_run = {"run": "abc", **mechanism().identity()}
    assert key in of_run
    checkpoint.require(tmp_path, {"of": dict(of_run)}, of_run)
    with pytest.raises(RecordError, match=f"its {key} is"):
        checkpoint.require(tmp_path, {"of": of_run | {key: value}}, of_run)
    lacking = {k: v for k, v in of_run.items() if k != key}
    with pytest.raises(RecordError, match=f"its {key} is None"):
        checkpoint.require(tmp_path, {"of": lacking}, of_run)


def mechanism():
    config = cli.compose([*CLAIMED])
    from dpexp.privacy import build
    from dpexp.types import Release

    one = (Release("gradient", 640, 1.0),)
    sizes = {"dataset_size": 1437, "batch_size": 360, "num_steps": 12}
    return build(config["privacy"], releases=one, seed=0, **sizes)


def test_a_checkpoint_that_does_not_say_whose_it_is_is_refused(two, tmp_path):
    _, own = two
    saved(own / "checkpoint.pt", lambda state: state.pop("of"))
    with pytest.raises(RecordError, match="of former code"):
        goes_on(tmp_path)


def test_a_ledger_of_another_run_is_refused(two, tmp_path):
    foreign, own = two
    shutil.copy(foreign / LEDGER, own / LEDGER)
    with pytest.raises(PrivacyError, match=f"it is of run {foreign.name}") as caught:
        goes_on(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_ledger_that_does_not_say_whose_it_is_is_refused(two, tmp_path):
    _, own = two
    head, *rest = (own / LEDGER).read_text().split("\n")
    plain = {key: value for key, value in json.loads(head).items() if key != "run"}
    (own / LEDGER).write_text("\n".join([json.dumps(plain), *rest]))
    with pytest.raises(PrivacyError, match="of former code"):
        goes_on(tmp_path)


def test_a_ledger_keeps_its_run_whatever_it_notes(tmp_path):
    ledger = Ledger(tmp_path, Mark("data", 3, surroundings={"a": 1}, run="abc"), is_durable=False)
    ledger.note(4)
    ledger.rule_out_repeating(5)
    ledger.close()
    assert read_mark(tmp_path).run == "abc"
    assert read_mark(tmp_path).resumed(2, {"a": 2}).run == "abc"


def test_metrics_are_the_checkpoints_own_whatever_the_file_says(two, tmp_path):
    _, own = two
    expected = goes_on(tmp_path / "unbroken")
    lines = [json.loads(line) for line in (own / "metrics.jsonl").read_text().splitlines()]
    assert lines
    lines = [line | {"test_accuracy": 99.9} for line in lines]
    (own / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert_same_run(goes_on(tmp_path), expected)


def test_a_run_killed_after_its_last_evaluation_still_says_what_was_right(tmp_path):
    """Predictions are the checkpoint's then: nothing is evaluated again."""
    expected = goes_on(tmp_path / "unbroken")
    killed(tmp_path, *CLAIMED, at=12, every=1)
    got = goes_on(tmp_path)
    assert_same_run(got, expected)
    assert "predictions.npz" in got[1]["files"]


def test_saved_answers_of_another_pate_are_refused(tmp_path):
    words = ["method=pate", "task=digits", "profile=embedded", "device=cpu", "model=cnn"]
    words += ["method.teachers=8", "method.teacher_steps=2", "method.queries=50", "eps=3"]
    config = cli.compose([*words, f"results={tmp_path}"])
    unfinished = records.Run.open(tmp_path, config)
    state = {"of": {"run": "another"}, "data": "x", "votes": torch.zeros(1), "answers": {}}
    checkpoint.save(unfinished.checkpoint_path, state)
    with pytest.raises(RecordError, match="its run is another"):
        execute(tmp_path, *words)
