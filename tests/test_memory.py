"""Memory: what happens when it runs out, how much is asked for, and what checkpointing saves."""

import gc
import json
import logging
import subprocess
import sys
import textwrap
import weakref
from pathlib import Path

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import run
from dpexp.gradient import PrivateGradient
from dpexp.mechanism import whole_batch
from dpexp.methods.rgp import RGP
from dpexp.micro_batch import MicroBatch, Trial, choose, next_size, try_sizes
from dpexp.records import run_id
from dpexp.tasks import cross_entropy
from dpexp.train import evaluate
from dpexp.types import ConfigError
from tests.runs import Watched, execute, of
from tests.steps import ALONE, CPU, Setting, composed, distance
from tests.test_text_gradients import EVERY, LENGTHS, make
from tests.texts import texts, tiny

ROOT = Path(__file__).resolve().parents[1]


def cramp(model, most, *, at_end=True):
    """Let a model run out of memory above so many examples: in forward, or where backward ends."""

    def ask(num):
        if num > most:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {num} B. GPU 0")

    def hook(layer, args, output):
        if at_end and torch.is_grad_enabled():
            output.requires_grad_()  # as the tape does where nothing before is trained
            output.register_hook(lambda gradient: ask(len(gradient)))
        else:
            ask(len(output))

    first = next(layer for layer in model.modules() if not list(layer.children()))
    return first.register_forward_hook(hook)


# Out of memory in a step


@pytest.mark.parametrize("method", ["dpsgd", "rgp", "lsg", "gep"])
def test_a_step_that_runs_out_of_memory_is_the_same_step_in_smaller_pieces(method, caplog):
    setting = Setting(composed(method))
    whole, before = setting.step(micro_batch=80), dict(setting.state)
    assert whole.examples > 20 and not whole.has_halved
    cramp(setting.model, 20)  # when backward reaches its end, nearly all carriers are held
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


class Carrying(Watched):
    """A method that knows which of the carriers it handed on are still held."""

    def __init__(self, method):
        super().__init__(method)
        self.carried = []

    def carry(self, state, layer, tap):
        carriers = self.method.carry(state, layer, tap)
        self.carried.extend(map(weakref.ref, carriers.values()))
        return carriers

    def count_held(self):
        return sum(carrier() is not None for carrier in self.carried)


@pytest.mark.parametrize("method", ["dpsgd", "rgp", "gep"])
def test_what_failed_is_let_go_before_memory_is_given_back(method):
    setting = Setting(composed(method))
    cramp(setting.model, 20)
    setting.method, held = Carrying(setting.method), []

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
    assert setting.method.carried and held == [0, 0]


def test_a_rehearsal_that_failed_lets_go_too():
    """Or `micro_batch=auto` would measure the next size beside what is left of the last."""
    setting = Setting(composed("rgp"))
    cramp(setting.model, 20)
    setting.method = Carrying(setting.method)
    with PrivateGradient(
        setting.model, setting.method, setting.mechanism, ALONE, 80, setting.public
    ) as gradient:
        rehearse = gradient.rehearsal(setting.state, setting.examples)
        with pytest.raises(torch.OutOfMemoryError):
            rehearse(torch.arange(80))
        assert setting.method.carried and setting.method.count_held() == 0
        rehearse(torch.arange(20))


@pytest.mark.parametrize("at_end", [False, True])
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
    from dpexp.gradient import PrivateGradient
    from dpexp.mechanism import whole_batch
    from dpexp.memory import STATUS, _kilobytes
    from dpexp.methods.dpsgd import DPSGD
    from dpexp.ranks import Ranks
    from dpexp.tasks import Examples

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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits addresses as Linux does")
def test_a_process_whose_memory_is_limited_halves_and_goes_on():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(REAL)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout == "same\n", done.stderr
    assert "can't allocate memory" in done.stderr


# The largest that fits


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


def test_what_ran_out_of_memory_is_remembered_and_a_resumed_run_keeps_its_size(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("DPEXP_CACHE", str(tmp_path))
    config = composed("dpsgd", "micro_batch=auto")
    setting = Setting(config)

    def sizes(config=config):
        return MicroBatch(config, setting.parts, setting.state, setting.mechanism, ALONE)

    found = sizes().settle(0, setting.examples)
    assert 1 < found <= 32  # the largest power of two in a batch of 40
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
    again = sizes().settle(0, setting.examples)  # by the clock: not always what was found before
    assert 1 <= again <= 32 and json.loads(entry.read_text())["micro_batch"] == again


# Checkpointing


class Live(TorchDispatchMode):
    """Watches the memory of all that is made and still held by someone."""

    def __init__(self):
        super().__init__()
        self.made = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                self.made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return out

    def count(self):
        return sum(size for ref, size in self.made.values() if not ref.expired())


@pytest.mark.parametrize("method", ["dpsgd", "rgp"])
def test_no_gradient_outlives_its_step(method, tmp_path):
    """They are as large as the model, and training or evaluation has use for the memory."""
    held, sizes = [], []
    with Live() as live:

        def count(module, args):
            if hasattr(module, "head"):  # the whole model, not a part of it
                sizes.append(sum(weight.nbytes for weight in module.parameters()))
                held.append(live.count())

        hook = torch.nn.modules.module.register_module_forward_pre_hook(count)
        words = [f"method={method}", "task=digits", "profile=embedded", "eps=8", "epochs=1"]
        words += ["micro_batch=2000", "optimizer.momentum=0"]
        try:
            execute(tmp_path, *words)
        finally:
            hook.remove()
    assert len(held) > 3
    assert max(held[1:]) - held[0] < sizes[0] / 2  # RGP's last bases; with gradients, above 1


def stepped(method, checkpointing, dropout, precision="float32"):
    """One step; give its outcome, and the bytes held when forward had ended."""
    model = tiny("roberta", layers=4, checkpointing=checkpointing, dropout=dropout,
                 precision=precision).float()  # fmt: skip
    examples, held = texts("roberta", LENGTHS), []
    with Live() as live:

        def loss(outputs, targets):
            held.append(live.count())
            return cross_entropy(outputs, targets)

        mechanism = whole_batch(len(examples), method.releases(method.start(model), 0.1))
        with PrivateGradient(model, method, mechanism, ALONE, 100, None, loss) as gradient:
            return gradient(method.start(model), examples, 0), held[0]


def without_residual():
    return RGP(3, "both", 1, 1, False, 0.1, "head")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("method", ["dpsgd", "rgp", "lsg", "rgp without residual"])
def test_checkpointing_changes_no_bit_of_a_gradient(method, precision):
    def build():
        return make(method) if method in ("dpsgd", "rgp", "lsg") else without_residual()

    plain, held = stepped(build(), False, 0.2, precision)
    got, less = stepped(build(), True, 0.2, precision)
    assert plain.gradients.keys() == got.gradients.keys()
    for name, gradient in plain.gradients.items():
        assert torch.equal(gradient, got.gradients[name]), name
        assert name.endswith("key.bias") or gradient.abs().max() > 0
    assert (plain.loss, plain.clipped) == (got.loss, got.clipped)
    assert less < 0.45 * held  # were the inputs of layers inside kept, 0.5


def test_checkpointing_is_off_where_a_model_is_judged():
    model = tiny("bert", checkpointing=True).eval()
    seen = []
    model.encoder.encoder.layer[0].output.register_forward_hook(lambda *_: seen.append(1))
    model(texts("bert", LENGTHS).batch(EVERY).inputs).sum().backward()
    assert len(seen) == 1


def test_checkpointing_does_not_change_a_runs_id():
    ids = {
        run_id(run.compose(["method=rgp", "task=sst2", "model=roberta_large", word]))
        for word in ("model.checkpointing=true", "model.checkpointing=false")
    }
    assert len(ids) == 1
