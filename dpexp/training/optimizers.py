"""Checks that an optimizer can step along a given gradient."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dpexp.training.uncompiled import take_step
from dpexp.types import ConfigError, one_line
from dpexp.warned import warn_caller

SHAPE = (2, 2)
"""Of the weight on which an optimizer is tried."""

MOVES = 16
"""Steps within which an optimizer is to move a weight (ours); one may add up several gradients."""


def check_optimizer(
    optimizer: torch.optim.Optimizer,
    setting: str = "optimizer",
    weights: Sequence[Tensor] | None = None,
) -> None:
    """Check that a copy of the optimizer can take a step on synthetic numbers.

    Some optimizers need a closure that recomputes the loss, which would be another release. Some
    need sparse gradients, but noisy ones are dense. One of anyone's own may leave weights out, or
    remember something outside of its state, which an interrupted run would go on without. Or it may
    move nothing, of which it warns, or make weights NaN.

    Args:
        optimizer: of a run; it is not changed.
        setting: that chooses it.
        weights: that it was given; None: they are not compared.

    Raises:
        ConfigError: naming the optimizer.
    """
    kind = type(optimizer)
    closure = inspect.signature(kind.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise _refused(kind, "it computes the loss anew within a step", setting)
    try:
        _stepped(optimizer, 1.0, torch.float32)
    except Exception as error:  # any optimizer may fail in its own way
        raise _refused(kind, one_line(error)[:150], setting) from None
    if not kind.__module__.startswith("torch.optim."):
        _require_moves(optimizer, setting)
        _require_kept(optimizer, setting)
    if weights is not None:
        _require_weights(optimizer, weights, setting)


def _require_moves(optimizer: torch.optim.Optimizer, setting: str) -> None:
    """Refuse an optimizer whose first steps give NaN, and tell of one that moves no weight.

    One of layers' rates leaves a weight of zeros where it is, and a small step is lost beside one
    of ones, so both are tried.
    """
    kind = type(optimizer)
    has_moved = False
    with torch.random.fork_rng(devices=[]):
        for start in (1.0, 0.0):
            like = _copy(optimizer, torch.float32)
            if like is None:
                return
            for weight in _weights(like):
                weight.data.fill_(start)
            for taken in range(MOVES):
                try:
                    _step(like, 1.0)
                except Exception:  # told of by `_require_kept`
                    return
                moved = torch.stack([weight.detach() - start for weight in _weights(like)])
                if start and (moved.isnan() if taken else ~moved.isfinite()).any():
                    raise _refused(kind, f"its step {taken + 1} on ones gives NaN or inf", setting)
                has_moved = has_moved or bool(moved.any())
    if not has_moved:
        warn_caller(
            f"{kind.__name__} moves no weight in {MOVES} steps along a gradient of ones: training "
            f"may change nothing. Correct its step, or set {setting}."
        )


def _require_kept(optimizer: torch.optim.Optimizer, setting: str) -> None:
    """Refuse an optimizer that goes on otherwise once its state was kept and loaded."""
    kind = type(optimizer)
    with torch.random.fork_rng(devices=[]):
        first = _copy(optimizer, torch.float32)
        if first is None:
            return
        try:
            for size in (1.0, -0.5):
                _step(first, size)
        except Exception as error:  # a second step may fail where the first did not
            raise _refused(kind, one_line(error)[:150], setting) from None
        second = _copy(optimizer, torch.float32)
        assert second is not None
        reason = "once its state is loaded, its next steps are others"
        try:
            kept = copy.deepcopy(first.state_dict())
            for one, other in zip(_weights(first), _weights(second), strict=True):
                other.data.copy_(one)
            second.load_state_dict(kept)
            drawn = torch.get_rng_state()  # of an optimizer that draws
            for like in (first, second):
                torch.set_rng_state(drawn)
                for size in (0.25, 2.0):
                    _step(like, size)
            pairs = zip(_weights(first), _weights(second), strict=True)
            if all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs):
                return
        except Exception as error:  # any optimizer may fail in its own way
            reason = one_line(error)[:150]
    raise ConfigError(
        f"Expected an optimizer whose state is all that it remembers, since an interrupted run "
        f"goes on from it; {kind.__name__} has more ({reason}). Keep it in self.state and "
        "self.param_groups, or return it from state_dict, too."
    )


def _require_weights(
    optimizer: torch.optim.Optimizer, weights: Sequence[Tensor], setting: str
) -> None:
    """Refuse an optimizer of other weights than it was given, or without a learning rate."""
    held, given = {*map(id, _weights(optimizer))}, {*map(id, weights)}
    if held != given:
        raise ConfigError(
            f"Expected an optimizer of all {len(given)} trained parameters and no others; "
            f"{type(optimizer).__name__} has {len(held & given)} of them, and {len(held - given)} "
            f"others. Hand all of them to it, or set {setting}. Leave parameters out of the "
            "training by method.freeze."
        )
    if any("lr" not in group for group in optimizer.param_groups):
        raise ConfigError(
            "Expected groups of parameters with a learning rate, lr, which the schedule sets; one "
            f"of {type(optimizer).__name__} has none. Give it one, or set {setting}."
        )


def check_size(optimizer: torch.optim.Optimizer, size: float, dtype: torch.dtype) -> None:
    """Check that a copy of the optimizer can step along gradients of a run's size.

    An optimizer that squares gradients has half the range of one that adds them. Outside it, its
    state is infinite or zero, and its steps are meaningless.

    Args:
        optimizer: of a run, after `check_optimizer`; it is not changed.
        size: of one entry of a gradient, > 0.
        dtype: of the weights.

    Raises:
        ConfigError: naming the clip norm.
    """
    usual, kept = (_stepped(optimizer, each, dtype) for each in (1.0, size))
    for before, now in zip(usual, kept, strict=True):
        if not now.isfinite().all() or (before.all() and not now.any()):
            what = "zero" if now.isfinite().all() else "not finite"
            raise ConfigError(
                f"Expected gradients that {type(optimizer).__name__} can square in "
                f"{str(dtype).removeprefix('torch.')}; at their size here, about {size:.2g}, what "
                f"it remembers is {what}. Set privacy.clip_norm."
            )


def _stepped(optimizer: torch.optim.Optimizer, size: float, dtype: torch.dtype) -> list[Tensor]:
    """Return the state of a copy of the optimizer after a step along gradients of a size.

    Empty if its constructor needs more than its defaults.
    """
    with torch.random.fork_rng(devices=[]):  # a constructor or a step may draw
        like = _copy(optimizer, dtype)
        if like is None:
            return []
        _step(like, size)
    remembered = (value for state in like.state.values() for value in state.values())
    return [value for value in remembered if torch.is_tensor(value) and value.shape == SHAPE]


def _copy(optimizer: torch.optim.Optimizer, dtype: torch.dtype) -> torch.optim.Optimizer | None:
    """Return such an optimizer of one weight of zeros; None if it needs more than its defaults."""
    kind = type(optimizer)
    takes = inspect.signature(kind).parameters
    weight = nn.Parameter(torch.zeros(SHAPE, dtype=dtype))
    try:
        settings = {key: v for key, v in optimizer.defaults.items() if key in takes}
        return kind([weight], **settings | ({"lr": 0.1} if "lr" in takes else {}))
    except Exception:
        return None


def _step(optimizer: torch.optim.Optimizer, size: float) -> None:
    """Take a step along gradients of a size."""
    for weight in _weights(optimizer):
        weight.grad = torch.full_like(weight, size)
    take_step(optimizer)


def _weights(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def _refused(kind: type, reason: str, setting: str) -> ConfigError:
    return ConfigError(
        "Expected an optimizer that steps along the one gradient that it is given; "
        f"{kind.__name__} does not ({reason}). Set {setting}._target_=torch.optim.SGD, Adam or "
        "another."
    )


def set_rates(optimizer: torch.optim.Optimizer, rates: list[float], multiplier: float) -> None:
    """Set each group's learning rate to its initial one times a multiplier."""
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * multiplier
