"""The dashboard gets what metrics.jsonl gets, and the bar says what a person wants to know."""

import io
import subprocess
import sys
from pathlib import Path

import pytest

from dpexp.tracking import Progress, Tracker
from dpexp.types import ConfigError

LINE = {"step": 10, "epoch": 1.0, "epsilon": 3.2, "train_loss": 0.5, "test_accuracy": 91.25}


def config(**wandb):
    return {
        "wandb": {"mode": "disabled", "project": "dpexp", **wandb},
        "method": {"name": "rgp"},
        "task": {"name": "digits"},
    }


def test_a_disabled_dashboard_is_never_imported(tmp_path):
    code = (
        "import sys; from dpexp.tracking import Tracker\n"
        f"with Tracker({config()!r}, {str(tmp_path)!r}) as tracker: tracker.log({LINE!r})\n"
        "assert 'wandb' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])
    assert not list(tmp_path.iterdir())


def test_an_unknown_mode_is_the_users_error(tmp_path):
    with pytest.raises(ConfigError, match="disabled, offline, online; got ofline"):
        Tracker(config(mode="ofline"), tmp_path)


def test_an_offline_dashboard_keeps_the_same_metrics_in_the_runs_folder(tmp_path):
    directory = tmp_path / "0123456789ab"
    directory.mkdir()
    settings = config(mode="offline", group="rgp-table3", paper="rgp")
    with Tracker(settings, directory) as tracker:
        tracker.log(LINE | {"clip_fraction": None})
    (kept,) = directory.glob("wandb/offline-run-*/*.wandb")
    content = kept.read_bytes()
    for word in (b"0123456789ab", b"rgp-table3", b"digits", b"test_accuracy", b"91.25", b"3.2"):
        assert word in content


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_off_a_terminal_an_evaluation_is_one_line():
    stream = io.StringIO()
    with Progress(20, label="rgp digits", stream=stream) as progress:
        for _ in range(10):
            progress.advance(64)
        progress.report(LINE | {"nonfinite": 0, "clip_fraction": None})
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("rgp digits step 10/20 examples/s=")
    assert "epsilon=3.2 train_loss=0.5 test_accuracy=91.25 left=" in line
    assert "nonfinite" not in line


def test_on_a_terminal_a_bar_tells_speed_epsilon_and_time_left():
    stream = Terminal()
    with Progress(20, label="rgp digits", stream=stream) as progress:
        progress._bar.mininterval = 0
        progress.report(LINE)
        for _ in range(10):
            progress.advance(64)
        progress._bar.refresh()
    last = stream.getvalue().split("\r")
    assert any("10/20" in text and "epsilon=3.2" in text and "<" in text for text in last)


def test_a_resumed_run_counts_its_speed_from_where_it_went_on():
    stream = io.StringIO()
    progress = Progress(20, stream=stream)
    progress.start_from(15)
    progress.advance(64)
    progress.report(LINE)
    assert "step 16/20" in stream.getvalue()
    assert progress.examples_per_s > 0 and progress.seconds_left < 60
    progress.close()
