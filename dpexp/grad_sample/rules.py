"""Layer rules: per-example gradients of a layer type from its input and output gradient.

Each type has one rule. A decorator registers it, so that a user's own module brings its rule along:

    @grad_sample.rule(Scaled)
    def scaled(layer: Scaled, x: Tensor, dh: Tensor) -> dict[str, Tensor]:
        return {"weight": layer.factor * dh[:, :, None] * x[:, None, :], "bias": dh}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from dpexp.grad_sample.composed import parts_within
from dpexp.grad_sample.parametrized import kind_of, made_weights, names_behind
from dpexp.grad_sample.per_example import FactoredGrads, MaterializedGrads
from dpexp.grad_sample.repeated import RowRule, repeated
from dpexp.imported import is_written_in
from dpexp.types import ConfigError, LayerGrads, PerExampleGrads, full_name, one_line

Rule = Callable[[Any, Tensor, Tensor], LayerGrads | Mapping[str, Tensor]]
"""Maps a layer, its input [n, ...] and the gradient at its output [n, ...] to gradients [n, ...] of
its parameters by name, or to `LayerGrads` that need not form them."""


ROWWISE: set[type[nn.Module]] = {nn.Linear, nn.LayerNorm}
"""Layers whose rules take rows [n, k, ...] of an example as they take one."""


class Registered(NamedTuple):
    """A rule, which of a layer's own parameters it covers, and which layers of its type."""

    rule: Rule
    parameters: tuple[str, ...]
    fits: Callable[[Any], bool]


_RULES: dict[type[nn.Module], Registered] = {}


def rule(
    *kinds: type[nn.Module],
    parameters: tuple[str, ...] = ("weight", "bias"),
    fits: Callable[[Any], bool] = lambda layer: True,
) -> Callable[[Rule], Rule]:
    """Return a decorator that registers a rule for exactly these layer types.

    A subclass does not inherit its parent's rule, for it may compute something else. If it computes
    the same, register the parent's rule: `rule(Mine)(rule_of(nn.Linear))`.

    Args:
        kinds: layer types; each maps one tensor to one tensor, with the example as first axis of
            both.
        parameters: the layer's own parameters that the rule covers. A layer may lack some of them;
            its other parameters have no rule and cannot train.
        fits: whether the rule holds for a layer, by its settings; others are run again under
            torch.func.

    Raises:
        ConfigError: if a type already has a rule, or is not a module type.
    """
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
            raise ConfigError(
                f"Expected types of torch.nn.Module, as in @rule(MyLayer); got {kind!r}."
            )

    def register(function: Rule) -> Rule:
        for kind in kinds:
            if kind in _RULES:
                present = _RULES[kind].rule
                raise ConfigError(
                    f"Expected one rule for a type of layer; {kind.__name__} has "
                    f"{present.__module__}.{present.__qualname__}. Register a subclass of it "
                    "instead."
                )
        _RULES.update(dict.fromkeys(kinds, Registered(function, parameters, fits)))
        return function

    return register


def rule_of(kind: type[nn.Module]) -> Rule:
    """Return the rule for a type of layer.

    Raises:
        ConfigError: if it has none.
    """
    return _registered(kind, f"{kind.__name__} has none").rule


def has_rule(kind: type[nn.Module]) -> bool:
    """Return whether a type of layer has a rule."""
    return kind in _RULES


def has_foreign_rule(layer: nn.Module) -> bool:
    """Return whether a layer's type has a rule that is not dpexp's own."""
    return has_rule(type(layer)) and not _is_ours(_RULES[type(layer)].rule)


def parameters_with_a_rule(layer: nn.Module) -> tuple[str, ...]:
    """Return which of a layer's parameters a rule covers; () where its type has none.

    They are the layer's own, and those of which its weights are made (`parametrized`, `composed`).
    """
    if parts := parts_within(layer):
        within = {part: parameters_with_a_rule(layer.get_submodule(part)) for part in parts}
        return tuple(full_name(part, own) for part, names in within.items() for own in names)
    found = _RULES.get(kind_of(layer))
    if found is None or not found.fits(layer):
        return ()
    if kind_of(layer) is type(layer):
        return found.parameters
    # A rule of the user's may have several matrices, and products with one do not say which.
    return names_behind(layer, found.parameters) if _is_ours(found.rule) else ()


def _registered(kind: type[nn.Module], what: str) -> Registered:
    if kind in _RULES:
        return _RULES[kind]
    known = ", ".join(each.__name__ for each in _RULES)
    parent = next((each.__name__ for each in kind.__mro__ if each in _RULES), None)
    hint = f" A subclass does not take {parent}'s rule: what it computes may differ."
    raise ConfigError(
        f"Expected a layer with a rule for per-example gradients ({known}); {what}. Freeze it, or "
        f"register a rule for it by @dpexp.grad_sample.rule({kind.__name__})."
        + (hint if parent else "")
    )


def layer_grads_of(name: str, layer: nn.Module, x: Tensor, dh: Tensor, rows: int = 1) -> LayerGrads:
    """Return a layer's gradients, by its rule.

    Args:
        name: of the layer in the model.
        layer: a layer whose type has a rule.
        x: its input, [n, ...].
        dh: the gradient at its output, [n, ...].
        rows: of x and dh that are one example's, one after another; n is then that many fewer.

    Raises:
        ConfigError: if the rule omits a gradient, or returns one of another shape, or fails.
    """
    if rows > 1:
        if kind_of(layer) in ROWWISE:
            x, dh = (each.reshape(-1, rows, *each.shape[1:]) for each in (x, dh))
        else:
            return GroupedGrads(layer_grads_of(name, layer, x, dh), rows)
    function, parameters, _ = _RULES[kind_of(layer)]
    result = function(layer, x, dh) if _is_ours(function) else _result(function, name, layer, x, dh)
    if not isinstance(result, Mapping):
        return result
    gradients, made = {}, {own: getattr(layer, own) for own in made_weights(layer)}
    for own, weight in {**dict(layer.named_parameters(recurse=False)), **made}.items():
        if own in parameters:
            shape, got = [len(x), *weight.shape], result.get(own)
            if got is None or list(got.shape) != shape:
                received = "none" if got is None else f"shape {list(got.shape)}"
                raise ConfigError(
                    f"Expected the rule for {type(layer).__name__} to give every example's "
                    f"gradient of {own!r}, of shape {shape}; got {received} for layer {name!r}."
                )
            gradients[own] = got
    return FormedGrads(gradients, tuple(gradients))


def _is_ours(function: Rule) -> bool:
    """Return whether a rule is dpexp's own."""
    return is_written_in(function, "dpexp")


def _result(
    function: Rule, name: str, layer: nn.Module, x: Tensor, dh: Tensor
) -> LayerGrads | Mapping[str, Tensor]:
    """Return what a user's rule gives.

    Raises:
        ConfigError: it fails, or gives neither tensors by name nor `LayerGrads`.
    """
    try:
        result = function(layer, x, dh)
    except (ConfigError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a user's code may raise anything
        if "memory" in str(error):  # torch has no type for it on a CPU; fewer examples may fit
            raise
        got = f"{type(error).__name__}: {one_line(error)[:200]}"
    else:
        got = f"a {type(result).__name__}"
        if isinstance(result, Mapping):
            if all(isinstance(g, Tensor) and g.is_floating_point() for g in result.values()):
                return result
            got += " of other things"
        elif isinstance(getattr(result, "parameters", None), tuple):
            return result
    raise ConfigError(
        f"Expected the rule for {type(layer).__name__} to give every example's gradients by name, "
        f"as tensors of floats, of layer {name!r} with inputs {list(x.shape)} and output gradients "
        f"{list(dh.shape)}; got {got}. Correct the rule, which is to take every shape that the "
        "model gives it."
    )


@dataclass(frozen=True)
class FormedGrads:
    """Layer gradients from a rule that returns per-example gradients, [n, ...] by parameter."""

    gradients: Mapping[str, Tensor]
    parameters: tuple[str, ...]

    def gradient(self, name: str) -> MaterializedGrads:
        """Return one parameter's gradients."""
        return MaterializedGrads(self.gradients[name])

    @property
    def _matrix(self) -> Tensor:
        """Return the gradients of the one matrix among the parameters, [n, p, ...]."""
        (name,) = (own for own in self.parameters if self.gradients[own].ndim >= 3)
        return self.gradients[name]

    def left(self, right_basis: Tensor, rows: Tensor | None = None) -> MaterializedGrads:
        """Return dW_i R^T, [n, p, r], or only its rows [p']."""
        weight = self._matrix
        weight = weight if rows is None else weight.index_select(1, rows)
        return MaterializedGrads(weight.flatten(2) @ right_basis.T)

    def right(self, left_basis: Tensor, columns: Tensor | None = None) -> MaterializedGrads:
        """Return L^T dW_i, [n, r, d], or only the columns of inputs or channels [d']."""
        weight = self._matrix
        weight = weight if columns is None else weight.index_select(2, columns)
        return MaterializedGrads(left_basis.T @ weight.flatten(2))

    def scaled(self, factor: float) -> FormedGrads:
        """Multiply every example's gradient by a constant."""
        return replace(self, gradients={k: factor * each for k, each in self.gradients.items()})


def alone(layer_grads: LayerGrads, parameter: str) -> FormedGrads:
    """Return one parameter's gradients as a layer's that has no other; they are formed.

    A layer may have several matrices, and products with one of them do not say which.
    """
    return FormedGrads({parameter: layer_grads.gradient(parameter).materialize()}, (parameter,))


@dataclass(frozen=True)
class SummedGrads:
    """One parameter's gradients over several uses: a layer called twice, or tied weights.

    Attributes:
        parts: each use's layer gradients, with the parameter's name there.
        parameters: its name.
    """

    parts: tuple[tuple[LayerGrads, str], ...]
    parameters: tuple[str, ...]

    def gradient(self, name: str) -> MaterializedGrads:
        """Return the sum over uses; it is what an example's norm is taken of."""
        return _sum(grads.gradient(own) for grads, own in self.parts)

    def left(self, right_basis: Tensor, rows: Tensor | None = None) -> MaterializedGrads:
        """Return the sum over uses of dW_i R^T, [n, p, r], or its rows [p'] alone."""
        return _sum(grads.left(right_basis, rows) for grads, _ in self.parts)

    def right(self, left_basis: Tensor, columns: Tensor | None = None) -> MaterializedGrads:
        """Return the sum over uses of L^T dW_i, [n, r, d], or some of its columns alone."""
        return _sum(grads.right(left_basis, columns) for grads, _ in self.parts)

    def scaled(self, factor: float) -> SummedGrads:
        """Multiply every example's gradient by a constant."""
        return replace(self, parts=tuple((grads.scaled(factor), own) for grads, own in self.parts))


@dataclass(frozen=True)
class GroupedGrads:
    """Gradients of a layer that sees several rows of every example, as windows of an image.

    Attributes:
        of_rows: those of the rows by themselves, an example's rows one after another.
        rows: of one example.
        parameters: as `of_rows` names them.
    """

    of_rows: LayerGrads
    rows: int
    parameters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Take the parameters over where none are named; else the rows have no others either."""
        if not self.parameters:
            object.__setattr__(self, "parameters", self.of_rows.parameters)
        elif self.parameters != self.of_rows.parameters:
            few = replace(cast(Any, self.of_rows), parameters=self.parameters)
            object.__setattr__(self, "of_rows", few)

    def gradient(self, name: str) -> PerExampleGrads:
        """Return one parameter's gradients."""
        return self._grouped(self.of_rows.gradient(name))

    def left(self, right_basis: Tensor, rows: Tensor | None = None) -> PerExampleGrads:
        """Return dW_i R^T, [n, p, r], or its rows [p'] alone."""
        return self._grouped(self.of_rows.left(right_basis, rows))

    def right(self, left_basis: Tensor, columns: Tensor | None = None) -> PerExampleGrads:
        """Return L^T dW_i, [n, r, d], or some of its columns alone."""
        return self._grouped(self.of_rows.right(left_basis, columns))

    def scaled(self, factor: float) -> GroupedGrads:
        """Multiply every example's gradient by a constant."""
        return replace(self, of_rows=self.of_rows.scaled(factor))

    def _grouped(self, grads: PerExampleGrads) -> PerExampleGrads:
        if isinstance(grads, FactoredGrads) and isinstance(grads.rule, RowRule):
            return repeated(grads, self.rows)
        each = grads.materialize()
        return MaterializedGrads(each.reshape(-1, self.rows, *each.shape[1:]).sum(1))


def _sum(uses: Iterable[PerExampleGrads]) -> MaterializedGrads:
    total: Tensor | None = None
    for use in uses:
        each = use.materialize()
        total = each if total is None else total + each
    assert total is not None  # a parameter with no use is passed on by nobody
    return MaterializedGrads(total)
