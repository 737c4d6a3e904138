"""How exactly architectures train privately, and by which methods: the page docs/models.md."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from dpexp.cli.architectures import NUM_CLASSES, Architecture, architectures
from dpexp.cli.trainability import METHODS, built, refusal
from dpexp.grad_sample import Tape, Try, settle
from dpexp.grad_sample.hooking import hooked_layers
from dpexp.grad_sample.reading import is_read
from dpexp.grad_sample.shared_inputs import trial
from dpexp.models.matrices import matrix_parameters
from dpexp.types import LayerGrads, full_name

PAGE = Path("docs/models.md")

BEGIN, END = "<!-- architectures -->", "<!-- end -->"
"""What the tables stand between on the page; the rest is written by hand."""

NUM_EXAMPLES, RANK = 4, 2

TRAINS = "✓"
"""A cell of an architecture that a method trains."""


@dataclass(frozen=True)
class Found:
    """How exact an architecture's gradients are.

    Attributes:
        full: largest error of an example's gradient, over its largest entry.
        low_rank: likewise of dW_i R^T and L^T dW_i, of weight matrices.
        by_torch_func: types of its modules that have no rule, and are run again.
    """

    full: float
    low_rank: float
    by_torch_func: tuple[str, ...]


def examine(architecture: Architecture) -> Found:
    """Compare every example's gradients with autograd's of that example alone."""
    torch.manual_seed(0)
    model = architecture.make().double().train()
    x, y = architecture.inputs(NUM_EXAMPLES), torch.arange(NUM_EXAMPLES) % NUM_CLASSES
    with torch.no_grad():  # behind a matrix of zeros, as torchvision's ViT begins with, all is 0
        for weight in model.parameters():
            if weight.ndim > 1 and not weight.any():
                weight.normal_(std=0.1)
    names = [name for name, _ in model.named_parameters()]
    some = NUM_EXAMPLES - 1
    with trial():
        settle(model, names, [Try(lambda: F.cross_entropy(model(x[:some]), y[:some]), some)])
    matrices = set(matrix_parameters(model, "none"))
    got: dict[str, Tensor] = {}
    low: dict[str, tuple[Tensor, Tensor, Tensor, Tensor]] = {}

    def take(layer: str, layer_grads: LayerGrads) -> None:
        for own in layer_grads.parameters:
            name = full_name(layer, own)
            got[name] = layer_grads.gradient(own).materialize()
            if name in matrices:
                p, d = model.get_parameter(name).flatten(1).shape
                left, right = (torch.randn(*s).double() for s in ((p, RANK), (RANK, d)))
                low[name] = (
                    left,
                    right,
                    layer_grads.left(right).materialize(),
                    layer_grads.right(left).materialize(),
                )

    with trial(), Tape(model, names, take) as tape:
        tape.expect(NUM_EXAMPLES)
        tape.backward(F.cross_entropy(model(x), y, reduction="sum"))
    full = low_rank = 0.0
    for i in range(NUM_EXAMPLES):
        loss = F.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        weights = [model.get_parameter(name) for name in names]
        alone = torch.autograd.grad(loss, weights, materialize_grads=True)
        for name, each in zip(names, alone, strict=True):
            full = max(full, _error(got[name][i].view_as(each), each))
            if name in low:
                left, right, d_left, d_right = low[name]
                matrix = each.flatten(1)
                low_rank = max(low_rank, _error(d_left[i], matrix @ right.T))
                low_rank = max(low_rank, _error(d_right[i], left.T @ matrix))
    hooked = [each for each in hooked_layers(model, names).values() if not is_read(each.module)]
    return Found(
        full,
        low_rank,
        tuple(sorted({type(each.module).__name__ for each in hooked if not each.has_rule})),
    )


def _error(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).abs().max() / expected.abs().max().clamp_min(1e-8))


def page() -> str:
    """Return docs/models.md with its tables made anew."""
    all_of_them = architectures()
    exact = [
        f"| {each.name} | {_power(found.full)} | {_power(found.low_rank)} | "
        f"{', '.join(found.by_torch_func) or 'none'} |"
        for each in all_of_them
        for found in (examine(each),)
    ]
    refused = {each.name: refusals(each) for each in all_of_them}
    notes = {each.name: each.one_length for each in all_of_them if each.one_length}
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    blocks = [_of_exactness(exact), _of_methods(refused, notes)]
    return f"{before}{BEGIN}\n{chr(10).join(blocks)}\n{END}{after}"


def refusals(architecture: Architecture) -> dict[str, str | None]:
    """Return why each method does not train an architecture; None: it does."""
    subject = built(architecture)
    return {method: refusal(subject, method) for method in METHODS}


def _of_exactness(rows: Sequence[str]) -> str:
    said = (
        f"Each of these {len(rows)} was built small, with random weights: "
        "`python -m scripts.models` compares every example's gradient of every parameter with "
        "torch.autograd's of that example alone, in float64. Errors are relative to a "
        "gradient's largest entry, rounded up to a power of ten. The third column is of "
        "dW_i Rᵀ and Lᵀ dW_i, which RGP, LSG and DP-PowerSGD take of each matrix. "
        "Modules in the last column are run again under torch.func for their gradients, which is "
        "slower, and their dropout has to be 0. torchvision's networks have GroupNorm in "
        "BatchNorm's place. Names without a library are transformers' and, of LSTM and GRU, "
        "torch's."
    )
    head = [
        "| architecture | whole gradients | low-rank products | by torch.func |",
        "| --- | ---: | ---: | --- |",
    ]
    return "\n".join([said, "", *head, *rows])


def _of_methods(refused: Mapping[str, Mapping[str, str | None]], notes: Mapping[str, str]) -> str:
    """Return the table of architectures by methods, and the notes below it."""
    reasons = list(
        dict.fromkeys(
            [*notes.values(), *(w for row in refused.values() for w in row.values() if w)]
        )
    )
    marks = {reason: f"[{number}]" for number, reason in enumerate(reasons, 1)}
    tried = sum(map(len, refused.values()))
    trained = sum(why is None for row in refused.values() for why in row.values())
    said = (
        f"By method, {trained} of {tried} train ({TRAINS}): each took a private run of two steps "
        "through the training loop, on random data, and its record was verified. What the method "
        "takes of each example in a batch, whole gradients, carriers, projections or differences "
        "of losses, is within 1e-6 of what that example alone gives by torch.autograd. Settings "
        "are small ones, and `gep` draws its basis at random, as it needs no public data so."
    )
    rows = [
        f"| {name}{f' {marks[notes[name]]}' if name in notes else ''} | "
        + " | ".join(TRAINS if why is None else marks[why] for why in row.values())
        + " |"
        for name, row in refused.items()
    ]
    head = [
        f"| architecture | {' | '.join(METHODS)} |",
        f"| --- |{' :-: |' * len(METHODS)}",
    ]
    below = [f"- {mark} {reason.rstrip('.')}." for reason, mark in marks.items()]
    return "\n".join(["", said, "", *head, *rows, *([""] if below else []), *below])


def _power(error: float) -> str:
    return "0" if error == 0 else f"< 1e{math.floor(math.log10(error)) + 1:d}"
