"""Trials and shadows side by side: what ends is taken, what is refused or dies is told."""

import errno
import pickle
import re

import pytest

from dpexp.cli import audit, errors, many, search, tune
from dpexp.cli.execution import execute
from dpexp.distributed import pool
from dpexp.distributed.pool import Died
from dpexp.training.overview import Overview
from dpexp.types import ConfigError
from tests.reporting.test_tuned import conf, known  # noqa: F401
from tests.runs import one_process  # noqa: F401
from tests.tasks import graded, work


def test_every_end_reaches_who_asked_and_what_is_not_wanted_any_more_is_left(capfd):
    tasks = {key: key for key in ("refused", "odd", "dies", "left", "says", "fine")}
    ends = {}
    errors.show_warning("said before it")

    def take(key, ended, say):
        ends[key] = ended
        say(f"took {key}")

    many.each(work, tasks, 2, take, lambda key: key != "left")
    assert {*ends} == {*tasks} - {"left"}
    assert all(ends[key] == (f"{key} done", None) for key in ("says", "fine"))
    refused, odd, died = (ends[key].error for key in ("refused", "odd", "dies"))
    assert type(refused) is ConfigError and str(refused) == "Expected epochs > 0; got -1."
    assert type(odd) is RuntimeError and str(odd) == "Odd: only half"
    assert all("in work" in each.__notes__[0] for each in (refused, odd))  # where it was raised
    assert type(died) is Died and "code -9" in errors.mistake(died)  # one line for the user
    assert str(many.named("lr=1", died)).startswith("lr=1: the process died")
    assert many.named("lr=1", refused) is refused
    printed = capfd.readouterr()
    assert sorted(printed.out.splitlines()) == sorted(f"took {key}" for key in ends)
    assert printed.err == "warning: said before it\nits examples are few\n"


def test_a_process_too_many_for_the_system_leaves_none(monkeypatch):
    begun, real = [], pool.Worker

    def limited(*arguments):
        if begun:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        begun.append(real(*arguments))
        return begun[0]

    monkeypatch.setattr(pool, "Worker", limited)
    with pytest.raises(OSError, match="unavailable"), pool.Pool(work, Overview(2), 2, 1):
        pass
    assert not begun[0]._process.is_alive()


def test_programs_send_what_another_process_can_import():
    for do in (search._line, tune.attempt_of_accuracy, execute, audit.audit):
        assert pickle.loads(pickle.dumps(do)) is do


def test_points_that_are_tried_side_by_side_are_kept_as_one_after_another(conf, capsys):  # noqa: F811
    words = ["table1", "paper=made", "rows=private", "seeds=0,1"]
    (path,) = (conf / "tuned" / "embedded" / "made" / name for name in ("table1.yaml",))
    texts, said = [], []
    for workers in ("workers=1", "workers=2"):
        assert tune.main([*words, workers], graded) == 0
        texts.append(path.read_text())
        printed = capsys.readouterr()
        said.append(sorted(printed.out.splitlines()))
        assert printed.err.count("no data: digits is not here") == 1
        path.unlink()
    assert texts[0] == texts[1] and said[0] == said[1]
    assert len(re.findall(r"optimizer\.lr", texts[0])) == 4


def test_scores_that_another_process_finds_meanwhile_are_not_found_again(conf):  # noqa: F811
    tried = []

    def attempt(words):
        if not tried:
            tried.append(words)
            assert tune.main(["table1", "paper=made", "rows=private"], lambda words: 71.0) == 0
        tried.append(words)
        return 70.0

    assert tune.main(["table1", "paper=made", "rows=private"], attempt) == 0
    assert len(tried) == 2
    scores = [each.scores for each in known(conf).values()]
    assert [*scores[0].values()] == [70.0, 71.0, 71.0, 71.0] and {*scores[1].values()} == {71.0}


@pytest.mark.long
def test_a_search_says_what_it_has_found_before_an_earlier_run_has_ended(capfd):
    """An error or Ctrl-C ends all runs, and a score that was not said was lost."""
    words = ["method=dpsgd", "task=digits", "model=linear", "device=cpu", "batch_size=1437"]
    assert search.main([*words, "epochs=400,1", "workers=2"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert ["epochs=1 " in line for line in lines] == [True, False]


@pytest.mark.parametrize("workers", [1, 2])
def test_of_several_tasks_one_that_fails_is_told_of_and_the_others_are_done(workers, capfd):
    """A process that died, late in a long search, ended it; so did an error of one setting."""
    tasks = {key: key for key in ("odd", "dies", "fine", "says")[: None if workers > 1 else 1]}
    tasks["last"] = "last"
    done = []

    def take(key, ended, say):
        if ended.error is not None:
            raise many.named(f"lr={key}", ended.error)
        done.append(ended.value)

    with pytest.raises(Exception, match=r"only half|died") as raised:
        many.each(work, tasks, workers, take)
    lines = capfd.readouterr().err
    assert sorted(done) == sorted(f"{key} done" for key in tasks if key not in ("odd", "dies"))
    assert "failed: " in lines and "only half In lr=odd." in lines
    if workers == 2:
        assert "failed: lr=dies: the process died" in lines
        assert raised.value.__notes__[-1] == "1 more failed, as said above."


def test_a_mistake_ends_all_tasks():
    done = []

    def take(key, ended, say):
        if ended.error is not None:
            raise many.named(key, ended.error)
        done.append(key)

    with pytest.raises(ConfigError, match="epochs > 0"):
        many.each(work, {key: key for key in ("fine", "refused", "says")}, 1, take)
    assert done == ["fine"]


def test_an_error_in_taking_what_a_task_gave_ends_all_as_it_is():
    """Such as a full disk; it ended in an AttributeError, as no task had been named."""
    taken = []

    def take(key, ended, say):
        taken.append(key)
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        many.each(work, {"fine": "fine", "last": "last"}, 1, take)
    assert taken == ["fine"]
