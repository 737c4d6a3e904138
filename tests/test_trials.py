"""A setting that is tried goes on where it was interrupted, to the same score, leaving nothing."""

import os
from dataclasses import replace

import pytest

from dpexp import cli, records
from dpexp.cli import search, trials
from dpexp.types import ConfigError
from tests.marks import few
from tests.runs import one_thread  # noqa: F401

SHORT = ["profile=embedded", "method=dpsgd", "task=digits", "model=linear", "epochs=2"]
SHORT += ["batch_size=360", "device=cpu", "checkpoint.seconds=null"]


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setenv("DPEXP_CACHE", str(tmp_path))
    return tmp_path / "trials"


def interrupted(words, at, error=KeyboardInterrupt):
    """Try a setting until its method has been asked for gradients `at` times."""
    config, parts = search.prepared(cli.compose(words))
    given = []
    compute = parts.method.per_example_grads

    def failing(*args):
        given.append(1)
        if len(given) > at:
            raise error
        return compute(*args)

    parts.method.per_example_grads = failing
    with pytest.raises(error):
        search.score(config, parts)


def gradients_of(words):
    """Try a setting; return its score, and how often its method was asked for gradients."""
    config, parts = search.prepared(cli.compose(words))
    given = []
    compute = parts.method.per_example_grads

    def counted(*args):
        given.append(1)
        return compute(*args)

    parts.method.per_example_grads = counted
    return search.score(config, parts), len(given)


def test_one_that_was_interrupted_goes_on_to_the_same_score(kept):
    score, whole = gradients_of(SHORT)
    assert not [*kept.glob("*/*/runs/*")]
    interrupted(SHORT, 5)
    assert len([*kept.glob("*/*/runs/*/checkpoint.pt")]) == 1
    assert gradients_of(SHORT) == (score, whole - 5)
    assert not [*kept.glob("*/*/runs/*")] and not [*kept.glob("*/*/locks/*")]


def test_another_setting_or_model_on_all_examples_does_not_go_on_from_it(kept):
    score, whole = gradients_of([*SHORT, "seed=1"])
    interrupted(SHORT, 5)
    assert gradients_of([*SHORT, "seed=1"]) == (score, whole)
    assert len([*kept.glob("*/*/runs/*")]) == 1


def test_one_on_other_held_out_examples_does_not_go_on_from_it(kept, monkeypatch):
    interrupted(SHORT, 5)
    monkeypatch.setattr(search, "SEED", search.SEED + 1)
    _, gradients = gradients_of(SHORT)
    assert gradients == 8
    assert len([*kept.glob("*/*/runs/*")]) == 1


HARMS = ["of another run", "no checkpoint", "torn"]


@pytest.mark.filterwarnings("ignore:.* is damaged, or was killed before")
@pytest.mark.parametrize("harm", few(HARMS, HARMS[::2]))
def test_one_that_cannot_go_on_begins_anew(harm, kept):
    score, whole = gradients_of(SHORT)
    interrupted(SHORT, 5)
    (checkpoint,) = kept.glob("*/*/runs/*/checkpoint.pt")
    if harm == "of another run":
        interrupted([*SHORT, "seed=1"], 5)
        (other,) = {*kept.glob("*/*/runs/*/checkpoint.pt")} - {checkpoint}
        checkpoint.write_bytes(other.read_bytes())
    elif harm == "torn":
        checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
    else:
        checkpoint.unlink()
    again, gradients = gradients_of(SHORT)
    assert again == score
    assert gradients == (
        0 if harm == "of another run" else whole
    )  # or a method built anew gave them


def test_steps_that_a_killed_process_may_have_released_are_taken_again(kept, monkeypatch):
    build = search.build_parts
    words = [*SHORT, "noise=secret", "checkpoint.steps=3"]
    pid = os.fork()
    if not pid:
        try:
            config, parts = search.prepared(cli.compose(words))
            compute, given = parts.method.per_example_grads, []

            def killed(*args):
                given.append(1)
                if len(given) > 5:
                    os.kill(os.getpid(), 9)
                return compute(*args)

            parts.method.per_example_grads = killed
            search.score(config, parts)
        finally:
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == 9
    assert [*kept.glob("*/*/runs/*/checkpoint.pt")]
    built = []
    monkeypatch.setattr(search, "build_parts", lambda *args: built.append(1) or build(*args))
    first = search.score(*search.prepared(cli.compose(words)))
    assert len(built) == 2  # the first goes on, and has too few steps
    assert 50 < first <= 100


def test_a_mistake_is_told_and_not_tried_twice(kept):
    config, parts = search.prepared(cli.compose(SHORT))
    asked = []

    def make(weights):
        asked.append(1)
        raise ConfigError("no")

    with pytest.raises(ConfigError, match="no"):
        search.score(config, replace(parts, make_optimizer=make))
    assert len(asked) == 1


def test_where_another_process_tries_the_same_or_nothing_can_be_written_it_is_tried(
    kept, monkeypatch, tmp_path
):
    score, whole = gradients_of(SHORT)
    config, _ = search.prepared(cli.compose(SHORT))
    with records.held(kept / f"held-out-{search.SHARE}-{search.SEED}", config):
        assert gradients_of(SHORT) == (score, whole)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DPEXP_CACHE", str(tmp_path / "file"))
    assert gradients_of(SHORT) == (score, whole)


def test_what_nobody_went_on_with_is_deleted_in_the_end(kept):
    interrupted(SHORT, 5)
    (run,) = kept.glob("*/*/runs/*")
    long_ago = run.stat().st_mtime - trials.LONGEST - 60
    gradients_of([*SHORT, "seed=1"])
    assert run.exists()
    for path in (*run.iterdir(), run):
        os.utime(path, (long_ago, long_ago))
    gradients_of([*SHORT, "seed=1"])
    assert not run.exists()
