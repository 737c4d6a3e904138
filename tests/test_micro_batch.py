"""How many examples at once: the search for it, and what a run remembers of it."""

import json
import logging
from itertools import count
from types import SimpleNamespace

import pytest
import torch

from dpexp.training import micro_batch
from dpexp.training.gradient import PrivateGradient
from dpexp.training.micro_batch import MicroBatch, Trial, choose, next_size, try_sizes
from dpexp.types import ConfigError
from tests.runs import execute, of
from tests.steps import ALONE, CPU, Setting, composed, cramp


def test_a_run_finds_its_micro_batch_once_and_says_it(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("DPEXP_CACHE", str(tmp_path / "cache"))
    words = ["method=dpsgd", "model=linear", "task=digits", "profile=embedded", "epochs=1"]
    sizes, lines, said = [], [], []
    for results in ("first", "second"):
        with caplog.at_level(logging.INFO, "dpexp"):
            directory = execute(tmp_path / results, *words, "micro_batch=auto")
        sizes.append(of(directory)[1]["micro_batch"])
        lines.append(of(directory)[0])
        said += [r.message for r in caplog.records if "micro_batch=" in r.message]
        caplog.clear()
    assert sizes[0] == sizes[1] and sizes[0] & (sizes[0] - 1) == 0
    assert lines[0] == lines[1]
    assert len(said) == 2 and "ms an example" in said[0] and "found before" in said[1]
    # Its id does not know the size: this is looked up.
    assert execute(tmp_path / "second", *words, "micro_batch=7") == directory
    assert of(directory)[1]["micro_batch"] == sizes[1]


GPU = torch.device("cuda")


def sizes_tried(device, *, most=1024, room_mb=1e9, mb=1.0, seconds=lambda size: 1.0):
    """Follow the search on a machine where an example takes so much, on top of 100 MB."""
    trials = []
    while (size := next_size(trials, most, room_mb, device)) is not None:
        trials.append(Trial(size, seconds(size), 100 + mb * size))
    return trials


def test_on_a_gpu_it_is_the_largest_power_of_two_that_fits_and_is_within_the_share():
    assert choose(sizes_tried(GPU, most=512), GPU).size == 512
    assert choose(sizes_tried(GPU, most=1), GPU).size == 1
    for room_mb in (109, 300, 700, 100 + 256, 99 + 256):
        trials = sizes_tried(GPU, room_mb=room_mb)
        assert choose(trials, GPU) is trials[-1]
        assert trials[-1].peak_mb <= room_mb < 100 + 2 * trials[-1].size


def test_on_a_cpu_it_is_the_smallest_of_those_that_are_fastest():
    in_cache = {1: 4.0, 2: 2.0, 4: 1.0, 8: 0.97, 16: 1.2}
    trials = sizes_tried(CPU, seconds=lambda size: in_cache.get(size, 1.5))
    assert [trial.size for trial in trials] == [1, 2, 4, 8, 16]  # two doublings without a gain
    assert choose(trials, CPU).size == 4
    falling = sizes_tried(CPU, seconds=lambda size: 1 / size)
    assert choose(falling, CPU).size == 1024


def test_a_size_that_runs_out_of_memory_is_the_end_of_the_search():
    setting = Setting(composed("gep"))
    cramp(setting.model, 20)
    with PrivateGradient(
        setting.model, setting.method, setting.mechanism, ALONE, 1, setting.public
    ) as gradient:
        trials = try_sizes(gradient, setting.state, setting.examples, 64, float("inf"), CPU)
        assert max(trial.size for trial in trials) <= 16
        assert gradient(setting.state, setting.examples, 0).examples > 20
    setting.model.apply(lambda layer: layer._forward_hooks.clear())
    cramp(setting.model, 0)
    some = Setting(composed("dpsgd"))
    cramp(some.model, 0)
    with (
        PrivateGradient(some.model, some.method, some.mechanism, ALONE, 1) as gradient,
        pytest.raises(ConfigError, match="one example to fit in memory"),
    ):
        try_sizes(gradient, some.state, some.examples, 64, float("inf"), CPU)


@pytest.mark.parametrize(
    "kept",
    [
        "[" * 100_000,
        '{"micro_batch": Infinity, "peak_mb": 1}',
        '{"micro_batch": 1e300, "peak_mb": 1}',
        '{"micro_batch": 1024, "peak_mb": 1}',
        '{"micro_batch": 0, "peak_mb": 1}',
        '{"micro_batch": 4, "peak',
    ],
    ids=["deep", "infinite", "huge", "beyond a batch", "none", "torn"],
)
def test_what_is_no_size_of_a_run_is_looked_for_anew(tmp_path, monkeypatch, kept):
    """It ended a run in a trace; a cache costs time and nothing else."""
    monkeypatch.setenv("DPEXP_CACHE", str(tmp_path))
    task = SimpleNamespace(name="digits", input_shape=(1, 8, 8), train=None)
    config = {"model": {}, "method": {}, "micro_batch": "auto"}
    mechanism = SimpleNamespace(batch_size=500)
    sizes = MicroBatch(config, SimpleNamespace(task=task), {}, mechanism, ALONE)
    sizes._entry.parent.mkdir()
    sizes._entry.write_text('{"micro_batch": 256, "peak_mb": 1}')
    assert sizes._recall() == 256
    sizes._entry.write_text(kept)
    assert sizes._recall() is None


def test_what_ran_out_of_memory_is_remembered_and_a_resumed_run_keeps_its_size(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("DPEXP_CACHE", str(tmp_path))
    ticks = SimpleNamespace(perf_counter=count().__next__)  # a step of any size takes one
    monkeypatch.setattr(micro_batch, "time", ticks)
    config = composed("dpsgd", "micro_batch=auto")
    setting = Setting(config)

    def sizes(config=config):
        return MicroBatch(config, setting.parts, setting.state, setting.mechanism, ALONE)

    found = sizes().settle(0, setting.examples)
    assert found == 32  # the largest power of two in a batch of 40
    sizes().lower(found // 2)
    assert sizes().settle(0, setting.examples) == found // 2
    assert sizes().settle(7, setting.examples) == 7  # what it had when it was stopped
    assert sizes(config | {"micro_batch": 30}).settle(15, setting.examples) == 15
    assert sizes(config | {"micro_batch": 10}).settle(15, setting.examples) == 10
    (entry,) = (tmp_path / "auto").iterdir()
    assert json.loads(entry.read_text())["micro_batch"] == found // 2
    # Where more memory is free than when it ran out, larger sizes are tried again.
    entry.write_text(json.dumps({"micro_batch": 1, "peak_mb": None, "room_mb": 0.001}))
    sizes().settle(0, setting.examples)
    assert json.loads(entry.read_text())["peak_mb"] is not None  # found anew
    entry.write_text("{")
    assert sizes().settle(0, setting.examples) == 32
    assert json.loads(entry.read_text())["micro_batch"] == 32
