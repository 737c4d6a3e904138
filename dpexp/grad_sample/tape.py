"""Hooks that hand every layer's input and output gradient to the method, as backward reaches it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from dpexp.grad_sample.adding import Adding, formed, gradients_by_rule, single
from dpexp.grad_sample.attention import Attentions
from dpexp.grad_sample.freezing import freeze, thaw
from dpexp.grad_sample.graph import Before, Boundary, Start, keep, read, standing_alone
from dpexp.grad_sample.hooking import hooked_layers, is_untried, taken_apart
from dpexp.grad_sample.modules import fingerprint, flattened, gradients_of
from dpexp.grad_sample.reading import Readings
from dpexp.grad_sample.shared_inputs import (
    axis_of,
    is_for_all,
    is_trial,
    require_tried_once_for_all,
    require_tried_with_rows,
)
from dpexp.types import ConfigError, LayerGrads, counted, full_name


class Use(NamedTuple):
    """One call of a module in a forward pass."""

    name: str
    number: int


class Tape:
    """Freezes a model and hooks the layers that hold some of its parameters.

    While the tape is attached no parameter requires gradients, so autograd computes only what flows
    between layers. Each hooked layer's (input, output gradient) is passed on once per micro-batch
    and not kept. Where a layer is called several times, or a parameter stands in several places,
    the gradients of all uses are passed on as their sum, when backward is done.

    Attributes:
        repeated: modules that were called once for all examples; their outputs are repeated.
        apart: modules whose outputs have not the examples on their first axis.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Collection[str],
        on_layer: Callable[[str, LayerGrads], None],
    ) -> None:
        """Attach the hooks.

        Args:
            model: any module; its state is not changed except for `requires_grad`.
            parameters: names, as in `named_parameters`, whose layers are to be hooked.
            on_layer: called with the layer's name and its gradients.

        Raises:
            ConfigError: for a layer that mixes examples, or parameters that overlap; the message
                names it.
        """
        self._model = model
        self._num_examples, self._views = 0, 1
        self._shape: tuple[int, ...] = ()
        self._awaited: set[str] = set()
        self._uses: dict[str, int] = {}
        self._inputs: dict[Use, list[Any]] = {}  # what `Kept` gave, and what is no tensor
        # Of modules without a rule, with what they are called with.
        self._before: dict[str, tuple[Before, tuple[Any, ...], dict[str, Any]]] = {}
        self._sums: dict[Use, list[tuple[Tensor, float]]] = {}
        self._readings = Readings(self._take_read)
        self._takes: dict[str, int] = {}  # how often a parameter of a module has gradients
        self.repeated: set[str] = set()
        self.apart: set[str] = set()
        self._anchor = torch.empty(0, requires_grad=True)
        self._is_backward = False
        self._is_paused = False  # while a module is run again for its gradients
        self._layers = hooked_layers(model, parameters)
        apart = taken_apart(model, self._layers)
        self._attentions = Attentions(apart, self._sees_nothing, self.apart.add)
        self._adding = Adding(model, self._layers, on_layer)
        self._trained = [p for p in model.parameters() if p.requires_grad]
        self.attach()

    def attach(self) -> None:
        """Freeze the parameters and put the hooks on, as after a `detach`."""
        freeze(self._trained)
        self._hooks = []
        for name, hooked in self._layers.items():
            module = hooked.module
            after = self._after_rule if hooked.has_rule else self._after_module
            hook = module.register_forward_hook(partial(after, name), with_kwargs=True)
            self._hooks.append(hook)
            if not hooked.has_rule:
                # Before the module's own such hooks, which see what it was called with again.
                before = partial(self._before_module, name)
                hook = module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
                self._hooks.append(hook)
                close = partial(self._readings.close, name)
                hook = module.register_forward_hook(close, prepend=True, always_call=True)
                self._hooks.append(hook)
        self._attentions.replace()

    def expect(self, num_examples: int, views: int = 1, shape: Sequence[int] = ()) -> None:
        """Say how many examples the next micro-batch holds.

        Args:
            num_examples: rows of the model's input.
            views: how many of them, one after another, are one example's: their gradients add up.
            shape: of one row.
        """
        self._num_examples, self._views, self._shape = num_examples, views, tuple(shape)
        self._uses, self._inputs, self._before, self._sums, self._takes = {}, {}, {}, {}, {}
        self._awaited = set(self._layers)
        self._adding.forget()
        self._readings.forget()

    def backward(self, loss: Tensor) -> None:
        """Run backward: hooks are called, and what was checkpointed is computed again.

        Raises:
            ConfigError: naming the layers that took no part in the loss.
        """
        if not loss.requires_grad:
            raise ConfigError(
                "Expected a loss that depends on the weights; the model gives outputs without a "
                "gradient, as under torch.no_grad, inference_mode or detach. Leave that out."
            )
        self._is_backward = True
        try:
            loss.backward()
        finally:
            self._is_backward = False
        self.check_complete()

    def check_complete(self) -> None:
        """Pass on what several uses add up to, and refuse a backward pass that missed a layer.

        Raises:
            ConfigError: naming the layers that took no part in the loss.
        """
        # A use of tied weights may be left out where another takes part.
        missed = {name for name in self._awaited if not self._adding.has_part(name)}
        if missed:
            words = sorted(name or "the model itself" for name in missed)
            if self.apart & {self._layers[name].owner for name in missed}:
                raise ConfigError(
                    f"Expected the examples of a batch on the first axis of every trainable layer; "
                    f"{words} took them in turn, or on another axis. Call each on the whole batch, "
                    "or freeze it."
                )
            raise ConfigError(
                f"Expected every trainable layer to take part in the loss; {words} "
                "did not. Freeze what the model does not use."
            )
        for name, own in self._readings.unmet():  # no part in the loss, where others have one
            held = self._layers[name].module.get_parameter(own)
            self._take_read(name, own, held.new_zeros(self._num_examples, *held.shape))
        self._adding.finish()

    @property
    def not_called(self) -> set[str]:
        """Name the hooked modules whose parameters no module read that was called."""
        read = {full for name in self._uses for full in self._layers[name].names.values()}
        return {
            hooked.owner
            for name, hooked in self._layers.items()
            if name not in self._uses and not read.issuperset(hooked.names.values())
        }

    def detach(self) -> None:
        """Remove the hooks and make the parameters trainable by autograd again."""
        self._readings.close_all()
        for hook in self._hooks:
            hook.remove()
        self._attentions.put_back()
        thaw(self._trained)

    def __enter__(self) -> Tape:
        """Use as a context manager; leaving it detaches."""
        return self

    def __exit__(self, *_: object) -> None:
        """Detach."""
        self.detach()

    def _sees_nothing(self) -> bool:
        return self._is_paused or not torch.is_grad_enabled()

    def _after_rule(
        self,
        name: str,
        layer: nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        output: Any,
    ) -> Tensor | None:
        if self._sees_nothing():
            return None
        taken = [*args, *kwargs.values()]
        if len(taken) != 1 or not all(isinstance(each, Tensor) for each in (*taken, output)):
            kinds = ", ".join(type(each).__name__ for each in taken)
            raise ConfigError(
                f"Expected layer {name!r} to take one tensor and return one, as its rule assumes; "
                f"it took {kinds or 'nothing'} and returned {type(output).__name__}. Freeze it, or "
                "train a layer within it."
            )
        if self._is_mapped(name, [output]):
            return None
        (x,), given = taken, output
        if is_for_all(layer, [x], self._num_examples):
            self._require_tried(name)
            require_tried_once_for_all(name, layer)
            self.repeated.add(self._layers[name].owner)
            x, output = (self._for_each_example(each) for each in (x, output))
        self._note_rows(name, output)
        self._start_graph(output)
        output = standing_alone(layer, output)
        kept: list[Any] = [keep(self._anchor, x)]
        if not self._is_backward:  # else a checkpointed part, computed again
            use = self._next_use(name)
            # Kept here, not by the hook, which lives as long as the graph: the layer is done
            # earlier.
            self._inputs[use] = kept
            output.register_hook(partial(self._after_rules_backward, use))
        return None if output is given else output

    def _before_module(
        self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        if self._sees_nothing():
            return
        self._before[name] = Before.of(module), args, dict(kwargs)
        if self._num_examples and not is_untried(self._model):
            self._readings.begin(name, module, tuple(self._layers[name].names), self._num_examples)

    def _after_module(
        self,
        name: str,
        module: nn.Module,
        _: tuple[Any, ...],
        __: Mapping[str, Any],
        output: Any,
    ) -> Any:
        if self._sees_nothing():
            return None
        before, args, kwargs = self._before.pop(name)
        is_mapped = self._is_mapped(name, flattened(output)[0])
        use = None if is_mapped or self._is_backward else self._next_use(name)
        times_read = self._readings.ended(name, None if use is None else use.number)
        if use is not None:
            self._takes[name] = self._takes.get(name, 0) + (times_read or 1)
            if times_read:
                self._note_tried(use, module, output)
        if is_mapped or times_read:
            return None
        before.require_repeatable(name, module)
        leaves, spec = flattened((args, kwargs))
        kept = [keep(self._anchor, leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        given, form = flattened(output)
        if any(isinstance(each, PackedSequence) for each in (*args, *kwargs.values())):
            self.apart.add(self._layers[name].owner)  # by time, not by example
        floating = [place for place, leaf in enumerate(given) if _is_floating(leaf)]
        self._require_tried(name)
        if is_for_all(module, leaves, self._num_examples):
            require_tried_once_for_all(name, module)
            self.repeated.add(self._layers[name].owner)
            for place in floating:
                given[place] = self._for_each_example(given[place])
        for order, place in enumerate(floating):
            self._note_rows(name, given[place].movedim(axis_of(module, order), 0))

        def on_backward(gradients: tuple[Tensor, ...]) -> None:
            if use is not None:
                self._after_modules_backward(use, spec, gradients)

        if use is not None:
            self._inputs[use] = kept
            self._sums[use] = [
                fingerprint(module, order, given[place], self._num_examples)
                for order, place in enumerate(floating)
            ]
        if len(floating) == 1 and given[floating[0]].requires_grad:
            given[floating[0]] = standing_alone(module, given[floating[0]])
            if use is not None:
                given[floating[0]].register_hook(lambda dh: on_backward((dh,)))
        else:
            copies = Boundary.apply(self._anchor, on_backward, *(given[p] for p in floating))
            for place, copy in zip(floating, copies, strict=True):
                given[place] = copy
        return pytree.tree_unflatten(given, form)

    def _is_mapped(self, name: str, outputs: list[Any]) -> bool:
        """Return, and note, whether a module is called on single examples by torch.vmap."""
        is_mapped = any(is_functorch_wrapped_tensor(o) for o in outputs if isinstance(o, Tensor))
        if is_mapped:
            self.apart.add(self._layers[name].owner)
        return is_mapped

    def _require_tried(self, name: str) -> None:
        if is_untried(self._model):
            raise ConfigError(
                f"Expected a model that can be tried before its first step; this one cannot, and "
                f"which inputs of {name or 'the model itself'!r} hold examples stays open. "
                "Freeze it, or let the model take examples of the task's shape."
            )

    def _note_tried(self, use: Use, module: nn.Module, output: Any) -> None:
        """Note the rows that a module has in a trial, by which others are refused in a step."""
        rows = [len(each) for each in flattened(output)[0] if _is_floating(each) and each.ndim]
        if is_trial() and rows:
            each = rows[0] // self._num_examples
            require_tried_with_rows(use.name, module, each, use.number, self._shape)

    def _note_rows(self, name: str, output: Tensor) -> None:
        n = self._num_examples  # rows that are chosen by what they hold may be none
        if output.ndim == 0 or len(output) % max(n, 1) or len(output) < min(n, 1):
            self.apart.add(self._layers[name].owner)

    def _next_use(self, name: str) -> Use:
        self._uses[name] = self._uses.get(name, 0) + 1
        return Use(name, self._uses[name])

    def _for_each_example(self, tensor: Tensor) -> Tensor:
        """Repeat what is the same for all examples, so that each has a gradient of its own."""
        if len(tensor) != 1:
            tensor = tensor[None]
        return tensor.expand(self._num_examples, *tensor.shape[1:])

    def _start_graph(self, output: Tensor) -> None:
        if not output.requires_grad:  # nothing before it is trained: the graph starts here
            Start.apply(self._anchor, output)

    def _after_rules_backward(self, use: Use, dh: Tensor) -> None:
        name, hooked = use.name, self._layers[use.name]
        x = single(read(name, self._inputs.pop(use)[0]))
        rows = len(x) // max(self._num_examples, 1)
        if rows > 1:
            self._require_tried(name)
        if self._num_examples:
            require_tried_with_rows(name, hooked.module, rows, use.number, self._shape)
        known = rows > 0 or self._num_examples == 0
        if len(x) != rows * self._num_examples or len(dh) != len(x) or not known:
            raise ConfigError(
                f"Expected layer {name!r} to see {counted(self._num_examples, 'example')}; it "
                f"saw {counted(len(x), 'row')} in and {len(dh)} out. The first axis must be the "
                "example. Where rows are chosen by what they hold, call it on all of them and "
                "choose among its outputs."
            )
        self._awaited.discard(name)
        parts = gradients_by_rule(name, hooked, x, single(dh), rows * self._views)
        for layer, grads, wanted in parts:
            self._adding.take(layer, grads, wanted, self._uses[name])

    def _after_modules_backward(self, use: Use, spec: Any, gradients: tuple[Tensor, ...]) -> None:
        name, hooked = use.name, self._layers[use.name]
        leaves = [
            single(read(name, each)) if isinstance(each, Tensor) else each
            for each in self._inputs.pop(use)
        ]
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        dh = [single(each) for each in gradients]
        self._awaited.discard(name)
        if self._num_examples and axis_of(hooked.module, 0) == 0:
            rows = len(dh[0]) // self._num_examples
            require_tried_with_rows(name, hooked.module, rows, use.number, self._shape)
        self._is_paused = True
        try:
            with torch.autocast(self._anchor.device.type, enabled=False):
                found = gradients_of(
                    hooked.module,
                    tuple(hooked.names),
                    args,
                    kwargs,
                    dh,
                    self._num_examples,
                    self._sums.pop(use),
                )
        finally:
            self._is_paused = False
        by_layer: dict[str, dict[str, str]] = {}
        for own in hooked.names:
            layer, _, parameter = full_name(name, own).rpartition(".")
            by_layer.setdefault(layer, {})[parameter] = own
        for layer, names in by_layer.items():
            grads = formed({each: found[own] for each, own in names.items()}, self._views)
            wanted = {each: hooked.names[own] for each, own in names.items()}
            self._adding.take(layer, grads, wanted, self._takes[name])

    def _take_read(self, name: str, own: str, gradients: Tensor) -> None:
        self._awaited.discard(name)
        self._adding.take_read(name, own, gradients, self._views, self._takes[name])


def _is_floating(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()
