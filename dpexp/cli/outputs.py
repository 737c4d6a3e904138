"""How many outputs a model has, found by calling it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from dpexp.data import Examples
from dpexp.data.text import Texts
from dpexp.models.adapting import logits_of
from dpexp.models.mode import in_mode
from dpexp.models.vocabulary import ended
from dpexp.training.probing.stage import state_kept
from dpexp.types import ConfigError

LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "permute(0, 3, 1, 2)": lambda inputs: inputs.permute(0, 3, 1, 2),
    "unsqueeze(1)": lambda inputs: inputs.unsqueeze(1),
    "flatten(1)": lambda inputs: inputs.flatten(1),
}
"""Changes of inputs that a model may have meant: channels first, an axis of one channel, rows."""


def outputs_of(model: nn.Module, train: Examples | Texts) -> int:
    """Return how many outputs a model has for inputs of the shape of these.

    Args:
        model: maps inputs [n, ...] to logits [n, outputs].
        train: its training examples, of which shape and type count alone.

    Raises:
        ConfigError: the model fails on such inputs, or returns something else.
    """
    if isinstance(train, Texts):
        given = torch.ones((min(len(train), 2), 3, train.longest), dtype=torch.long)
        given[:, 2] = 0  # ids, mask, second text
        blank = given
    else:
        given = train.inputs[:2]  # whose shape and type count; an id of 0 often stands for padding
        blank = torch.zeros_like(given) if given.is_floating_point() else torch.ones_like(given)
        blank = ended(model, blank)
    try:
        found = _called(model, blank)
    except Exception as error:  # anyone's model, which may raise anything
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"Expected a model for {str(given.dtype).removeprefix('torch.')} inputs of shape "
            f"{[*given.shape]}; {type(model).__name__} fails on them ({type(error).__name__}: "
            f"{reason.rstrip('.')}). {_fitting(model, given, blank)}"
        ) from error
    if not isinstance(found, torch.Tensor) or found.ndim != 2:
        shape = list(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise ConfigError(
            f"Expected the model to return a tensor [n, outputs]; got {shape}. Wrap it in a module "
            "that returns its logits."
        )
    return found.shape[1]


def _called(model: nn.Module, blank: torch.Tensor) -> Any:
    """Return what a model makes of inputs as they are held, such as bytes; it stays as it is."""
    blanks = Examples(blank, torch.zeros(len(blank), dtype=torch.long))
    # What a module takes from the first batch that it sees is not to be taken from blanks: the
    # trial before the first step would find it set.
    with torch.no_grad(), in_mode(model, is_training=False), state_kept(model):
        return logits_of(model(blanks.batch(torch.arange(len(blank))).inputs))


def _fitting(model: nn.Module, given: torch.Tensor, blank: torch.Tensor) -> str:
    """Return what to do about a model that fails on inputs of this type and shape.

    Args:
        model: a classifier.
        given: some inputs [n, ...].
        blank: others of their shape and type, on which the model failed.
    """
    for change, changed in LAYOUTS.items():
        with suppress(Exception):  # anyone's model, which may raise anything
            if _called(model, changed(blank)).ndim == 2:
                return f"It takes inputs.{change}: pass these."
    real = (each.dtype for each in model.parameters() if each.is_floating_point())
    own, kind = next(real, torch.float32), str(given.dtype).removeprefix("torch.")
    if given.dtype == torch.uint8:
        return f"Bytes reach it as {own}, in [0, 1]. Pass inputs of a shape that it takes."
    if not given.is_floating_point():
        return "Pass floats if it takes numbers: integers reach it as they are, as ids do."
    if own == given.dtype:
        return "Pass inputs of a shape that it takes."
    if own not in (torch.float32, torch.float64):
        return f"It is in {own}, too coarse for noise. Pass model.float(), and inputs in float32."
    other = f", or a model in {kind}" if kind in ("float32", "float64") else ""
    return f"It is in {own}. Pass inputs in that precision{other}."
