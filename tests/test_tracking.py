"""Dashboards and spreadsheets get what metrics.jsonl gets, and curves between."""

import csv
import json
import os
import signal
import struct
import sys
import time
from pathlib import Path

import pytest

from dpexp import cli, records
from dpexp.cli import all as suite
from dpexp.cli import artifact
from dpexp.cli.lookup import done_before
from dpexp.training import tracking
from dpexp.training.tracking import Tracker, job_type
from dpexp.types import ConfigError
from tests.marks import long
from tests.runs import (
    ALONE,
    SHORT,
    assert_same_run,
    execute,
    interrupted,
    of,
    one_thread,  # noqa: F401 (a fixture)
)

LINE = {"step": 10, "epoch": 1.0, "epsilon": 3.2, "train_loss": 0.5, "test_accuracy": 91.25}


HERE = ["profile=embedded", "device=cpu"]
PATE = ["method=pate", "method.teachers=20", "method.teacher_steps=10", "method.answers=60"]
PATE += ["method.student_steps=20"]
RESULT = {
    "method": "rgp",
    "task": "digits",
    "metric": "test_accuracy",
    "test_accuracy": 92.5,
    "eps": 8.0,
    "seed": 3,
    "steps": 20,
    "device": "cpu",
    "versions": {"torch": "2"},
}
CERTIFICATE = {"epsilon": {"prv": 7.9}, "data_dependent_epsilon": {"rdp": 1.2}}


def config(**wandb):
    return {
        "wandb": {"mode": "disabled", "project": "dpexp", **wandb},
        "profile": {"name": "embedded"},
        "method": {"name": "rgp"},
        "model": {"name": "cnn"},
        "task": {"name": "digits"},
        "analysis": {},
        "privacy": {"eps": 8.0},
        "seed": 3,
    }


def kept_records(directory):
    """Read the records of wandb's own file: LevelDB's log behind a header of seven bytes."""
    from wandb.proto import wandb_internal_pb2 as wire

    (path,) = directory.rglob("*.wandb")
    content, at, block, part = path.read_bytes(), 7, 32768, b""
    assert content[:4] == b":W&B"
    records = []
    while at + 7 <= len(content):
        if block - at % block < 7:  # too little for a record's head: the block is padded
            at += block - at % block
            continue
        _, size, kind = struct.unpack("<IHB", content[at : at + 7])
        part += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last of its parts
            records.append(wire.Record.FromString(part))
            part = b""
    return records


def by_key(items):
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def test_a_disabled_dashboard_is_never_imported(tmp_path, programs):
    code = (
        "import sys; from dpexp.training.tracking import Tracker\n"
        f"with Tracker({config()!r}, {str(tmp_path)!r}) as tracker: tracker.log({LINE!r})\n"
        "assert 'wandb' not in sys.modules"
    )
    done = programs.run(["-c", code])
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())


def test_an_unknown_mode_is_the_users_error(tmp_path):
    with pytest.raises(ConfigError, match="disabled, offline, online; got wandb.mode=ofline"):
        Tracker(config(mode="ofline"), tmp_path)


def tracked(directory, lines, result=None, **wandb):
    with Tracker(config(mode="offline", **wandb), directory) as tracker:
        for line in lines:
            tracker.log(line)
        if result:
            tracker.conclude(result, CERTIFICATE)
    return finished(directory)


def finished(directory):
    deadline = time.monotonic() + 60  # wandb's own process writes the file, and is not waited for
    records = []
    while not any(record.HasField("exit") for record in records):
        assert time.monotonic() < deadline, "wandb has not finished its file"
        time.sleep(0.05)
        records = kept_records(directory)
    return records


@pytest.mark.long
def test_an_offline_dashboard_can_be_read_back(tmp_path):
    directory = tmp_path / "0123456789ab"
    directory.mkdir()
    lines = [LINE | {"clip_fraction": None}, LINE | {"step": 20, "test_accuracy": 92.5}]
    records = tracked(directory, lines, RESULT, group="table3", paper="rgp")

    (run,) = [r.run for r in records if r.HasField("run")][:1]
    assert run.run_id == "0123456789ab"
    assert run.project == "dpexp"
    assert run.run_group == "rgp/table3"
    assert run.job_type == "train"
    assert run.display_name == "rgp cnn digits eps=8 seed=3"
    assert sorted(run.tags) == ["cnn", "digits", "embedded", "rgp"]  # a paper and a method, once
    assert by_key(run.config.update)["method"] == {"name": "rgp"}

    history = [by_key(r.history.item) for r in records if r.HasField("history")]
    assert [row["_step"] for row in history] == [10, 20]
    assert history[0]["test_accuracy"] == 91.25 and "clip_fraction" not in history[0]
    assert history[1]["epsilon"] == 3.2
    assert (history[1]["eps"], history[1]["score/digits"]) == (8.0, 92.5)

    summary = {}
    for record in records:
        if record.HasField("summary"):
            summary |= by_key(record.summary.update)
    assert summary["score"] == summary["score/digits"] == 92.5
    assert {key: summary[key] for key in ("method", "task", "eps", "seed", "device")} == {
        "method": "rgp",
        "task": "digits",
        "eps": 8.0,
        "seed": 3,
        "device": "cpu",
    }
    assert "versions" not in summary

    (artifact,) = [r.artifact for r in records if r.HasField("artifact")]
    assert (artifact.type, artifact.name) == ("certificate", "certificate-0123456789ab")
    (entry,) = artifact.manifest.contents
    assert Path(entry.local_path).is_relative_to(directory)
    sent = json.loads(Path(entry.local_path).read_text())
    assert sent == {"epsilon": {"prv": 7.9}}  # what depends on the data stays at home

    axes = {r.metric.glob_name: r.metric.step_metric for r in records if r.HasField("metric")}
    assert axes["*"] == "step" and axes["score/*"] == "eps"


@pytest.mark.parametrize("words", [["method=dpsgd", "model=linear", "epochs=0.5"], long(PATE)])
def test_a_run_sends_what_came_out(tmp_path, words):
    directory = execute(tmp_path, *words, "task=digits", "eps=8", "wandb.mode=offline", *HERE)
    result = json.loads((directory / "result.json").read_text())
    history = [by_key(r.history.item) for r in finished(directory) if r.HasField("history")]
    assert history[-1]["score/digits"] == result["test_accuracy"]
    assert (history[-1]["eps"], history[-1]["_step"]) == (8, result["steps"])


def test_without_a_target_there_is_a_score_but_no_point_over_epsilon(tmp_path):
    result = RESULT | {"eps": None}
    records = tracked(tmp_path, [LINE], result)
    history = [by_key(r.history.item) for r in records if r.HasField("history")]
    assert not any("eps" in row or "score/digits" in row for row in history)
    assert any(
        by_key(r.summary.update).get("score") == 92.5 for r in records if r.HasField("summary")
    )
    assert not [r.run.run_group for r in records if r.HasField("run") and r.run.run_group]


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({}, "train"),
        ({"analysis": {"cost": {}}}, "analysis"),
        ({"analysis": {"cost": {}}, "attack": {"name": "shadow"}}, "attack"),
        ({"audit": {"name": "one_run"}}, "audit"),
    ],
)
def test_a_job_type_says_what_a_run_is_for(more, kind):
    assert job_type(config() | more) == kind


# A dashboard that fails


def services():
    """List the processes of wandb that this one has started."""
    mine = Path("/proc/self/task").glob("*/children")
    pids = [int(pid) for path in mine for pid in path.read_text().split()]
    return [pid for pid in pids if b"wandb-core" in Path(f"/proc/{pid}/cmdline").read_bytes()]


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux")


@needs_proc
@pytest.mark.parametrize("word", ["noise=false", "clip=false"])
def test_a_run_without_an_epsilon_is_not_named_by_one(word):
    words = ["method=dpsgd", "task=digits", "eps=8", *HERE]
    assert " eps=8 " in tracking.run_name(cli.compose(words))
    assert "eps" not in tracking.run_name(cli.compose([*words, word]))


def test_a_run_goes_on_when_the_dashboards_process_dies(tmp_path):
    """And so do the process's next one, which has a dashboard again, and the process's end."""
    without = of(execute(tmp_path / "without", *SHORT))
    config = cli.compose([*SHORT, f"results={tmp_path}", "wandb.mode=offline"])
    with pytest.warns(UserWarning, match=r"^wandb failed: .*The run goes on") as said:
        interrupted(
            config,
            cli.build_parts(config, ALONE.device),
            5,
            lambda: [os.kill(pid, signal.SIGKILL) for pid in services()],
        )
    assert sum("wandb" in str(one.message) for one in said) == 1
    assert_same_run(of(records.locate(tmp_path, config)), without)
    (tmp_path / "next").mkdir()
    assert any(r.HasField("history") for r in tracked(tmp_path / "next", [LINE]))


@needs_proc
def test_a_dashboard_that_does_not_answer_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "FINISH", 0.5)
    with pytest.warns(UserWarning, match="wandb failed: no answer within 0.5 seconds"):
        with Tracker(config(mode="offline"), tmp_path):
            for pid in services():
                os.kill(pid, signal.SIGSTOP)
            began = time.monotonic()
    assert time.monotonic() - began < 20
    assert services() == []  # or it would be waited for as this process ends


def test_a_dashboard_that_cannot_start_is_warned_of_in_one_line(tmp_path, monkeypatch):
    pytest.importorskip("wandb").teardown()  # it reads its environment as it starts
    monkeypatch.setenv("WANDB_MODE", "bogus")  # which wandb reads though it is told another
    with pytest.warns(UserWarning, match="wandb failed: ") as said:
        with Tracker(config(mode="offline"), tmp_path) as tracker:
            tracker.log(LINE)
            tracker.conclude(RESULT, CERTIFICATE)
    (one,) = said
    assert "\n" not in str(one.message)


def test_a_dashboard_without_its_library_is_warned_of(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.warns(UserWarning, match="wandb failed: import of wandb halted"):
        Tracker(config(mode="online"), tmp_path).log(LINE)


# Other places


CURVES = ["steps/train_loss", "steps/clip_fraction", "steps/learning_rate", "steps/epsilon"]


def test_several_places_get_a_run_at_once(tmp_path, caplog):
    """The run's id and record are those of a run that is sent nowhere."""
    words = [*SHORT, "eps=8", "schedule=linear_decay"]
    without = execute(tmp_path / "without", *words)
    more = ["tracking=[wandb,csv]", "wandb.mode=offline"]
    with caplog.at_level("INFO", "dpexp"):
        directory = execute(tmp_path / "with", *words, *more)
    assert directory.name == without.name
    assert_same_run(of(directory), of(without))

    history = [by_key(r.history.item) for r in finished(directory) if r.HasField("history")]
    points = {row["_step"]: row for row in history if CURVES[0] in row}
    assert sorted(points) == list(range(1, 13))
    rates = [points[step]["steps/learning_rate"] for step in sorted(points)]
    assert rates == sorted(rates, reverse=True) and rates[0] > rates[-1] > 0
    spent = [points[step]["steps/epsilon"] for step in sorted(points)]
    assert spent == sorted(spent) and 0 < spent[0] < spent[-1] <= 8
    assert all(0 <= points[step]["steps/clip_fraction"] <= 1 for step in points)
    means = [points[step]["steps/train_loss"] for step in (1, 2)]
    assert min(means) <= history_at(history, 2)["train_loss"] <= max(means)

    (sync,) = [line for line in caplog.messages if "wandb sync" in line]
    folder = Path(sync.split("`")[1].removeprefix("wandb sync "))
    assert list(folder.glob("*.wandb"))

    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    with (directory / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [{k: v for k, v in row.items() if v} for row in rows] == [
        {key: str(value) for key, value in line.items() if value is not None} for line in lines
    ]


def history_at(history, step):
    return {key: value for row in history if row["_step"] == step for key, value in row.items()}


def test_a_resumed_runs_spreadsheet_has_every_line_once(tmp_path):
    words = [*SHORT, f"results={tmp_path}", "tracking=csv", "checkpoint.steps=4"]
    config = cli.compose(words)

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted(config, cli.build_parts(config, ALONE.device), 5, stop)
    directory = cli.execute(config)
    with (directory / "metrics.csv").open(newline="") as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == [2, 4, 6, 8, 10, 12]


def test_a_spreadsheet_that_cannot_be_written_stops_nothing(tmp_path):
    (tmp_path / "metrics.csv").mkdir()
    with pytest.warns(UserWarning, match="^csv failed: .*The run goes on without it"):
        with Tracker(config() | {"tracking": {"csv": True}}, tmp_path) as tracker:
            tracker.log(LINE)


def test_an_unknown_place_is_refused_with_the_nearest_known_one():
    with pytest.raises(
        ConfigError, match="tracking to be one of tensorboard, csv; got tracking=cvs"
    ):
        cli.compose([*SHORT, "+tracking.cvs=true"])


def test_tensorboard_is_asked_for_where_it_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"tracking=tensorboard; it is not installed. pip inst"):
        Tracker(config() | {"tracking": {"tensorboard": True}}, tmp_path)


def test_tensorboard_reads_a_runs_numbers(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    directory = execute(tmp_path, *SHORT, "tracking=tensorboard", "eps=8")
    events = EventAccumulator(str(directory / "tensorboard"))
    events.Reload()
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    drawn = {event.step: event.value for event in events.Scalars("test_accuracy")}
    assert drawn == pytest.approx({line["step"]: line["test_accuracy"] for line in lines})
    assert [event.step for event in events.Scalars("steps/epsilon")] == list(range(1, 13))
    assert "certificate/text_summary" in events.Tags()["tensors"]


def test_the_dashboard_is_on_line_unless_it_is_told_otherwise(monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    assert cli.compose([*SHORT, "tracking=wandb"])["wandb"]["mode"] == "online"
    assert cli.compose([*SHORT, "tracking=wandb", "wandb.mode=offline"])["wandb"]["mode"] == (
        "offline"
    )
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert cli.compose([*SHORT, "tracking=wandb"])["wandb"]["mode"] == "offline"


@pytest.mark.parametrize(
    "words", [["tracking=csv"], ["tracking=[csv,wandb]"], ["tracking=[]"], ["wandb.mode=offline"]]
)
def test_where_a_run_is_sent_is_no_part_of_its_id(words):
    ids = {records.run_id(cli.compose([*SHORT, *more])) for more in ([], words)}
    assert len(ids) == 1


@pytest.mark.long
def test_a_finished_table_is_sent_too_also_by_the_whole_suite(tmp_path, capsys):
    words = ["seeds=0", "epochs=0.2", "wandb.mode=offline", f"results={tmp_path}"]
    assert artifact.main(["table3", "rows=svhn-dpsgd", "columns=eps2", *words]) == 0
    names = ["table3.csv", "table3.md", "table3.tex"]
    assert sent_by(capsys) == ("table", "rgp-table3-embedded", names)
    assert suite.main(["only=rgp/table3", "run=false", *words]) == 0
    assert sent_by(capsys) == ("table", "rgp-table3-embedded", names)


def sent_by(capsys):
    """Return type, name and files of the one artifact that a command sent."""
    (sync,) = [line for line in capsys.readouterr().err.splitlines() if "wandb sync" in line]
    folder = Path(sync.split("`")[1].removeprefix("wandb sync "))
    (sent,) = [record.artifact for record in finished(folder) if record.HasField("artifact")]
    return sent.type, sent.name, sorted(entry.path for entry in sent.manifest.contents)


def test_a_look_up_says_that_it_tracks_nothing(tmp_path):
    words = ["method=dpsgd", "model=linear", *SHORT, f"results={tmp_path}"]
    directory = execute(tmp_path, *words)
    told = done_before(cli.compose([*words, "tracking=[csv,wandb]", "wandb.mode=offline"]))
    assert "results=FOLDER runs it anew, and tracks it by csv and wandb, which this" in told
    assert "tracks" not in done_before(cli.compose(words))
    (directory / "metrics.csv").touch()  # as a run with tracking=csv leaves
    assert "tracks" not in done_before(cli.compose([*words, "tracking=csv"]))
