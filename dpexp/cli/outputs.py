"""How many outputs a model has, found by calling it."""

from __future__ import annotations

import torch
from torch import nn

from dpexp.data import Examples
from dpexp.data.text import Texts
from dpexp.models.adapting import logits_of
from dpexp.models.mode import in_mode
from dpexp.models.vocabulary import ended
from dpexp.training.probing.stage import state_kept
from dpexp.types import ConfigError


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
    blanks = Examples(blank, torch.zeros(len(blank), dtype=torch.long))
    try:
        # What a module takes from the first batch that it sees is not to be taken from blanks: the
        # trial before the first step would find it set.
        with torch.no_grad(), in_mode(model, is_training=False), state_kept(model):
            found = logits_of(model(blanks.batch(torch.arange(len(blank))).inputs))
    except Exception as error:  # anyone's model, which may raise anything
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"Expected a model for {str(given.dtype).removeprefix('torch.')} inputs of shape "
            f"{[*given.shape]}; {type(model).__name__} fails on them ({type(error).__name__}: "
            f"{reason.rstrip('.')}). {_fitting(model, given)}"
        ) from error
    if not isinstance(found, torch.Tensor) or found.ndim != 2:
        shape = list(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise ConfigError(
            f"Expected the model to return a tensor [n, outputs]; got {shape}. Wrap it in a module "
            "that returns its logits."
        )
    return found.shape[1]


def _fitting(model: nn.Module, given: torch.Tensor) -> str:
    """Return what to do about a model that fails on inputs of this type and shape."""
    real = (each.dtype for each in model.parameters() if each.is_floating_point())
    own, kind = next(real, torch.float32), str(given.dtype).removeprefix("torch.")
    if not given.is_floating_point():
        return "Pass floats if it takes numbers: integers reach it as they are, as ids do."
    if own == given.dtype:
        return "Pass inputs of a shape that it takes."
    if own not in (torch.float32, torch.float64):
        return f"It is in {own}, too coarse for noise. Pass model.float(), and inputs in float32."
    other = f", or a model in {kind}" if kind in ("float32", "float64") else ""
    return f"It is in {own}. Pass inputs in that precision{other}."
