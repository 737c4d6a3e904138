"""What happens when memory runs out in a step, a rehearsal or an evaluation."""

import gc
import logging
import math
import resource
import sys
import textwrap
import weakref
from pathlib import Path

import pytest
import torch

from dpexp.distributed import memory
from dpexp.distributed.memory import STATUS, _kilobytes, room_mb
from dpexp.training.gradient import PrivateGradient
from dpexp.training.judging import evaluate
from dpexp.types import ConfigError
from tests.marks import some_long
from tests.runs import Watched
from tests.steps import ALONE, CPU, Setting, composed, cramp, distance

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("method", some_long(["dpsgd", "rgp", "lsg", "gep"], ["gep"]))
def test_a_step_that_runs_out_of_memory_is_the_same_step_in_smaller_pieces(method, caplog):
    setting = Setting(composed(method))
    whole, before = setting.step(micro_batch=80), dict(setting.state)
    assert whole.examples > 20 and not whole.has_halved
    cramp(setting.model, 20)  # when backward ends, nearly all per-example gradients are held
    with (
        caplog.at_level(logging.WARNING, "dpexp"),
        PrivateGradient(
            setting.model, setting.method, setting.mechanism, ALONE, 80, setting.public
        ) as gradient,
    ):
        pieces = gradient(setting.state, setting.examples, 0)
        assert gradient.micro_batch == 20 and pieces.has_halved
        again = gradient(setting.state, setting.examples, 0)
    assert [record.message.split(": ")[-1] for record in caplog.records] == [
        "going on with 40",
        "going on with 20",
    ]
    assert "out of memory with micro_batch=80 (Tried to allocate " in caplog.records[0].message
    assert distance(pieces.gradients, whole.gradients) < 1e-6
    assert pieces.noise_draws == whole.noise_draws == 1
    assert (pieces.examples, pieces.clipped) == (whole.examples, whole.clipped)
    assert pieces.loss == pytest.approx(whole.loss, rel=1e-6)
    assert setting.state.keys() == before.keys()
    assert all(setting.state[key] is before[key] for key in before)
    # A step that never ran out, with pieces of that size from the start, is equal to the last bit.
    assert not again.has_halved
    for name, gradient in pieces.gradients.items():
        assert torch.equal(gradient, again.gradients[name])


class CountingHeld(Watched):
    """A method that counts the per-example gradients it returned that are still in memory."""

    def __init__(self, method):
        super().__init__(method)
        self.per_example = []

    def per_example_grads(self, state, layer, layer_grads):
        per_example = self.method.per_example_grads(state, layer, layer_grads)
        self.per_example.extend(map(weakref.ref, per_example.values()))
        return per_example

    def count_held(self):
        return sum(grads() is not None for grads in self.per_example)


@pytest.mark.parametrize("method", some_long(["dpsgd", "rgp", "gep"], ["gep"]))
def test_what_failed_is_let_go_before_memory_is_given_back(method):
    setting = Setting(composed(method))
    cramp(setting.model, 20)
    setting.method, held = CountingHeld(setting.method), []

    def count(phase, info):
        if phase == "start":
            held.append(setting.method.count_held())

    gc.disable()  # but for what is collected on purpose
    gc.callbacks.append(count)
    try:
        assert setting.step(micro_batch=80).has_halved
    finally:
        gc.callbacks.remove(count)
        gc.enable()
    assert setting.method.per_example and held == [0, 0]


def test_a_rehearsal_that_failed_lets_go_too():
    """Or `micro_batch=auto` would measure the next size beside what is left of the last."""
    setting = Setting(composed("rgp"))
    cramp(setting.model, 20)
    setting.method = CountingHeld(setting.method)
    with PrivateGradient(
        setting.model, setting.method, setting.mechanism, ALONE, 80, setting.public
    ) as gradient:
        rehearse = gradient.rehearsal(setting.state, setting.examples)
        with pytest.raises(torch.OutOfMemoryError):
            rehearse(torch.arange(80))
        assert setting.method.per_example and setting.method.count_held() == 0
        rehearse(torch.arange(20))


@pytest.mark.parametrize("at_end", some_long([False, True], [True]))
def test_one_example_that_does_not_fit_is_one_line(at_end):
    setting = Setting(composed("dpsgd"))
    cramp(setting.model, 0, at_end=at_end)
    with pytest.raises(
        ConfigError, match="one example .*: Tried to allocate 1 B. For a "
    ) as raised:
        setting.step(micro_batch=4)
    assert "model.checkpointing=true" in str(raised.value) and "\n" not in str(raised.value)


def test_anchor_gradients_that_do_not_fit_are_one_line_and_halve_nothing(caplog):
    setting = Setting(composed("gep"))
    cramp(setting.model, 5)
    with pytest.raises(ConfigError, match="what the method prepares .* Set a smaller .*method.m"):
        setting.step(micro_batch=4)
    assert not caplog.records


def test_an_error_that_is_not_of_memory_is_left_alone():
    setting = Setting(composed("dpsgd"))

    def fail(*_):
        raise RuntimeError("shapes do not match")

    setting.model.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        setting.step(micro_batch=4)


def test_an_evaluation_that_runs_out_of_memory_gives_the_same_score():
    setting = Setting(composed("dpsgd"))
    test = setting.parts.task.test
    score = evaluate(setting.model, test, CPU)
    cramp(setting.model, 9)
    assert evaluate(setting.model, test, CPU) == pytest.approx(score, abs=1e-9)


REAL = """
    import resource, torch
    from torch import nn
    from dpexp.training.gradient import PrivateGradient
    from dpexp.privacy import whole_batch
    from dpexp.distributed.memory import STATUS, _kilobytes
    from dpexp.methods.dpsgd import DPSGD
    from dpexp.distributed.ranks import Ranks
    from dpexp.data import Examples

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 8192), nn.Tanh())
    model.head = nn.Linear(8192, 10)
    num = 2048  # 67 MB an activation
    examples = Examples(torch.randn(num, 64), torch.randint(10, (num,)))
    method, state = DPSGD("all", "head"), {}
    mechanism = whole_batch(num, method.releases(method.start(model), 1.0))

    def step(micro_batch):
        alone = Ranks(0, 1, torch.device("cpu"))
        with PrivateGradient(model, method, mechanism, alone, micro_batch) as gradient:
            return gradient(method.start(model), examples, 0), gradient.micro_batch

    few, _ = step(64)
    limit = _kilobytes(STATUS, "VmSize:") * 1024 + 100 * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    got, left = step(num)
    assert 1 <= left <= 1024 and got.has_halved, left
    assert (got.examples, got.clipped) == (few.examples, few.clipped) == (num, few.clipped)
    for name, gradient in few.gradients.items():
        assert float((got.gradients[name] - gradient).norm()) < 1e-6 * float(gradient.norm())
    print("same")
"""


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits addresses as Linux does")
def test_a_process_whose_memory_is_limited_halves_and_goes_on(programs):
    done = programs.run(["-c", textwrap.dedent(REAL)])
    assert done.stdout == "same\n", done.stderr
    assert "can't allocate memory" in done.stderr


def test_room_ends_at_a_limit_on_addresses():
    """As `ulimit -v` sets it, which MemAvailable does not know."""
    free, left = room_mb(CPU, sharing=1), 300 * 2**20
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = _kilobytes(STATUS, "VmSize:") * 1024 + left
    try:
        resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
        limited, shared = room_mb(CPU, sharing=1), room_mb(CPU, sharing=2)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    held = _kilobytes(STATUS, "VmRSS:") * 1024 / 1e6
    assert limited == pytest.approx(held + left / 1e6, abs=50)
    assert shared == pytest.approx(limited, abs=50) and free > limited  # a limit of each process


@pytest.mark.parametrize("limited", ["", "system", "system/run.scope"])
def test_room_ends_at_the_limit_of_any_group_around(limited, tmp_path, monkeypatch):
    for name in ("", "system", "system/run.scope"):
        group = tmp_path / "fs" / name
        group.mkdir(exist_ok=True, parents=True)
        most = str(500 * 10**6) if name == limited else "max"
        (group / "memory.max").write_text(f"{most}\n")
        (group / "memory.current").write_text(f"{300 * 10**6}\n")
    (tmp_path / "own").write_text("0::/system/run.scope\n")
    monkeypatch.setattr(memory, "CGROUP", tmp_path / "fs")
    monkeypatch.setattr(memory, "OWN_GROUP", tmp_path / "own")
    held = _kilobytes(STATUS, "VmRSS:") * 1024 / 1e6
    assert room_mb(CPU, sharing=1) == pytest.approx(held + 200, abs=50)
    (tmp_path / "own").unlink()  # as where /proc does not have it: the root's limit alone
    assert (room_mb(CPU, sharing=1) < held + 250) == (limited == "")


def left_to_group(folder, monkeypatch, own, files):
    """Return the bytes left under cgroups' files, by path below their root."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (folder / "own").write_text(own)
    monkeypatch.setattr(memory, "CGROUP", folder)
    monkeypatch.setattr(memory, "OWN_GROUP", folder / "own")
    return memory._left_to_group()


def test_a_system_without_peaks_or_without_what_is_free_is_asked_otherwise(tmp_path, monkeypatch):
    """As sandboxes have it, whose /proc has some of the fields alone."""
    (tmp_path / "status").write_text(
        "Name:\tpython\nVmSize:\t  9000 kB\nVmRSS:\t  4000 kB\nVmHWM:\n"
    )
    monkeypatch.setattr(memory, "STATUS", tmp_path / "status")
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    assert memory.peak_mb(CPU) == pytest.approx(used, rel=0.1)
    for text in ("MemTotal:  9 kB\n", "MemAvailable: some\n", ""):
        (tmp_path / "meminfo").write_text(text)
        monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
        assert room_mb(CPU, sharing=1) is None


V1 = "12:cpu,cpuacct:/a\n9:memory:/slurm/job:1\n1:name=systemd:/b\n0::/c\n"


def test_room_ends_at_limits_of_cgroups_version_1(tmp_path, monkeypatch):
    """As clusters still have them: a tree for memory alone, and a huge number for no limit."""
    files = {}
    for name, limit in (("", 2**63 - 4096), ("/slurm", 900), ("/slurm/job:1", 700)):
        files[f"memory{name}/memory.limit_in_bytes"] = f"{limit}\n"
        files[f"memory{name}/memory.usage_in_bytes"] = "400\n"
    assert left_to_group(tmp_path, monkeypatch, V1, files) == 300
    files["memory/slurm/job:1/memory.limit_in_bytes"] = f"{2**63 - 4096}\n"
    assert left_to_group(tmp_path, monkeypatch, V1, files) == 500


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_pages_of_files_that_the_system_takes_back_are_room(version, tmp_path, monkeypatch):
    """Data that were read fill a container's limit and would leave micro_batch=auto nothing."""
    limit, used, stat, own = (
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", V1)
        if version == "v1"
        else ("memory.max", "memory.current", "memory.stat", "0::/\n")
    )
    told = "anon 10\ninactive_file 600\nactive_file 50\n"
    told += "total_inactive_file 600\n" if version == "v1" else ""
    files = {limit: "1000\n", used: "990\n", stat: told}
    assert left_to_group(tmp_path, monkeypatch, own, files) == 610


@pytest.mark.parametrize("odd", ["max", "", "unlimited", "-1", "1e9", "\x00", "nan"])
@pytest.mark.parametrize("own", ["", "0::\n", "0::/../../x (deleted)\n", "garbage\n::\n:"])
def test_a_limit_that_is_no_number_is_none(odd, own, tmp_path, monkeypatch):
    files = {"memory.max": odd, "memory.current": "5", "memory.stat": "odd"}
    assert left_to_group(tmp_path, monkeypatch, own, files) == math.inf
    files |= {"memory.max": "9\n", "memory.current": odd}
    assert left_to_group(tmp_path, monkeypatch, own, files) == math.inf
    files["memory.current"] = "5\n"
    assert left_to_group(tmp_path, monkeypatch, own, files) == 4
