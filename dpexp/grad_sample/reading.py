"""Parameters that a module reads itself, and adds to or multiplies with what it has of examples.

A class token, a table of positions, a layer's scale and a bias of attention stand in modules that
have no rule, as a transformer does as a whole. To run such a module again for its gradients would
cost as much as the rest of a step. But an operation that takes its operands number by number, as
x + w does, repeats w for every row of x. So every row is given a copy, and autograd's gradient of
the copies is every row's own. What is made of parameters alone before that, as w.view(1, -1, 1, 1)
or table[index], is undone by autograd, for every example by itself.

A module that reads a parameter in any other way is run again (`modules.gradients_of`). A run's
trial decides which of the two it is: the rows must be an example's in batches of every size, and
the gradients are compared with autograd's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial, reduce
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn import functional
from torch.utils import _pytree as pytree

from dpexp.grad_sample.shared_inputs import is_trial

Note = tuple[Any, ...]
"""How a parameter was read: what it was taken by, and the rows an example had."""

Reads = dict[int, tuple[Note, ...]]

_READ: WeakKeyDictionary[nn.Module, Reads | None] = WeakKeyDictionary()
"""By module, what its trial has seen it read in each of its calls; None: it is run again."""

BY_NUMBER = frozenset(
    "add sub subtract rsub mul multiply div divide true_divide truediv pow maximum minimum where "
    "addcmul addcdiv lerp".split()
)
"""Operations that take their operands number by number, repeating what is shorter."""

REPEATING = frozenset({"expand", "expand_as", "repeat", "broadcast_to"})
"""Operations that repeat a tensor, and do nothing else."""

TOLD = frozenset(
    "__float__ __int__ __bool__ __index__ __format__ __repr__ item tolist numpy __array__".split()
)
"""Operations that tell numbers, and have no gradient."""

CASTING = frozenset({"to", "type_as"})
"""Operations that take of a second tensor no number."""


class Copies(torch.autograd.Function):
    """Gives a copy of a tensor to every row, and its gradients to whoever asked for them."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, on_backward: Callable[[Tensor], None], value: Tensor, rows: int
    ) -> Tensor:
        """Return [rows, ...] of a value [1, ...] without copying it; the anchor wants gradients."""
        ctx.on_backward = on_backward
        return value.expand(rows, *value.shape[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None, None]:
        """Hand on every row's gradient."""
        ctx.on_backward(gradient)
        return None, None, None, None


class Read(Tensor):
    """Stands in a parameter's place while its module is called.

    Attributes:
        value: the parameter, or what was made of it and of others, with autograd's graph.
        names: of those parameters.
        reading: of the call.
    """

    value: Tensor
    names: frozenset[str]
    reading: Reading

    @classmethod
    def of(cls, value: Tensor, names: frozenset[str], reading: Reading) -> Read:
        """Stand for a value."""
        read = value.detach().as_subclass(cls)
        read.value, read.names, read.reading = value, names, reading
        return read

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Take an operation as the reading of the call does."""
        kwargs = kwargs or {}
        leaves, form = pytree.tree_flatten((args, kwargs))
        readings = {id(each.reading): each.reading for each in leaves if isinstance(each, Read)}
        if len(readings) == 1:
            (reading,) = readings.values()
            with torch._C.DisableTorchFunctionSubclass():
                found, is_taken = reading.taken(func, leaves, form)
            if is_taken:
                return found
        for reading in readings.values():
            reading.has_failed = True
        with torch._C.DisableTorchFunctionSubclass():
            plain = [each.value.detach() if isinstance(each, Read) else each for each in leaves]
            args, kwargs = pytree.tree_unflatten(plain, form)
            return func(*args, **kwargs)


class Reading:
    """One call of a module that reads parameters of its own.

    Attributes:
        names: of the parameters.
        has_failed: whether it did so in a way that is not known here.
        used: names of the parameters that rows were given copies of.
    """

    def __init__(
        self,
        module: nn.Module,
        names: Sequence[str],
        num_examples: int,
        on_gradients: Callable[[Reading, str, Tensor], None],
    ) -> None:
        """Put stand-ins in the parameters' places.

        Args:
            module: about to be called.
            names: of its own parameters.
            num_examples: n, >= 1.
            on_gradients: called in backward with this reading, a parameter's name and its gradients
                [n, ...], once for every operation that took it.
        """
        self.names, self.has_failed = tuple(names), False
        self.used: dict[str, int] = {}
        self._module, self._num_examples, self._on_gradients = module, num_examples, on_gradients
        if is_trial():
            _READ.setdefault(module, {})
        self._notes: list[Note] = []
        self._is_over = False
        self._held = {name: module._parameters[name] for name in names}
        self._leaves: dict[str, Tensor] = {}
        for name, parameter in self._held.items():
            assert parameter is not None
            self._leaves[name] = parameter.detach().requires_grad_(True)
            stand_in = Read.of(self._leaves[name], frozenset([name]), self)
            module._parameters[name] = stand_in  # type: ignore[assignment]

    def close(self) -> None:
        """Put the parameters back."""
        self._module._parameters.update(self._held)
        self._is_over = True

    def is_known(self, call: int) -> bool:
        """Return whether gradients come of this call; note what it has read if this is a trial.

        Args:
            call: its number in this forward pass, from 1.
        """
        seen, notes = _READ.get(self._module, {}), tuple(self._notes)
        is_whole = not self.has_failed and bool(self.used)
        if self._num_examples > 1 and seen is not None:
            if not is_trial():
                is_whole = is_whole and seen.get(call) == notes
            # In batches of every size an example has as many rows: else they are not examples'.
            elif is_whole and seen.setdefault(call, notes) == notes:
                _READ[self._module] = seen
            else:
                seen = _READ[self._module] = None
        self.has_failed = not is_whole or seen is None
        return not self.has_failed

    def taken(self, func: Any, leaves: list[Any], form: Any) -> tuple[Any, bool]:
        """Return what an operation comes to, and whether it is one that is known here."""
        tensors = [each for each in leaves if isinstance(each, Tensor)]
        others = [each for each in tensors if not isinstance(each, Read)]
        name = getattr(func, "__name__", "")
        args, kwargs = self._with(leaves, form, lambda read: read.value)
        is_written = name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))
        if (
            self._is_over  # what a module keeps of a call
            or any(map(is_functorch_wrapped_tensor, tensors))
            or "out" in kwargs
            or name == "__setitem__"
            or (is_written and isinstance(leaves[0], Read))
        ):
            return None, False
        is_first = isinstance(leaves[0], Read)
        if not torch.is_grad_enabled() or (name in TOLD and not others):
            args, kwargs = self._with(leaves, form, lambda read: read.value.detach())
            return func(*args, **kwargs), True
        if is_first and name in REPEATING:
            return self._repeated(func, name, leaves, args, kwargs)
        if not others or (is_first and name in CASTING):
            return self._made(func, leaves, args, kwargs)
        if func is functional.scaled_dot_product_attention:
            # A bias of attention has its axes counted from the last, as all numbers have below.
            is_bias = not any(isinstance(each, Read) for each in leaves[:3])
            return (
                self._copied(func, name, leaves[0].shape, leaves, form) if is_bias else (0, False)
            )
        if name.strip("_") in BY_NUMBER or name.strip("_")[1:] in BY_NUMBER:
            shape = torch.broadcast_shapes(*(each.shape for each in tensors))
            found, is_taken = self._copied(func, name, shape, leaves, form)
            if is_taken:
                return found, True
        if any(each.requires_grad or each.is_floating_point() for each in others):
            return None, False
        self._notes.append((name,))
        return self._made(func, leaves, args, kwargs)

    def _with(self, leaves: list[Any], form: Any, given: Callable[[Read], Any]) -> Any:
        """Return arguments with something given for every stand-in among them."""
        return pytree.tree_unflatten(
            [given(each) if isinstance(each, Read) else each for each in leaves], form
        )

    def _made(self, func: Any, leaves: list[Any], args: Any, kwargs: Any) -> tuple[Any, bool]:
        """Return what is made of parameters alone."""
        names = frozenset().union(*(each.names for each in leaves if isinstance(each, Read)))
        made = func(*args, **kwargs)
        stand_in = lambda each: Read.of(each, names, self) if each.requires_grad else each  # noqa: E731
        return pytree.tree_map_only(Tensor, stand_in, made), True

    def _repeated(
        self, func: Any, name: str, leaves: list[Any], args: Any, kwargs: Any
    ) -> tuple[Any, bool]:
        """Return a value that is repeated, for every row or else as what is made of parameters."""
        shape = func(*args, **kwargs).shape
        if not self._is_rows(shape, leaves[0]):
            return self._made(func, leaves, args, kwargs)
        copies = self._copies(name, leaves[0], len(shape), shape[0])
        if name != "repeat":
            return copies.expand(shape), True
        return copies.repeat([a // b for a, b in zip(shape, copies.shape, strict=True)]), True

    def _copied(
        self, func: Any, name: str, shape: Sequence[int], leaves: list[Any], form: Any
    ) -> tuple[Any, bool]:
        """Return what comes of copies for every row, unless a value has rows itself."""
        if not all(self._is_rows(shape, each) for each in leaves if isinstance(each, Read)):
            return None, False
        args, kwargs = self._with(
            leaves, form, lambda read: self._copies(name, read, len(shape), shape[0])
        )
        found = func(*args, **kwargs)
        # A number has no say in what precision comes of it and of a half-precision tensor.
        numbers = [each for each in leaves if isinstance(each, Read) and each.ndim == 0]
        larger = [each.dtype for each in leaves if isinstance(each, Tensor) and each.ndim]
        larger = [each for each in larger if each.is_floating_point]
        if numbers and larger:
            found = found.to(reduce(torch.promote_types, larger))
        return found, True

    def _is_rows(self, shape: Sequence[int], value: Tensor) -> bool:
        """Return whether the first axis of a shape may be rows of examples, and no value's."""
        is_multiple = len(shape) > 0 and shape[0] > 0 and shape[0] % self._num_examples == 0
        return is_multiple and (value.ndim < len(shape) or len(value) == 1)

    def _copies(self, name: str, read: Read, ndim: int, rows: int) -> Tensor:
        """Return a copy of a value for every row [rows, ...], whose gradients are handed on."""
        n, value, names = self._num_examples, read.value, sorted(read.names)
        self._notes.append((name, rows // n, value.ndim, ndim))
        for each in names:
            self.used[each] = self.used.get(each, 0) + 1

        def on_backward(gradient: Tensor) -> None:
            of_value = gradient.reshape(n, rows // n, *value.shape).sum(1)
            for each, found in zip(names, self._undone(value, names, of_value), strict=True):
                self._on_gradients(self, each, found)

        aligned = value.detach().reshape(*[1] * (ndim - value.ndim), *value.shape)
        anchor = torch.empty(0, device=value.device, requires_grad=True)
        return Copies.apply(anchor, on_backward, aligned, rows)

    def _undone(self, value: Tensor, names: Sequence[str], gradients: Tensor) -> list[Tensor]:
        """Return parameters' gradients [n, ...] for those of what is made of them."""
        leaves = [self._leaves[name] for name in names]
        if value is leaves[0]:
            return [gradients]

        def one(gradient: Tensor) -> tuple[Tensor, ...]:
            return torch.autograd.grad(
                value, leaves, gradient, retain_graph=True, materialize_grads=True
            )

        try:
            return list(torch.vmap(one)(gradients))
        except RuntimeError:  # an operation that vmap cannot take
            return [torch.stack(each) for each in zip(*map(one, gradients), strict=True)]


class Readings:
    """Calls in one forward pass of modules that read parameters of their own."""

    def __init__(self, on_gradients: Callable[[str, str, Tensor], None]) -> None:
        """Begin without any.

        Args:
            on_gradients: called in backward with a module's name, a parameter's, and its gradients
                [n, ...], once for every operation that took it.
        """
        self._on_gradients = on_gradients
        self._open: dict[str, Reading] = {}
        self._is_read: dict[str, bool] = {}  # whether the last call was
        self._unmet: dict[str, set[str]] = {}

    def forget(self) -> None:
        """Begin another pass."""
        self._is_read, self._unmet = {}, {}

    def begin(self, name: str, module: nn.Module, names: Sequence[str], num_examples: int) -> None:
        """Put stand-ins in the place of a module's parameters, if it may do with them."""
        if may_be_read(module, names):
            self.close(name)  # a call of itself within
            self._open[name] = Reading(module, names, num_examples, partial(self._arrived, name))

    def close(self, name: str, *_: Any) -> None:
        """Give a module back its parameters, however its call ended."""
        if name in self._open:
            self._open[name].close()

    def close_all(self) -> None:
        """Do so after calls that were interrupted, whose hooks torch leaves out."""
        for reading in self._open.values():
            reading.close()
        self._open.clear()

    def ended(self, name: str, call: int | None) -> int:
        """Return how often a parameter was read at most in the call that ended; 0: run it again.

        Args:
            name: of the module.
            call: its number in this forward pass; None: a checkpointed part is computed again.
        """
        reading = self._open.pop(name, None)
        if reading is None:
            return 0
        if call is not None:
            self._is_read[name] = reading.is_known(call)
            if self._is_read[name]:
                self._unmet.setdefault(name, {*reading.names})
        return max(reading.used.values(), default=0) if self._is_read.get(name) else 0

    def unmet(self) -> list[tuple[str, str]]:
        """List modules and those of their parameters that had no gradient in backward."""
        return [(name, own) for name, each in self._unmet.items() for own in sorted(each)]

    def _arrived(self, name: str, reading: Reading, own: str, gradients: Tensor) -> None:
        if not reading.has_failed:  # else the module is run again
            self._unmet[name].discard(own)
            self._on_gradients(name, own, gradients)


def may_be_read(module: nn.Module, names: Sequence[str]) -> bool:
    """Return whether a module's parameters are its own, and it was not found to be run again."""
    own = module._parameters
    is_own = all(type(own.get(name)) is nn.Parameter for name in names)
    return is_own and _READ.get(module, {}) is not None


def is_read(module: nn.Module) -> bool:
    """Return whether a trial has found a module that reads its parameters in a known way."""
    return bool(_READ.get(module))


def run_again(model: nn.Module) -> bool:
    """Have all modules run again that read their parameters; return whether there were any."""
    found = [module for module in model.modules() if _READ.get(module) is not None]
    for module in found:
        _READ[module] = None
    return bool(found)


def reads_in(model: nn.Module) -> dict[str, Reads | None]:
    """Return what trials have seen of a model's modules, by their names."""
    modules = dict(model.named_modules())
    return {name: deepcopy(_READ[module]) for name, module in modules.items() if module in _READ}


def see_reads(model: nn.Module, reads: Mapping[str, Reads | None]) -> None:
    """Take what trials have seen of an equal model for what they would see of this one."""
    for name, seen in reads.items():
        _READ[model.get_submodule(name)] = deepcopy(seen)
