"""Which inputs of a module hold examples, and which are the same for all, as positions and masks.

An input of n k rows in a batch of n examples holds k rows an example, one example after another, as
attention in windows has them; k is 1 elsewhere. An input that had other rows than that in a batch
of another size is the same for all. A run tries its model with batches of several sizes before the
first step, and compares every gradient with autograd's, so that what is mistaken here is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from torch import Tensor, nn

from dpexp.types import ConfigError

_SHARED: WeakKeyDictionary[nn.Module, set[int]] = WeakKeyDictionary()

Shape = tuple[int, ...]

_TRIED: WeakKeyDictionary[nn.Module, dict[Shape, dict[int, set[int]]]] = WeakKeyDictionary()
"""By module, shape of an example, and number of the call: the rows an example had in a trial."""

_REPEATED: WeakSet[nn.Module] = WeakSet()
"""Modules that were called once for all examples in a trial."""

_trials = 0


@contextmanager
def trial() -> Iterator[None]:
    """Let modules have several rows an example, here and from now on; gradients are compared here.

    Whether an example's rows stand one after another is not seen by their number.
    """
    global _trials
    _trials += 1
    try:
        yield
    finally:
        _trials -= 1


def is_trial() -> bool:
    """Return whether a model is being tried."""
    return _trials > 0


def require_tried_with_rows(
    name: str, module: nn.Module, rows: int, call: int, shape: Shape
) -> None:
    """Refuse a module that sees other rows an example than while its model was tried.

    Where rows are chosen by what an example holds, or cut into pieces of one size, a number of rows
    may be divided by that of examples and still not be each one's.

    Args:
        name: of the module.
        module: as it is called.
        rows: an example, in this call.
        call: its number in this forward pass, from 1.
        shape: of the example; rows may be others with others, as with longer texts.

    Raises:
        ConfigError: naming it.
    """
    if _trials:
        _TRIED.setdefault(module, {}).setdefault(shape, {}).setdefault(call, set()).add(rows)
        return
    tried = _TRIED.get(module, {})
    if calls := tried.get(shape):
        known = calls.get(call) or _all(calls)
        if rows not in known:
            raise ConfigError(
                f"Expected layer {name!r} to see {_counted(known)} an example, as when the model "
                f"was tried before its first step; it saw {rows} in call {call}, and which are "
                "whose is not known. Let it see all rows of all examples at once, or freeze it."
            )
    elif rows > 1 and not any(most > 1 for each in tried.values() for most in _all(each)):
        raise ConfigError(
            f"Expected layer {name!r} to see one row an example, as when the model was tried before"
            " its first step; it saw several, and which are whose is not known. Freeze it."
        )


def require_tried_once_for_all(name: str, module: nn.Module) -> None:
    """Refuse a module that is called on one row for all examples, and was not in a trial.

    Where rows are chosen by what an example holds, the one row may be one example's.

    Args:
        name: of the module.
        module: as it is called.

    Raises:
        ConfigError: naming it.
    """
    if _trials:
        _REPEATED.add(module)
    elif module in _TRIED and module not in _REPEATED:
        raise ConfigError(
            f"Expected layer {name!r} to see rows of every example, as when the model was tried "
            "before its first step; it saw one row, and whose it is is not known. Let it see all "
            "rows of all examples and choose among its outputs, or freeze it."
        )


class Seen(NamedTuple):
    """What a trial has seen of a module: see `_SHARED`, `_TRIED` and `_REPEATED`."""

    shared: frozenset[int]
    tried: Mapping[Shape, Mapping[int, set[int]]]
    is_repeated: bool


def seen_in(model: nn.Module) -> dict[str, Seen]:
    """Return what trials have seen of a model's modules until now, by their names."""
    return {
        name: Seen(
            frozenset(_SHARED.get(module, ())),
            deepcopy(_TRIED.get(module, {})),
            module in _REPEATED,
        )
        for name, module in model.named_modules()
    }


def see(model: nn.Module, seen: Mapping[str, Seen]) -> None:
    """Take what trials have seen of an equal model for what they would see of this one."""
    for name, module in model.named_modules():
        shared, tried, is_repeated = seen[name]
        _SHARED.setdefault(module, set()).update(shared)
        if tried:
            _TRIED[module] = {s: {c: {*r} for c, r in calls.items()} for s, calls in tried.items()}
        if is_repeated:
            _REPEATED.add(module)


def _all(calls: Mapping[int, set[int]]) -> set[int]:
    return set.union(*calls.values())


def _counted(rows: set[int]) -> str:
    return f"{' or '.join(map(str, sorted(rows)))} rows"


def is_for_all(module: nn.Module, inputs: Sequence[Any], num_examples: int) -> bool:
    """Return whether a module is called once for all examples: on one row, or on positions.

    Args:
        module: as it is called.
        inputs: all that it is called with, flattened.
        num_examples: of this batch; with 0 it is not.
    """
    if num_examples == 0 or example_inputs(module, inputs, num_examples):
        return False
    tensors = [each for each in inputs if isinstance(each, Tensor) and each.ndim]
    return all(len(each) == 1 or not each.is_floating_point() for each in tensors)


def example_inputs(
    module: nn.Module, inputs: Sequence[Any], num_examples: int, rows: int = 0
) -> list[int]:
    """Return which of a module's inputs hold examples, by their place.

    Args:
        module: as it is called.
        inputs: all that it is called with, flattened; what is no tensor holds no examples.
        num_examples: of this batch, >= 1.
        rows: of an example, k; 0: any number.
    """
    shared = _SHARED.setdefault(module, set())
    places = []
    for place, each in enumerate(inputs):
        axis = axis_of(module, place)
        if not isinstance(each, Tensor) or each.ndim <= axis:
            continue
        length = each.shape[axis]
        is_list = each.ndim == 1 and not each.is_floating_point()  # positions, that are looked up
        is_other = length != num_examples and (is_list or axis > 0)
        if length % num_examples or is_other or (rows and length != rows * num_examples):
            shared.add(place)
        elif length and place not in shared:
            places.append(place)
    return places


def by_example(tensor: Tensor, axis: int, num_examples: int) -> Tensor:
    """Return a tensor of n k rows as [n, k, ...], its examples moved from an axis to the first."""
    rows = tensor.movedim(axis, 0)
    return rows.reshape(num_examples, len(rows) // max(num_examples, 1), *rows.shape[1:])


def axis_of(module: nn.Module, place: int) -> int:
    """Return the axis of the examples in a module's n-th tensor, of its inputs or its outputs.

    It is the first, but in the states of recurrent layers, which are [layers, n, ...].
    """
    return 1 if isinstance(module, nn.RNNBase) and place > 0 else 0
