"""Being told to stop: what waits for the step at hand, and what does not."""

import os
import signal
import subprocess
import sys

import pytest

from dpexp.distributed.stopping import STOPPED, Stopping
from tests.marks import pairs_long
from tests.test_cli import ROOT


def send(number):
    os.kill(os.getpid(), number)


@pytest.fixture(autouse=True)
def as_it_was():
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, before)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("first", [[], [signal.SIGUSR2], [signal.SIGTERM]])
def test_a_second_ctrl_c_stops_at_once_whatever_came_before(first):
    signal.signal(signal.SIGUSR2, lambda *_: None)
    with Stopping(handles_interrupt=True) as stopping:
        for number in [*first, signal.SIGINT]:
            send(number)
        assert stopping.is_asked
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_ctrl_c_is_heard_where_nobody_can_be_answered(monkeypatch):
    """As when the shell's pipe has died of it as well."""
    monkeypatch.setattr(sys, "__stderr__", None)
    with Stopping(handles_interrupt=True) as stopping:
        send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            stopping.leave()


def test_ctrl_c_is_left_to_who_ignores_it_and_to_who_did_not_ask():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Stopping(handles_interrupt=True) as stopping:
        send(signal.SIGINT)
        assert not stopping.is_asked
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with Stopping(), pytest.raises(KeyboardInterrupt):
        send(signal.SIGINT)


def test_sigterm_leaves_with_its_own_code():
    with Stopping() as stopping:
        send(signal.SIGTERM)
        with pytest.raises(SystemExit) as left:
            stopping.leave()
    assert left.value.code == STOPPED


PROGRAM = """
import os, signal, sys

def program(*words):
    os.kill(os.getpid(), signal.SIGTERM if sys.argv[2] == "term" else signal.SIGINT)
    return 1

if sys.argv[1] == "run":
    from dpexp.cli.errors import guarded
    guarded(program)
else:
    from dpexp.cli.arguments import exit_code_of
    sys.exit(exit_code_of(program, [], ""))
"""

DEAF = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
if sys.argv[1] == "blocked":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
os.execv(sys.executable, [sys.executable, "-c", *sys.argv[2:]])
"""


@pytest.mark.parametrize(
    ("ended", "how"),
    pairs_long(
        [("run", "int", 130), ("script", "int", 130), ("run", "term", -15)],
        ["ignored", "blocked"],
        short=lambda *each: (
            each in [(("run", "int", 130), "blocked"), (("run", "term", -15), "ignored")]
        ),
    ),
)
def test_programs_hear_what_a_job_in_the_background_would_not(ended, how):
    """As those of nohup, of a script's `&`, and of many build systems begin."""
    program, sent, code = ended
    command = [sys.executable, "-c", DEAF, how, PROGRAM, program, sent]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    if sent == "int":
        (line,) = done.stderr.splitlines()
        assert line.startswith("error: Interrupted. The same command goes on from ")
