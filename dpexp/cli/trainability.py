"""Whether an architecture trains by a method: a private run of two steps, and its gradients.

The run is the real loop's on tiny random data, from the check of the model to the verified record.
What the method takes of every example in a batch is compared with what it takes of that example's
own gradients by torch.autograd, in float64; of losses, where a method takes no gradients.
"""

from __future__ import annotations

import io
import logging
import math
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpexp import records
from dpexp.cli.architectures import NUM_CLASSES, Architecture
from dpexp.cli.building import make_method, with_head
from dpexp.cli.composition import compose
from dpexp.cli.from_python import GIVEN
from dpexp.cli.parts import adapted, around
from dpexp.data import Examples
from dpexp.data.given import task_of
from dpexp.distributed.ranks import Ranks
from dpexp.grad_sample import Tape, Try, settle
from dpexp.grad_sample.rules import FormedGrads
from dpexp.grad_sample.shared_inputs import trial
from dpexp.models.classifier import find_head
from dpexp.models.copies import copied
from dpexp.privacy.verification.record import verify_record
from dpexp.training.losses import BatchLosses
from dpexp.training.probing.check import SIZES
from dpexp.training.train import train
from dpexp.types import Batch, ConfigError, Key, LayerGrads, Method, PerExampleGrads, one_line

METHODS: dict[str, tuple[str, ...]] = {
    "dpsgd": (),
    "rgp": ("method.rank=2", "method.warm_up_steps=1"),
    "rgp_random": ("method.rank=2",),
    "lsg": ("method.rank=2",),
    "dp_powersgd": ("method.rank=2",),
    "sparse_dpsgd": (),
    "gep": ("method.basis=random", "method.groups=all", "method.k=4"),
    "dp_lora": ("method.rank=2",),
    "dp_grape": ("method.rank=2",),
    "dp_zo": (),
}
"""The methods that are tried, with settings that fit small models and need no public data."""

EXACT = 1e-6
"""The largest error of what a method takes of an example, over its largest entry."""

NUM_EXAMPLES, NUM_COMPARED = 8, 3


@dataclass(frozen=True)
class Tokens(Examples):
    """Texts [n, 3, t] of ids, mask and second text, all as long as the longest."""

    @property
    def longest(self) -> int:
        """Return t."""
        return self.inputs.shape[2]


@dataclass(frozen=True)
class Built:
    """An architecture, built once for all methods.

    Attributes:
        model: in float32, with random weights.
        inputs: of a few examples.
        targets: their classes.
        head: the classifier's name.
        is_padded: whether it reads tokens of texts of any length, padded to the longest.
        gradients: by parameter, every compared example's by torch.autograd, in float64.
    """

    model: nn.Module
    inputs: Tensor
    targets: Tensor
    head: str
    is_padded: bool
    gradients: Mapping[str, Tensor]


def built(architecture: Architecture) -> Built:
    """Build an architecture and its examples, always the same ones."""
    torch.manual_seed(0)
    model = architecture.make().float().train()
    inputs = architecture.inputs(NUM_EXAMPLES)
    inputs = inputs.float() if inputs.is_floating_point() else inputs
    targets = torch.arange(NUM_EXAMPLES) % NUM_CLASSES
    some = _doubled(inputs[:NUM_COMPARED])
    found = by_autograd(copied(model).double(), some, targets[:NUM_COMPARED])
    is_padded = architecture.is_text and not architecture.one_length
    return Built(model, inputs, targets, find_head(model, NUM_CLASSES), is_padded, found)


def _doubled(inputs: Tensor) -> Tensor:
    return inputs.double() if inputs.is_floating_point() else inputs


def by_autograd(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Return every example's gradients by name, [n, ...], one example at a time."""
    weights = dict(model.named_parameters())
    rows = [
        torch.autograd.grad(
            F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]),
            list(weights.values()),
            materialize_grads=True,
        )
        for i in range(len(x))
    ]
    return {
        name: torch.stack(each) for name, each in zip(weights, zip(*rows, strict=True), strict=True)
    }


def refusal(subject: Built, method: str) -> str | None:
    """Return why a method does not train an architecture, in a line; None: it does.

    Args:
        subject: the architecture.
        method: one of `METHODS`.
    """
    config = with_head(_composed(method), subject.head)
    try:
        with quiet():
            _train(subject, config)
            error = _error(subject, config)
    except ConfigError as refused:
        return one_line(refused)
    if not error < EXACT:
        return f"what it takes of an example is off by {error:.1g} of its size"
    return None


@cache
def _composed(method: str) -> dict[str, Any]:
    words = [f"method={method}", *METHODS[method], "public=none", "schedule=constant", "eps=8"]
    words += ["model=python", "target=torch.nn.Identity", "optimizer.lr=0.01", "device=cpu"]
    words += [f"batch_size={NUM_EXAMPLES // 2}", "epochs=1", "task=digits"]
    return compose(words)


@contextmanager
def quiet() -> Iterator[None]:
    """Leave out what small runs say, and leave the generator as it was.

    Sums are taken on one thread, so that their rounding is the same everywhere.
    """
    before, threads = logging.root.manager.disable, torch.get_num_threads()
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            yield
    finally:
        logging.disable(before)
        torch.set_num_threads(threads)


def _train(subject: Built, config: dict[str, Any]) -> None:
    """Take a private run of two steps, and verify its record.

    Raises:
        ConfigError: if it is refused, or its record is not in order.
    """
    kind = Tokens if subject.is_padded else Examples
    examples, tests = (kind(subject.inputs, subject.targets) for _ in range(2))
    sizes: dict[str, Any] = {
        "num_classes": NUM_CLASSES,
        "delta": 1e-2,
        "dataset_size": NUM_EXAMPLES,
    }
    task = task_of(examples, tests, **sizes)
    named = {"_target_": GIVEN, "name": task.name, "fingerprint": task.fingerprint}
    made: Method = make_method(config)
    model = adapted(copied(subject.model), made, config["seed"])
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    with tempfile.TemporaryDirectory() as folder:
        config = {**config, "results": folder, "task": named | sizes}
        parts = around(config, task, model, made)
        train(config, parts, Ranks(0, 1, torch.device("cpu")))
        record = records.read(records.locate(folder, config))
        assert record is not None
        findings = verify_record(record).findings
    still = [
        name
        for name in made.trainable(model)
        if torch.equal(model.get_parameter(name), before[name])
    ]
    if findings or still or record.metrics[-1]["nonfinite"] or record.result["steps"] != 2:
        raise ConfigError(f"Expected a record in order; got {[*findings, *still[:1]]}.")


def _error(subject: Built, config: dict[str, Any]) -> float:
    """Return the largest error of what a method takes of each example, in float64."""
    made: Method = make_method(config)
    model = adapted(copied(subject.model).double(), made, config["seed"])
    x, y = _doubled(subject.inputs[:NUM_COMPARED]), subject.targets[:NUM_COMPARED]
    is_adapted = any(name not in subject.gradients for name, _ in model.named_parameters())
    each = subject.gradients
    if is_adapted:
        for parameter in model.parameters():  # an adapter's second side is zero at first
            parameter.data += 0.01 * torch.randn_like(parameter)
        each = by_autograd(model, x, y)
    gen = torch.Generator().manual_seed(0)
    state = made.prepare(model, made.start(model), None, gen)
    if made.is_forward_only:
        got = _of_losses(made, model, state, x, y)
        alone = [_of_losses(made, model, state, x[i : i + 1], y[i : i + 1]) for i in range(len(x))]
        expected = {key: torch.cat([one[key] for one in alone]) for key in got}
    else:
        got = _of_tape(made, model, state, x, y, Batch(_doubled(subject.inputs), subject.targets))
        expected = {}
        for name in made.trainable(model):
            layer, _, own = name.rpartition(".")
            formed = FormedGrads({own: each[name]}, (own,))
            expected |= _formed(made.per_example_grads(state, layer, formed))
    if got.keys() != expected.keys():
        return math.inf
    return max(_apart(got[key], expected[key]) for key in got)


def _of_losses(
    made: Method, model: nn.Module, state: dict[str, Any], x: Tensor, y: Tensor
) -> dict[Key, Tensor]:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, reduction="sum")

    weights = {name: model.get_parameter(name) for name in made.trainable(model)}
    losses = BatchLosses(model, weights, loss, Batch(x, y))
    return _formed(made.per_example_scalars(state, losses))


def _of_tape(
    made: Method, model: nn.Module, state: dict[str, Any], x: Tensor, y: Tensor, tries: Batch
) -> dict[Key, Tensor]:
    """Return what a method takes of a batch, by the hooks that a step has after `tries`."""
    names = made.trainable(model)
    got: dict[Key, Tensor] = {}

    def take(layer: str, layer_grads: LayerGrads) -> None:
        got.update(_formed(made.per_example_grads(state, layer, layer_grads)))

    def tried(some: int) -> Try:
        seen, targets = tries.inputs[:some], tries.targets[:some]
        return Try(lambda: F.cross_entropy(model(seen), targets), some)

    with trial():
        settle(model, names, [tried(some) for some in SIZES])
        with Tape(model, names, take) as tape:
            tape.expect(len(x))
            tape.backward(F.cross_entropy(model(x), y, reduction="sum"))
    return got


def _formed(blocks: Mapping[Key, PerExampleGrads]) -> dict[Key, Tensor]:
    return {key: grads.materialize().detach().clone() for key, grads in blocks.items()}


def _apart(got: Tensor, expected: Tensor) -> float:
    got = got.view_as(expected)
    return float((got - expected).abs().max() / expected.abs().max().clamp_min(1e-8))
