"""Check, before the first step, that an augmentation makes an example's views of it alone.

What mixes examples, as mixup and CutMix do, lets one example move its neighbours' gradients too:
each of them is clipped, but together they move by more than one clip norm.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dpexp.data.augmentation import Augmentation
from dpexp.privacy.seeds import generator
from dpexp.training.probing.check import CLEAR, MADE
from dpexp.training.probing.made_up import make_up
from dpexp.training.probing.recorder import gap
from dpexp.training.probing.stage import chance_kept, staged
from dpexp.types import Batch, ConfigError


@torch.no_grad()
def check_views(
    augmentation: Augmentation, task: Any, model: nn.Module, device: torch.device
) -> None:
    """Compare the views of made-up examples in a crowd with those of each by itself.

    Args:
        augmentation: of the run.
        task: for its examples' shape; no example is read.
        model: on its device; its precision and table of tokens say what examples may be.
        device: the model's.

    Raises:
        ConfigError: if the views of an example depend on another one, or on random numbers besides
            those that they are given, or if they are not so many as declared, an example's one
            after another.
    """
    dtype = next(model.parameters()).dtype
    try:
        with staged(model, dtype, device, draw=MADE):
            crowd = make_up(task, model, device, dtype).crowd
    except Exception:  # a model may reject synthetic inputs in any way; `check_model` says so
        return
    count, name, views = len(crowd), type(augmentation).__name__, augmentation.multiplicity
    draws = augmentation.draws(count, generator(0, "augmentation", 0))
    with chance_kept([device] if device.type == "cuda" else []):
        whole = _views(augmentation, crowd, draws)
        if (whole.views, len(whole), len(whole.inputs)) != (views, *2 * [count * views]):
            raise ConfigError(
                f"Expected {views} views of each of {count} examples, one after another, of "
                f"{name}; got {len(whole.inputs)} inputs and {len(whole)} targets, with "
                f"views={whole.views}. Correct its `views`."
            )
        for index in range(count):
            one = slice(index, index + 1)
            example = Batch(crowd.inputs[one], crowd.targets[one])
            alone = _views(augmentation, example, draws[one])
            rows = slice(index * views, (index + 1) * views)
            pairs = (whole.inputs[rows], alone.inputs), (whole.targets[rows], alone.targets)
            if not all(_are_alike(*pair) for pair in pairs):
                raise ConfigError(
                    f"Expected an augmentation that keeps examples apart; of {name} an example's "
                    "views change with the others in its batch, or with random numbers besides "
                    "`draws`. Make each view of its own example and draws."
                )


def _views(augmentation: Augmentation, batch: Batch, draws: Tensor) -> Batch:
    """Return the views of a copy, which an augmentation may write to."""
    return augmentation.views(Batch(batch.inputs.clone(), batch.targets.clone()), draws.clone())


def _are_alike(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal but for rounding of the larger numbers."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one, other) or (one.is_floating_point() and gap(one, other) <= CLEAR)
