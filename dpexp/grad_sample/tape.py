"""Hooks that pass every layer's input and output gradient to the method during backward."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from dpexp.grad_sample.freezing import freeze, thaw, trains
from dpexp.grad_sample.rules import known_parameters, layer_grads_of
from dpexp.types import ConfigError, LayerGrads

MIXING = (nn.modules.batchnorm._BatchNorm,)


class _Kept(torch.autograd.Function):
    """Saves a tensor for backward as autograd's own nodes do.

    So activation checkpointing applies to a layer's input: it is dropped, and recomputed when
    backward needs it.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, tensor: Tensor) -> Tensor:
        """Return an empty tensor whose node saves `tensor`; `anchor` requires gradients."""
        ctx.save_for_backward(tensor)
        return torch.empty_like(anchor)


class _Start(torch.autograd.Function):
    """Makes a tensor require gradients without a copy and without making it a leaf.

    A leaf that requires gradients may not be changed in place, as ReLU(inplace=True) would do.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, tensor: Tensor) -> Tensor:
        """Return the tensor itself, marked as changed in place; `anchor` requires gradients."""
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        """Return no gradients: nothing before this tensor is trained."""
        return None, None


class Tape:
    """Freezes a model and hooks the layers of given parameters.

    While the tape is attached no parameter requires gradients, so autograd computes only the
    gradients between layers. Each hooked layer's (input, output gradient) is passed on once per
    micro-batch and not kept.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Collection[str],
        on_layer: Callable[[str, LayerGrads], None],
    ) -> None:
        """Attach the hooks.

        Args:
            model: any module; only `requires_grad` is changed.
            parameters: names, as in `named_parameters`, whose layers are hooked.
            on_layer: called with a layer's name and its gradients.

        Raises:
            ConfigError: for a layer without a rule, a layer that mixes examples, or shared
                parameters; the message names it.
        """
        self._on_layer = on_layer
        self._num_examples = 0
        self._awaited: set[str] = set()
        self._used: set[str] = set()
        self._inputs: dict[str, Tensor] = {}  # results of `_Kept`
        self._anchor = torch.empty(0, requires_grad=True)
        self._is_backward = False
        self._layers = hooked_layers(model, parameters)
        self._own: dict[str, tuple[str, ...]] = {}  # each layer's trained parameters
        for parameter in parameters:
            layer, _, own = parameter.rpartition(".")
            self._own[layer] = (*self._own.get(layer, ()), own)
        self._trained = [p for p in model.parameters() if p.requires_grad]
        self.attach()

    def attach(self) -> None:
        """Freeze the parameters and register the hooks, also again after `detach`."""
        freeze(self._trained)
        self._hooks = [
            layer.register_forward_hook(partial(self._after_forward, name), with_kwargs=True)
            for name, layer in self._layers.items()
        ]

    def expect(self, num_examples: int) -> None:
        """Set the number of examples of the next micro-batch."""
        self._num_examples = num_examples
        self._used = set()
        self._inputs = {}
        self._awaited = set(self._layers)

    def backward(self, loss: Tensor) -> None:
        """Run backward, which calls the hooks and recomputes checkpointed activations.

        Raises:
            ConfigError: naming the layers that do not contribute to the loss.
        """
        self._is_backward = True
        try:
            loss.backward()
        finally:
            self._is_backward = False
        self.check_complete()

    def check_complete(self) -> None:
        """Check that backward reached every hooked layer.

        Raises:
            ConfigError: naming the layers that do not contribute to the loss.
        """
        if self._awaited:
            raise ConfigError(
                f"Expected every trainable layer to take part in the loss; {sorted(self._awaited)} "
                "did not. Freeze what the model does not use."
            )

    def detach(self) -> None:
        """Remove the hooks and make the parameters trainable by autograd again."""
        for hook in self._hooks:
            hook.remove()
        thaw(self._trained)

    def __enter__(self) -> Tape:
        """Return the tape; leaving the context detaches it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Detach."""
        self.detach()

    def _after_forward(
        self,
        name: str,
        layer: nn.Module,
        args: tuple[Tensor, ...],
        kwargs: Mapping[str, Tensor],
        output: Tensor,
    ) -> None:
        if not torch.is_grad_enabled():
            return
        inputs = [*args, *kwargs.values()]
        if len(inputs) != 1 or not all(isinstance(value, Tensor) for value in (*inputs, output)):
            kinds = ", ".join(type(value).__name__ for value in inputs)
            raise ConfigError(
                f"Expected layer {name!r} to take one tensor and return one, as its rule assumes; "
                f"it took {kinds or 'nothing'} and returned {type(output).__name__}. Freeze it, or "
                "train a layer within it."
            )
        (x,) = inputs
        if self._is_backward:  # recomputation of a checkpointed part
            self._start_graph(output)
            self._keep(x)
            return
        if name in self._used:
            raise ConfigError(
                f"Expected layer {name!r} to be used once in a forward pass; it was used again. "
                "Give each use a layer of its own, or freeze it."
            )
        self._used.add(name)
        self._start_graph(output)
        # Not in the hook's closure, which lives as long as the graph; the input is freed earlier.
        self._inputs[name] = self._keep(x)
        output.register_hook(partial(self._after_backward, name, layer))

    def _start_graph(self, output: Tensor) -> None:
        if not output.requires_grad:  # nothing before this layer is trained
            _Start.apply(self._anchor, output)

    def _keep(self, x: Tensor) -> Tensor:
        # Return the tensor, not its node: before torch 2.13 the node alone frees what it saved.
        return _Kept.apply(self._anchor, x.detach())

    def _after_backward(self, name: str, layer: nn.Module, dh: Tensor) -> None:
        kept: Any = self._inputs.pop(name)
        try:
            (x,) = kept.grad_fn.saved_tensors
        except RuntimeError as error:
            if "modified by an inplace operation" not in str(error):
                raise
            raise ConfigError(
                f"Expected the input of layer {name!r} to stay unchanged; the model changed it in "
                "place before backward reached the layer. Make that operation out of place."
            ) from None
        if len(x) != self._num_examples or len(dh) != self._num_examples:
            raise ConfigError(
                f"Expected layer {name!r} to see {self._num_examples} examples; it saw "
                f"{len(x)} rows in and {len(dh)} out. The first axis must be the example."
            )
        self._awaited.discard(name)
        layer_grads = layer_grads_of(name, layer, *map(_single, (x, dh)))
        own = tuple(key for key in layer_grads.parameters if key in self._own[name])
        self._on_layer(name, replace(cast(Any, layer_grads), parameters=own))


def _single(tensor: Tensor) -> Tensor:
    """Convert half precision, from autocast, to float32, which norms and sums need."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def hooked_layers(model: nn.Module, parameters: Collection[str]) -> dict[str, nn.Module]:
    """Return the layers of the named parameters, by name, after checking that each has a rule.

    Raises:
        ConfigError: naming a layer that mixes examples or has no rule, or a parameter that the rule
            does not cover, that is shared, or that the model's author froze.
    """
    _refuse_mixing(model)
    _refuse_sharing(model)
    modules = dict(model.named_modules())
    layers = {}
    for parameter in parameters:
        name = parameter.rpartition(".")[0]
        layer = modules[name]
        known = known_parameters(name, layer, parameter)
        own = parameter.removeprefix(f"{name}.")
        if own not in known:
            raise ConfigError(
                f"Expected a rule for every parameter that trains; {parameter!r} of the "
                f"{type(layer).__name__} {name} has none. Remove the hook that makes weights of it "
                "(weight_norm, spectral_norm), or freeze it."
            )
        if not trains(model.get_parameter(parameter)):
            raise ConfigError(
                f"Expected the method to train no parameter that the model froze; it trains "
                f"{parameter!r}, whose requires_grad is False. Leave it out of `trainable`, or "
                "let the model train it."
            )
        layers[name] = layer
    return layers


def _refuse_mixing(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, MIXING) or getattr(module, "track_running_stats", False):
            raise ConfigError(
                f"Expected layers that keep examples apart; {name} is a {type(module).__name__}, "
                "whose statistics mix them, so that no example's influence is bounded. "
                "Use nn.GroupNorm instead."
            )


def _refuse_sharing(model: nn.Module) -> None:
    places: list[tuple[int, int, int, str, nn.Parameter]] = []
    for order, (name, parameter) in enumerate(model.named_parameters(remove_duplicate=False)):
        start = parameter.data_ptr()  # compare memory; an empty or meta tensor has none
        span = (start, start + _extent(parameter)) if start else (-id(parameter),) * 2
        places.append((*span, order, name, parameter))
    near: list[tuple[int, int, int, str, nn.Parameter]] = []
    found: list[tuple[int, int, str, str]] = []
    for place in sorted(places, key=lambda place: place[:3]):
        near = [other for other in near if other[1] > place[0] or other[4] is place[4]]
        for other in near:
            if other[4] is place[4] or _overlap(other[4], place[4]):
                first, second = sorted([place, other], key=lambda place: place[2])
                found.append((second[2], first[2], second[3], first[3]))
        near.append(place)
    if found:  # report the first in the model's order
        _, _, again, first_of_it = min(found)
        raise ConfigError(
            f"Expected every parameter in one place; {again!r} is {first_of_it!r} again, or a part "
            "of it. Untie the weights."
        )


def _extent(tensor: Tensor) -> int:
    """Return the number of bytes from a tensor's first to its last."""
    steps = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (steps + 1) * tensor.element_size()


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors share a byte; views of a matrix may interleave without that."""
    start = min(one.data_ptr(), other.data_ptr())
    end = max(tensor.data_ptr() + _extent(tensor) for tensor in (one, other))
    seen = torch.zeros(end - start, dtype=torch.uint8)

    def of(tensor: Tensor) -> Tensor:
        size = tensor.element_size()
        strides = [size * stride for stride in tensor.stride()]
        at = tensor.data_ptr() - start
        return seen.as_strided((*tensor.shape, size), (*strides, 1), at)

    of(one).fill_(1)
    return bool(of(other).any())
