"""Being told to stop: what waits for the step at hand, and what does not."""

import os
import signal
import sys

import pytest

from dpexp.stopping import STOPPED, Stopping


def send(number):
    os.kill(os.getpid(), number)


@pytest.fixture(autouse=True)
def as_it_was():
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("first", [[], [signal.SIGUSR2], [signal.SIGTERM]])
def test_a_second_ctrl_c_stops_at_once_whatever_came_before(first):
    signal.signal(signal.SIGUSR2, lambda *_: None)
    with Stopping(hears_interrupt=True) as stopping:
        for number in [*first, signal.SIGINT]:
            send(number)
        assert stopping.is_asked
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_ctrl_c_is_heard_where_nobody_can_be_answered(monkeypatch):
    """As when the shell's pipe has died of it as well."""
    monkeypatch.setattr(sys, "__stderr__", None)
    with Stopping(hears_interrupt=True) as stopping:
        send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            stopping.leave()


def test_ctrl_c_is_left_to_who_ignores_it_and_to_who_did_not_ask():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Stopping(hears_interrupt=True) as stopping:
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
