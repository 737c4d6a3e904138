"""What takes long is told, and nothing else is."""

import logging
import time

import pytest

from dpexp.warned import told_if_long


def test_what_takes_long_is_told_while_it_goes_on(caplog):
    with caplog.at_level(logging.INFO), told_if_long("reading a long book", 0.01):
        until = time.monotonic() + 10
        while not caplog.messages and time.monotonic() < until:
            time.sleep(0.01)
        assert caplog.messages == ["reading a long book"]


def test_what_ends_or_fails_before_is_not(caplog):
    with caplog.at_level(logging.INFO):
        with told_if_long("a short one", 0.2):
            pass
        with pytest.raises(ValueError), told_if_long("one that is torn", 0.2):
            raise ValueError
        time.sleep(0.3)
    assert not caplog.messages
