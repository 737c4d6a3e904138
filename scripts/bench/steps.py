"""The steps that are timed: plain autograd's, the suite's own, and the peers'."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from dpexp.data.augmentation import Augmentation
from dpexp.distributed.ranks import Ranks
from dpexp.grad_sample import Tape
from dpexp.kernels import fast_kernels
from dpexp.methods.dp_grape import DPGRAPE
from dpexp.methods.dp_zo import DPZO
from dpexp.methods.lsg import LSG
from dpexp.methods.rgp import RGP
from dpexp.methods.rgp_core import CoreRGP
from dpexp.models.matrices import matrix_parameters
from dpexp.privacy import whole_batch
from dpexp.privacy.clipping import Clipping
from dpexp.privacy.privatize import FLAT
from dpexp.training.gradient import PrivateGradient
from dpexp.types import Batch, Method

Run = Callable[[], None]
NewModel = Callable[[], nn.Module]
UNIT = "non-private (autograd)"
FLOOR = "forward and input gradients alone"


@dataclass(frozen=True)
class Step:
    """One way to get a gradient.

    Attributes:
        run: takes the whole step.
        once: takes what of it is paid once a logical batch; None for peers.
    """

    run: Run
    once: Run | None = None


@dataclass(frozen=True)
class Case:
    """A model, a batch, and the steps to take with them.

    Attributes:
        title: names them.
        build: gives every step's builder by name, `UNIT` among them, for a number of examples.
        batch: how many examples, unless the command line says.
        goals: of the unit, on a CPU: time and memory, by step.
        notes: what a reader should know besides.
        precision: "float32", "bfloat16", or "auto" for which of both the device has units for.
    """

    title: str
    build: Callable[[int, torch.device], Mapping[str, Callable[[], Step]]]
    batch: int
    goals: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    notes: str = ""
    precision: str = "float32"


def whole(examples: Any) -> Batch:
    """Return all examples as one batch."""
    return examples.batch(torch.arange(len(examples)))


def private_step(
    method: Method,
    examples: Any,
    new_model: NewModel,
    device: torch.device,
    public: Any = None,
    augmentation: Augmentation | None = None,
    clipping: Clipping = FLAT,
) -> Step:
    """Make the suite's own private step: q = 1, so that every step sees the whole batch.

    It is one of many: each goes on from the state before, with weights that have moved since the
    start, so that from the second on there is an update to decompose. What a method finds in public
    examples before its first step is no part of it.
    """
    model, num = new_model(), len(examples)
    state = method.start(model)
    mechanism = whole_batch(num, method.releases(state, 1.0), noise_multiplier=1.0)
    ranks = Ranks(0, 1, device)
    recipe = {"augmentation": augmentation, "clipping": clipping}
    gradient = PrivateGradient(
        model, method, mechanism, ranks, micro_batch=num, public=public, **recipe
    )
    if public is not None:
        state = gradient(state, examples, 0).state
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.01)
    nobody = replace(mechanism, batch_size=1e-12)  # a draw that is always empty
    empty = PrivateGradient(new_model(), method, nobody, ranks, micro_batch=num, **recipe)

    def step() -> None:
        nonlocal state
        state = gradient(state, examples, 0).state

    return Step(step, lambda: empty(state, examples, 0))


def fast(step: Step) -> Step:
    """Return a step with the products and convolutions that the suite's own have on some CPUs."""
    return Step(fast_kernels()(step.run))


def rgp(carriers: str, rank: int = 16, head_factor: float = 0.01) -> RGP:
    """Return RGP as in Table 3's setting."""
    return RGP(
        rank=rank,
        carriers=carriers,
        power_iterations=1,
        warm_up_steps=0,
        decompose="update",
        residual=True,
        head_factor=head_factor,
        head="head",
    )


def core(rank: int = 16) -> CoreRGP:
    """Return RGP with a core, its bases from random examples."""
    return CoreRGP(rank, 0.5, 0.1, "head", public_examples=8, public_labels="random")


def lsg(rank: int = 16, head_factor: float = 0.01) -> LSG:
    """Return LSG at RGP's rank, half of it frozen."""
    return LSG(
        rank=rank,
        p=0.5,
        mask="importance",
        start_epoch=0,
        power_iterations=1,
        head_factor=head_factor,
        head="head",
        dataset_size=1,
        batch_size=1,
    )


def grape(rank: int = 16, train: str = "all") -> DPGRAPE:
    """Return DP-GRAPE with a projection a step, and its moments beside the release."""
    return DPGRAPE(rank, 1, "adam", (0.9, 0.999), 1e-8, train, "head")


def zo() -> DPZO:
    """Return DP-ZO with one direction, in every parameter."""
    return DPZO(1, 1e-3, "gaussian", "all", "head")


def nonprivate_step(examples: Any, new_model: NewModel) -> Step:
    """Make plain autograd's step."""
    model, batch = new_model(), whole(examples)

    def step() -> None:
        model.zero_grad()
        F.cross_entropy(model(batch.inputs), batch.targets).backward()

    return Step(step)


def floor_step(examples: Any, new_model: NewModel) -> Step:
    """Make what all that train every matrix need: forward, and what flows back between layers."""
    model, batch = new_model(), whole(examples)
    tape = Tape(model, matrix_parameters(model, "head"), lambda *_: None)

    def step() -> None:
        tape.expect(len(batch))
        tape.backward(F.cross_entropy(model(batch.inputs), batch.targets))

    return Step(step)


def opacus_step(examples: Any, new_model: NewModel, is_ghost: bool) -> Step:
    """Make Opacus's step: hooks that hold per-example gradients, or ghost clipping."""
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping

    batch = whole(examples)
    if not is_ghost:
        model = GradSampleModule(new_model(), loss_reduction="sum")
        trained = [p for p in model.parameters() if p.requires_grad]

        def step() -> None:
            model.zero_grad()
            logits = model(batch.inputs)
            F.cross_entropy(logits, batch.targets, reduction="sum").backward()
            clip_and_noise([p.grad_sample for p in trained])

        return Step(step)

    ghost = GradSampleModuleFastGradientClipping(
        new_model(), loss_reduction="sum", max_grad_norm=1.0, use_ghost_clipping=True
    )

    def ghost_step() -> None:
        ghost.zero_grad()
        losses = F.cross_entropy(ghost(batch.inputs), batch.targets, reduction="none")
        losses.sum().backward(retain_graph=True)
        ghost.zero_grad()
        weights = ghost.get_clipping_coef()
        ghost.disable_hooks()
        (weights * losses).sum().backward()
        ghost.enable_hooks()
        for parameter in ghost.parameters():
            if parameter.requires_grad:
                parameter.grad += torch.randn_like(parameter)

    return Step(ghost_step)


def vmap_step(examples: Any, new_model: NewModel) -> Step:
    """Make torch.func's step: vmap over grad."""
    model, batch = new_model(), whole(examples)
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, weights, (x[None],)), y[None])

    per_example = vmap(grad(loss), in_dims=(None, 0, 0))

    def step() -> None:
        each = per_example(parameters, batch.inputs, batch.targets)
        clip_and_noise(list(each.values()))

    return Step(step)


@torch.no_grad()
def clip_and_noise(each: list[Tensor]) -> list[Tensor]:
    """Finish a peer's step from its per-example gradients, each [n, ...]."""
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in each]).norm(dim=0)
    weights = (1.0 / norms).clamp(max=1.0)
    sums = [torch.tensordot(weights, g, dims=1) for g in each]
    return [total + torch.randn_like(total) for total in sums]
