"""Check what a method returns, so that a mistake in one is a line that says what was expected."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import Tensor

from dpexp.privacy.privatize import FULL
from dpexp.types import ConfigError, Key, Method, PerExampleGrads, Release, State, counted

STEPS = ("trainable", "start", "per_example_grads", "release_shapes", "releases", "reconstruct")
"""What every method defines itself; `Method` has defaults for the rest. A method without a backward
pass defines `per_example_scalars` in place of `per_example_grads`."""


class NotAsDeclared(ConfigError):
    """A method returned something else than it declares."""


def require_steps(method: Any) -> None:
    """Check that a method defines all of its steps.

    Raises:
        ConfigError: naming those that it lacks.
    """
    kind = type(method)
    instead = {}
    if getattr(method, "is_forward_only", False):
        instead = {"per_example_grads": "per_example_scalars"}
    lacking = [
        name
        for name in (instead.get(step, step) for step in STEPS)
        if not callable(getattr(method, name, None))
        or getattr(kind, name, None) is getattr(Method, name)
    ]
    if lacking:
        raise ConfigError(
            f"Expected {kind.__name__} to define every step of a method; it lacks "
            f"{', '.join(lacking)}. Define them as dpexp.types.Method describes."
        )


def checked_state(found: Any, step: str) -> State:
    """Return the state that a method's `start` or `prepare` returned.

    Raises:
        NotAsDeclared: if it is no dictionary.
    """
    if not isinstance(found, dict):
        raise _of(step, "a state, a dictionary", type(found).__name__)
    return found


def checked_shapes(found: Any) -> Mapping[Key, tuple[int, ...]]:
    """Return the blocks' shapes that a method's `release_shapes` returned.

    Raises:
        NotAsDeclared: if they are no shapes by Key.
    """
    if not isinstance(found, Mapping):
        raise _of("release_shapes", "a shape for each block by its Key", type(found).__name__)
    for key, shape in found.items():
        if not isinstance(key, Key) or not isinstance(shape, tuple | list):
            got = f"{key!r} of {type(shape).__name__}"
            raise _of("release_shapes", "a shape for each block by its Key", got)
    return found


def checked_declaration(found: Any) -> tuple[Release, ...]:
    """Return the releases that a method's `releases` returned.

    Raises:
        NotAsDeclared: if it is no tuple or list of them.
    """
    if not isinstance(found, tuple | list):
        raise _of("releases", "a tuple of Release", type(found).__name__)
    for each in found:
        if not isinstance(each, Release):
            raise _of("releases", "a tuple of Release", f"one with a {type(each).__name__}")
    return tuple(found)


def checked_blocks(found: Any, step: str) -> Mapping[Key, PerExampleGrads]:
    """Return the blocks that `per_example_grads` or `per_example_scalars` returned.

    Args:
        found: what it returned.
        step: which of the two.

    Raises:
        NotAsDeclared: if it is no block of per-example gradients by Key.
    """
    expected = "per-example gradients for each block by its Key"
    if not isinstance(found, Mapping):
        raise _of(step, expected, type(found).__name__)
    for key, block in found.items():
        if not isinstance(key, Key):
            raise _of(step, expected, repr(key))
        if isinstance(block, Tensor):
            wrapped = "as MaterializedGrads(tensor) of dpexp.grad_sample.per_example"
            raise _of(step, f"{_name(key)} {wrapped}", "the tensor itself")
        if not hasattr(block, "measured"):
            raise _of(step, f"{_name(key)} as per-example gradients", type(block).__name__)
    return found


def require_rows(lengths: Collection[int], num_examples: int) -> None:
    """Check that a method's blocks have a row for each example of a micro-batch.

    Raises:
        NotAsDeclared: if one has another number; what stands for several is not clipped by itself.
    """
    for length in lengths:
        if length != num_examples:
            raise _of(
                "per_example_grads", f"a row for each of {num_examples} examples", f"{length}"
            )


def checked_releases(
    found: Any, releases: Sequence[Release], sizes: Mapping[Key, int]
) -> dict[Key, Tensor]:
    """Return what a method's `compress` returned, as a dictionary.

    Only shapes and kinds are looked at, which are no secret. A release has as many numbers as
    declared; where this step's sums have fewer (a declaration holds for every step), it has at
    least as many as they.

    Args:
        found: what it returned.
        releases: declared.
        sizes: numbers of each sum that it was given.

    Raises:
        NotAsDeclared: if it is not what the releases declare.
    """
    if not isinstance(found, Mapping):
        raise _of("compress", "a tensor for each block by its Key", type(found).__name__)
    due = {each.name: each.dimension for each in releases}
    held, given = dict.fromkeys(due, 0), dict.fromkeys(due, 0)
    for key, size in sizes.items():
        given[key.release] += size
    for key, block in found.items():
        if not isinstance(key, Key) or key.release not in due:
            raise _of("compress", f"blocks of the releases {', '.join(due)}", repr(key))
        if not isinstance(block, Tensor) or block.dtype not in FULL:
            raise _of("compress", f"{_name(key)} in float32 or float64", _kind(block))
        if not block.is_contiguous():
            raise _of("compress", f"{_name(key)} contiguous", "a view with other strides")
        held[key.release] += block.numel()
    for name, dimension in due.items():
        if not min(dimension, given[name]) <= held[name] <= dimension:
            expected = f"release {name} of {counted(dimension, 'number')}, as `releases` declares"
            raise _of("compress", expected, str(held[name]))
    return dict(found)


def checked_step(found: Any, trained: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], State]:
    """Return what a method's `reconstruct` returned.

    Args:
        found: what it returned.
        trained: the trained parameters by name.

    Raises:
        NotAsDeclared: if it is no gradient per trained parameter, and a state.
    """
    what = "a dictionary of gradients and the next state"
    if not (isinstance(found, tuple) and len(found) == 2):
        raise _of("reconstruct", what, type(found).__name__)
    gradients, state = found
    if not (isinstance(gradients, dict) and isinstance(state, dict)):
        raise _of("reconstruct", what, f"{type(gradients).__name__} and {type(state).__name__}")
    for name, parameter in trained.items():
        if name not in gradients:
            raise _of("reconstruct", f"a gradient for every trainable parameter, {name}", "none")
        gradient = gradients[name]
        if not isinstance(gradient, Tensor) or gradient.dtype != parameter.dtype:
            expected = f"the gradient of {name} in {_dtype(parameter)}"
            raise _of("reconstruct", expected, _kind(gradient))
        if gradient.shape != parameter.shape:
            expected = f"the gradient of {name} of shape {[*parameter.shape]}"
            raise _of("reconstruct", expected, str([*gradient.shape]))
    if others := sorted(map(str, gradients.keys() - trained.keys())):
        raise _of("reconstruct", "gradients of trainable parameters alone", ", ".join(others[:3]))
    return gradients, state


def names_of(blocks: Collection[Key]) -> str:
    """Return the names of at most three blocks."""
    names = sorted(map(_name, blocks))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _of(step: str, expected: str, got: str) -> NotAsDeclared:
    return NotAsDeclared(
        f"Expected the method's `{step}` to return {expected}; got {got}. Correct the method."
    )


def _name(key: Key) -> str:
    return key.parameter + ("" if key.part == "full" else f" ({key.part})")


def _kind(value: Any) -> str:
    return _dtype(value) if isinstance(value, Tensor) else type(value).__name__


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
