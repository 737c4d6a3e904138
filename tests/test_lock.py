"""A run is done by one process at a time, and a dead one's lock binds nobody."""

import errno
import fcntl
import os
import resource
import signal
import subprocess
import threading
import time
from pathlib import Path

import filelock
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

TAKE_TURNS = """
import os, sys, time
from dpexp import records
turns, inside = 0, os.path.join(sys.argv[1], "inside")
ends = time.monotonic() + 2
while time.monotonic() < ends:
    try:
        with records.held(sys.argv[2], {"profile": {"name": "embedded"}, "seed": 0}):
            os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
            os.unlink(inside)
            turns += 1
    except records.Busy:
        pass
print(turns)
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


def test_two_are_never_in_it_at_once_though_each_removes_its_file_and_its_folders(
    tmp_path, programs
):
    words = ["-c", TAKE_TURNS, str(tmp_path), str(tmp_path / "results")]
    processes = [programs.start(words, stdout=subprocess.PIPE) for _ in range(3)]
    assert all(int(process.communicate()[0]) > 10 for process in processes)


def test_a_folder_that_is_removed_while_it_is_made_is_made_again(tmp_path, monkeypatch):
    own, refused = os.mkdir, []

    def mkdir(path, *args, **more):
        if str(path).endswith("locks") and not refused:  # another's, which then removes it
            refused.append(path)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        own(path, *args, **more)

    monkeypatch.setattr(os, "mkdir", mkdir)
    with records.held(tmp_path, CONFIG):
        assert refused and records.is_held(tmp_path, CONFIG)


def test_whether_it_is_held_is_told_without_a_trace(tmp_path, holder):
    assert records.is_held(tmp_path, CONFIG)
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert not records.is_held(tmp_path, CONFIG)
    assert not records.is_held(tmp_path / "results", CONFIG)
    assert not (tmp_path / "results").exists()


def test_who_only_asks_whether_it_is_held_keeps_no_run_from_it(tmp_path):
    with records.held(tmp_path, CONFIG):
        (path,) = tmp_path.glob("embedded/locks/*")
    path.parent.mkdir(parents=True)
    with path.open("w") as asking:
        filelock.lock_descriptor(asking.fileno())
        threading.Thread(target=lambda: (time.sleep(0.05), asking.close())).start()
        with records.held(tmp_path, CONFIG):
            assert "pid" in path.read_text()


def test_a_disk_that_cannot_lock_is_warned_of_and_the_run_is_done(tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refused)
    with pytest.warns(UserWarning, match="has no locks .*: do not start a run"):
        with records.held(tmp_path, CONFIG):
            assert not records.is_held(tmp_path, CONFIG)
    assert not any(tmp_path.iterdir())


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
