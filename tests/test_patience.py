"""What takes long is told, and nothing else is."""

import logging
import time

import pytest
import torch

from dpexp import warned
from dpexp.data import cache
from dpexp.privacy.accounting import calibrate
from dpexp.warned import told_if_long
from tests.runs import execute


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


def test_the_waits_before_a_first_step_are_told(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(warned, "PATIENCE", 0.0)
    monkeypatch.setenv("DPEXP_CACHE", str(tmp_path / "cache"))
    calibrate.cache_clear()
    words = "method=dpsgd model=linear task=digits profile=embedded epochs=1 micro_batch=auto"
    with caplog.at_level(logging.INFO, "dpexp"):
        execute(tmp_path, *words.split())
    told = {each.split(",")[0] for each in caplog.messages}
    assert told >= {
        "trying the network on made-up examples",
        "finding the noise for this budget",
        "finding the micro-batch",
    }


def test_data_that_take_long_to_decode_are_told_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(warned, "PATIENCE", 0.0)
    monkeypatch.setenv("DPEXP_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "images"
    file.write_bytes(b"made up")

    def decode():
        until = time.monotonic() + 10
        while not caplog.messages and time.monotonic() < until:
            time.sleep(0.01)
        return (torch.zeros(1),)

    with caplog.at_level(logging.INFO, "dpexp"):
        for _ in range(2):
            cache.decoded([file], "a recipe", decode)
    assert caplog.messages == ["decoding the data, which later runs find decoded"]
