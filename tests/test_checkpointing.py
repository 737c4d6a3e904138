"""What is held: after a step no gradient, and under checkpointing less of the forward pass."""

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dpexp import cli
from dpexp.data import cross_entropy
from dpexp.methods.rgp import RGP
from dpexp.privacy import whole_batch
from dpexp.records import run_id
from dpexp.training.gradient import PrivateGradient
from tests.marks import pairs_long, some_long
from tests.runs import execute
from tests.steps import ALONE
from tests.test_text_gradients import EVERY, LENGTHS, make
from tests.texts import texts, tiny


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


@pytest.mark.parametrize("method", some_long(["dpsgd", "rgp"], ["rgp"]))
def test_no_gradient_outlives_its_step(method, tmp_path):
    """They are as large as the model, and training or evaluation has use for the memory."""
    held, sizes = [], []
    with Live() as live:

        def count(module, args):
            # The whole model, not a part of it, and no look at it before the first step.
            if hasattr(module, "head") and len(args[0]) > 20:
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
    return RGP(3, "both", 1, 1, "update", False, 0.1, "head")


@pytest.mark.parametrize(
    ("method", "precision"),
    pairs_long(
        ["dpsgd", "rgp", "lsg", "rgp without residual"],
        ["float32", "bfloat16"],
        short=lambda *pair: pair in [("dpsgd", "float32"), ("rgp", "bfloat16")],
    ),
)
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
        run_id(cli.compose(["method=rgp", "task=sst2", "model=roberta_large", word]))
        for word in ("model.checkpointing=true", "model.checkpointing=false")
    }
    assert len(ids) == 1
