"""Per-example gradients of whatever holds parameters and has no rule, by torch.func.

A module is taken as one function of its inputs. Its outputs' gradients are known once backward
reaches them, so example i's gradient of a parameter is the vector-Jacobian product of that function
at example i alone. vmap takes it for all examples at once; a module that vmap cannot take, as
nn.LSTM, is run again example by example. Both are exact and cost one more forward and backward pass
of the module.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.utils import _pytree as pytree

from dpexp.grad_sample.shared_inputs import axis_of, by_example, example_inputs
from dpexp.types import ConfigError, counted

WHOLE = (nn.MultiheadAttention, nn.RNNBase)
"""Modules that read their children's parameters without calling the children."""

NO_BATCHING_RULE = "There is a performance drop because we have not yet implemented the batching"
"""How torch warns, at every call, that vmap takes an operation example by example. Which modules
are slower for it is said when a run begins."""

warnings.filterwarnings("ignore", NO_BATCHING_RULE)

UNBATCHED: set[type[nn.Module]] = {nn.LSTM, nn.GRU, nn.RNN}
"""Modules that vmap cannot take; others join as they are met."""


_again = 0
"""How deep in a repeated call of a module the program is."""


def is_running_again() -> bool:
    """Return whether a module is run again for its gradients: what hooks see then counts twice."""
    return _again > 0


@contextmanager
def _running_again(module: nn.Module) -> Iterator[None]:
    """Leave what a module keeps beside its parameters as it was."""
    global _again
    _again += 1
    kept = [(vars(child), dict(vars(child))) for child in module.modules()]
    try:
        yield
    finally:
        _again -= 1
        for attributes, before in kept:
            attributes.clear()
            attributes.update(before)


def gradients_of(
    module: nn.Module,
    names: Sequence[str],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    output_gradients: Sequence[Tensor],
    num_examples: int,
    expected: Sequence[tuple[Tensor, float]],
) -> dict[str, Tensor]:
    """Return every example's gradients of some of a module's parameters.

    Args:
        module: as it was called.
        names: of the parameters wanted, as in the module's `named_parameters`.
        args: what it was called with; `example_inputs` hold one example a row, all others are the
            same for every example.
        kwargs: likewise.
        output_gradients: of each floating-point tensor among its outputs, the example on the first
            axis.
        num_examples: n.
        expected: `sums_of` each of those outputs, as the module first came to them, and the largest
            relative difference from them.

    Returns:
        Gradients [n, ...] by name.

    Raises:
        ConfigError: if an output has no example axis, or the module comes to something else now.
    """
    _require_rows(module, args, kwargs)
    leaves, spec = flattened((args, dict(kwargs)))
    cotangents = []
    for place, dh in enumerate(output_gradients):
        axis = axis_of(module, place)
        if dh.ndim <= axis or dh.shape[axis] % max(num_examples, 1):
            raise ConfigError(
                f"Expected a {type(module).__name__} to give {counted(num_examples, 'example')}; "
                f"it gave shape {list(dh.shape)}. The first axis must be the example "
                "(batch_first=True)."
            )
        cotangents.append(by_example(dh, axis, num_examples))

    # An example has as many rows in as out; with no example there is nothing to be told by.
    rows = cotangents[0].shape[1] if num_examples else 0
    places = example_inputs(module, leaves, max(num_examples, 1), rows)
    inputs = [by_example(leaves[place], axis_of(module, place), num_examples) for place in places]

    def call(some: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        given = list(leaves)
        for place, each in zip(places, some, strict=True):
            given[place] = each.movedim(0, axis_of(module, place))
        return pytree.tree_unflatten(given, spec)

    def products(outputs: Any, dh: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        found = floating_of(outputs)
        outs = [out.movedim(axis_of(module, place), 0) for place, out in enumerate(found)]
        pairs = list(zip(outs, dh, strict=True))
        for out, one in pairs:
            if out.ndim > one.ndim or any(
                mine not in (1, theirs)
                for mine, theirs in zip(out.shape[::-1], one.shape[::-1], strict=False)
            ):
                raise _different(module)
        total = torch.stack([(out * one.to(out.dtype)).sum() for out, one in pairs]).sum()
        return total, [sums_of(out.expand_as(one).detach()[None], 1)[0] for out, one in pairs]

    if type(module) not in UNBATCHED:
        weights = {name: _parameter(module, name).detach() for name in names}

        def of_one(
            weights: dict[str, Tensor], some: list[Tensor], dh: list[Tensor]
        ) -> tuple[Tensor, list[Tensor]]:
            args, kwargs = call(some)
            with replaced(module, weights):
                return products(module(*args, **kwargs), dh)

        try:
            with _running_again(module):
                found, sums = vmap(grad(of_one, has_aux=True), in_dims=(None, 0, 0))(
                    weights, inputs, cotangents
                )
            _require_same(module, sums, expected)
            return found
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, NotImplementedError, IndexError):  # no batching rule
            pass
    with _running_again(module):
        found, sums = _one_by_one(module, names, call, products, inputs, cotangents, num_examples)
    _require_same(module, sums, expected)
    UNBATCHED.add(type(module))
    return found


def _require_rows(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse a table that takes the ids of all examples in one row."""
    offsets = args[1] if len(args) > 1 else kwargs.get("offsets")
    if isinstance(module, nn.EmbeddingBag) and offsets is not None:
        raise ConfigError(
            "Expected an EmbeddingBag to take ids [n, t], an example a row; it takes them in one "
            "row, with offsets. Give it a row an example, filled up with its padding_idx."
        )


def fingerprint(
    module: nn.Module, order: int, output: Tensor, num_examples: int
) -> tuple[Tensor, float]:
    """Return what an output is known again by, and how closely.

    Args:
        module: it.
        order: the output's place among its floating ones.
        output: what it has come to.
        num_examples: of the batch; 0 where their number is not known.

    Returns:
        `sums_of` the output, empty where its rows are not the examples', and the largest relative
        difference of such sums.
    """
    rows = output.detach().movedim(axis_of(module, order), 0)
    has_rows = num_examples and len(rows) % num_examples == 0
    sums = sums_of(rows, num_examples) if has_rows else torch.zeros(0, 2)
    return sums, SAME.get(output.dtype, 0.1)


def sums_of(output: Tensor, num_examples: int) -> Tensor:
    """Return sums by which an example's outputs are known again, [n, 2] in float64."""
    each = output.double().reshape(num_examples, -1)
    return torch.stack([each.sum(1), each.abs().sum(1)], 1)


SAME = {torch.float64: 1e-8, torch.float32: 1e-3}
"""Largest relative difference of two such sums, by an output's precision (ours); else 0.1."""


def _require_same(
    module: nn.Module, sums: Sequence[Tensor], expected: Sequence[tuple[Tensor, float]]
) -> None:
    """Refuse a module that came to something else when it was run again.

    Raises:
        ConfigError: as where it draws by a generator of its own, counts its calls, or comes to
            something else for an example alone than for a batch.
    """
    for mine, (first, most) in zip(sums, expected, strict=False):  # none without examples
        apart = (mine - first).abs().amax(1)
        if (apart > most * first[:, 1].clamp_min(1e-30)).any():  # NaN is no difference
            raise _different(module)


def _different(module: nn.Module) -> ConfigError:
    kind = type(module).__name__
    second = [each for each in module.modules() if not getattr(each, "batch_first", True)]
    hint = f" Give its {type(second[0]).__name__} batch_first=True." if second else ""
    return ConfigError(
        f"Expected a {kind}, which has no rule, to come to the same when it is run again on each "
        f"example; it did not.{hint} Let it draw nothing, keep no state and use examples apart, or "
        f"register a rule by @dpexp.grad_sample.rule({kind})."
    )


@contextmanager
def replaced(module: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Put other tensors in the place of some parameters, wherever in a module they stand.

    functional_call does so too, but leaves a child that stands in two places with the tensors.
    """
    replacement = {id(_parameter(module, name)): value for name, value in weights.items()}
    places = [
        (child._parameters, key, held)
        for child in module.modules()
        for key, held in child._parameters.items()
        if id(held) in replacement
    ]
    try:
        for parameters, key, held in places:
            parameters[key] = cast(nn.Parameter, replacement[id(held)])
        yield
    finally:
        for parameters, key, held in places:
            parameters[key] = held


def _parameter(module: nn.Module, name: str) -> Tensor:
    """Return a parameter, or what stands in its place for a step."""
    return attrgetter(name)(module)


def _one_by_one(
    module: nn.Module,
    names: Sequence[str],
    call: Any,
    products: Any,
    inputs: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    num_examples: int,
) -> tuple[dict[str, Tensor], list[Tensor]]:
    weights = [_parameter(module, name) for name in names]
    had = [weight.requires_grad for weight in weights]
    found: list[tuple[Tensor, ...]] = []
    sums: list[list[Tensor]] = []
    for weight in weights:
        weight.requires_grad_(True)
    try:
        for i in range(num_examples):
            args, kwargs = call([each[i] for each in inputs])
            with torch.enable_grad():
                loss, each_sum = products(module(*args, **kwargs), [each[i] for each in cotangents])
            sums.append(each_sum)
            found.append(torch.autograd.grad(loss, weights, materialize_grads=True))
    finally:
        for weight, before in zip(weights, had, strict=True):
            weight.requires_grad_(before)
    if not found:
        found = [tuple(weight.new_zeros(0, *weight.shape) for weight in weights)]
        return dict(zip(names, found[0], strict=True)), []
    stacked = [torch.stack(each) for each in zip(*found, strict=True)]
    by_output = [torch.stack(each) for each in zip(*sums, strict=True)]
    return dict(zip(names, stacked, strict=True)), by_output


def flattened(value: Any) -> tuple[list[Any], Any]:
    """Return a structure's leaves and its form; the fields of dataclasses are leaves too."""
    leaves, form = pytree.tree_flatten(value)
    kinds = {type(leaf) for leaf in leaves if is_dataclass(leaf) and not isinstance(leaf, type)}
    for kind in kinds:
        pytree.register_dataclass(kind)
    return flattened(value) if kinds else (leaves, form)


def floating_of(outputs: Any) -> list[Tensor]:
    """List the floating-point tensors among a module's outputs, in their order."""
    leaves, _ = flattened(outputs)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]
