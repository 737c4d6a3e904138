"""What hooks add to autograd's graph, and what a module that is run again must leave as it was."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dpexp.types import ConfigError


class Kept(torch.autograd.Function):
    """Keeps a tensor as autograd keeps what its own nodes need for backward.

    So a layer's input goes where activation checkpointing sends what it drops: it is computed
    again when backward asks for it.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, tensor: Tensor) -> Tensor:
        """Return an empty tensor whose node has the tensor; the anchor makes autograd want one."""
        ctx.save_for_backward(tensor)
        return torch.empty_like(anchor)


def keep(anchor: Tensor, x: Tensor) -> Tensor:
    """Keep a tensor for `read`, until the graph goes or what is returned here."""
    # Not its node alone, which before torch 2.13 lets go of what it saved.
    return Kept.apply(anchor, x.detach())


def read(name: str, kept: Any) -> Tensor:
    """Return the tensor that `keep` kept of a layer.

    Raises:
        ConfigError: naming the layer, if the model has changed it in place.
    """
    try:
        (x,) = kept.grad_fn.saved_tensors
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        raise ConfigError(
            f"Expected the input of layer {name!r} to stay unchanged; the model changed it in "
            "place before backward reached the layer. Make that operation out of place."
        ) from None
    return x


class Start(torch.autograd.Function):
    """Starts a graph at a tensor that needs none yet, without a copy.

    A leaf that requires gradients may not be changed in place, as ReLU(inplace=True) would do.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, tensor: Tensor) -> Tensor:
        """Return the tensor itself, marked as changed; the anchor makes autograd want it."""
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        """End here: nothing before it is trained."""
        return None, None


class Boundary(torch.autograd.Function):
    """Stands behind a module with several outputs, whose gradients arrive together.

    An output that the module goes on from within has a gradient as an output of its own: hooks on
    the tensor itself would see both. What the loss does not use has a gradient of zero.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, on_backward: Any, *outputs: Tensor) -> tuple[Tensor, ...]:
        """Return copies of the outputs, so that each may be changed in place."""
        ctx.on_backward = on_backward
        return tuple(each.clone() for each in outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Hand the outputs' gradients on."""
        ctx.on_backward(gradients)
        return (None, None, *gradients)


def standing_alone(module: nn.Module, output: Tensor) -> Tensor:
    """Return a module's output as no view of another tensor, without a copy.

    torch.nn.functional.linear returns a view where rows have several axes. What changes a view in
    place, as ReLU(inplace=True) does, gives it a new node, and a hook on the old one is not called.
    What torch's own layers return nothing else holds; of other code's output a view stays one, as
    autograd would not notice that what it saved is changed.
    """
    is_torchs = str(getattr(module.forward, "__module__", "")).startswith("torch.nn.")
    if not is_torchs or not output._is_view():
        return output
    return torch.ops.aten._unsafe_view(output, output.shape)


SPECTRAL = frozenset({"_SpectralNorm", "SpectralNorm"})
"""torch's classes that estimate a weight's spectral norm, a little better with every call."""


class Before(NamedTuple):
    """What a module that is run again must leave as it was.

    Attributes:
        generator: the state of the generator that it would draw from.
        buffers: versions of its buffers, by name.
    """

    generator: Tensor
    buffers: dict[str, int]

    @classmethod
    def of(cls, module: nn.Module) -> Before:
        """Note a module's state."""
        device = next(module.parameters()).device
        is_cuda = device.type == "cuda"
        generator = torch.cuda.get_rng_state(device) if is_cuda else torch.get_rng_state()
        return cls(generator, {name: each._version for name, each in module.named_buffers()})

    def require_repeatable(self, name: str, module: nn.Module) -> None:
        """Refuse a module that would come to something else if it were run again.

        Raises:
            ConfigError: if it drew random numbers or changed a buffer.
        """
        now, kind = Before.of(module), type(module).__name__
        moved = [
            buffer for buffer, version in now.buffers.items() if self.buffers[buffer] != version
        ]
        what = f"change its buffer {moved[0]!r}" if moved else "draw random numbers"
        if moved or not torch.equal(self.generator, now.generator):
            raise ConfigError(
                f"Expected layer {name!r}, a {kind} without a rule, not to {what}: its gradients "
                f"are found by running it again. {_instead(module, is_buffer=bool(moved))}"
            )


def _instead(module: nn.Module, *, is_buffer: bool) -> str:
    """Return what to do about a module that would come to something else if it were run again."""
    kind = type(module).__name__
    if not is_buffer:
        return f"Set its dropout to 0, or register a rule by @dpexp.grad_sample.rule({kind})."
    hooks = (hook for each in module.modules() for hook in each._forward_pre_hooks.values())
    kinds = {type(each).__name__ for each in (*module.modules(), *hooks)}
    if kinds & SPECTRAL:
        return (
            "Take torch.nn.utils.parametrizations.weight_norm in the place of spectral_norm, or "
            "hand over the model in eval mode, in which the norm's estimate stays as it is."
        )
    return (
        "Hold the buffer fixed, as a model does that is handed over in eval mode if it moves in "
        "training alone, or freeze the layer."
    )
