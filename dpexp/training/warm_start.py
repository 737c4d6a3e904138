"""A public warm start: the model learns from public examples before it sees a private one.

The private steps then have less to learn, as in private training from weights of a public set
(Kurakin et al. 2022, arXiv 2201.12328). The warm start costs no privacy: it reads nothing private.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dpexp.kernels import fast_kernels
from dpexp.models.mode import in_mode
from dpexp.types import ConfigError


@fast_kernels()
def fit(
    model: nn.Module,
    task: Any,
    *,
    name: str,
    examples: int,
    batch_size: int,
    lr: float,
    head_lr: float,
    head: str,
) -> None:
    """Train every parameter on the first public examples, once each, by Adam.

    Learning rates fall linearly to zero.

    Args:
        model: on the run's device; changed in place.
        task: a `dpexp.data.Task`, with a public set and a loss.
        name: as in conf/warm_start.
        examples: number of public examples, >= batch_size.
        batch_size: examples per step, >= 1; a remainder is not used.
        lr: of all parameters but the classifier's, > 0.
        head_lr: the classifier's, > 0.
        head: the classifier's name in the model.

    Raises:
        ConfigError: for a value outside its range, or public examples without the task's labels.
    """
    if not 1 <= batch_size <= examples or not min(lr, head_lr) > 0:
        raise ConfigError(
            "Expected warm_start.examples >= warm_start.batch_size >= 1 and learning rates > 0; "
            f"got {examples}, {batch_size}, {lr} and {head_lr}. Set warm_start.batch_size to at "
            "most warm_start.examples, and warm_start.lr and warm_start.head_lr above 0."
        )
    if (task.public.targets[:examples] < 0).any():
        raise ConfigError(
            f"Expected public examples labelled with the classes of {task.name} for "
            f"warm_start={name}; this set's have no such labels. Leave warm_start out, or "
            "set public to a set that has them."
        )
    head_weights = list(model.get_submodule(head).parameters())
    known = {id(weight) for weight in head_weights}
    others = [weight for weight in model.parameters() if id(weight) not in known]
    groups = [{"params": others, "lr": lr}, {"params": head_weights, "lr": head_lr}]
    optimizer = torch.optim.Adam(groups)
    steps = examples // batch_size
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 1.0 / steps, max(1, steps - 1))
    device = head_weights[0].device
    with torch.enable_grad(), in_mode(model, is_training=True):
        for indices in torch.arange(steps * batch_size).split(batch_size):
            batch = task.public.batch(indices).to(device)
            loss = task.loss(model(batch.inputs), batch.targets) / len(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    optimizer.zero_grad()
