"""A run is done by one process at a time, and a dead one's lock binds nobody."""

import os
import resource
import signal
import subprocess
from pathlib import Path

import pytest

from dpexp import records

CONFIG = {"profile": {"name": "embedded"}, "seed": 0}
HOLD = """
import sys, time
from dpexp import records
with records.held(sys.argv[1], {"profile": {"name": "embedded"}, "seed": 0}):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path, programs):
    process = programs.start(["-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_a_run_under_way_elsewhere_is_refused_with_its_holder_named(tmp_path, holder):
    with pytest.raises(records.Busy, match=f"by process {holder.pid} on .+ since 2"):
        with records.held(tmp_path, CONFIG):
            pytest.fail("held twice")


def test_a_folder_that_cannot_be_made_is_said_and_not_tried_for_ever(tmp_path):
    if not Path("/proc/self").exists():
        pytest.skip("needs /proc, where making a folder says that there is none")
    with pytest.raises(records.RecordError, match="Cannot make /proc/nowhere.*No such file"):
        with records.held("/proc/nowhere", CONFIG):
            pytest.fail("held")


def test_another_run_is_free_meanwhile(tmp_path, holder):
    with records.held(tmp_path, {**CONFIG, "seed": 1}):
        pass


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path, holder):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    with records.held(tmp_path, CONFIG):
        pass


def test_a_lock_is_free_again_after_a_run_that_failed(tmp_path):
    with pytest.raises(ValueError), records.held(tmp_path, CONFIG):
        raise ValueError
    with records.held(tmp_path, CONFIG):
        pass


def test_what_was_refused_before_it_began_leaves_nothing(tmp_path):
    with pytest.raises(ValueError), records.held(tmp_path / "results", CONFIG):
        raise ValueError
    assert not any(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_said_in_one_line(tmp_path):
    (tmp_path / "embedded").write_text("a file")
    with pytest.raises(records.RecordError, match="Cannot make .*locks"):
        with records.held(tmp_path, CONFIG):
            pass


def test_a_disk_that_is_full_from_the_start_is_told_in_one_line(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))  # not one byte may be written
    try:
        with pytest.raises(records.RecordError, match="^Cannot write .*: File too large") as told:
            with records.held(tmp_path, CONFIG):
                raise AssertionError("held")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "\n" not in str(told.value) and not list(tmp_path.iterdir())
