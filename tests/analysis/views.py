"""Runs to look at, before their first step."""

import torch

from dpexp import cli
from dpexp.distributed.ranks import Ranks
from dpexp.training.gradient import PrivateGradient
from dpexp.training.observation import View
from dpexp.training.train import make_mechanism

CPU = torch.device("cpu")


def on_digits(*words, step=0):
    """View a run of WRN10-1 on digits as its analyses would."""
    config = cli.compose(["profile=embedded", "task=digits", "device=cpu", *words])
    parts, ranks = cli.build_parts(config, CPU), Ranks(0, 1, CPU)
    state = parts.method.start(parts.model)
    mechanism = make_mechanism(
        config, parts.task.dataset_size, parts.method, state, ranks, parts.correlation
    )
    gradient = PrivateGradient(
        parts.model,
        parts.method,
        mechanism,
        ranks,
        50,
        parts.task.public,
        parts.task.loss,
        augmentation=parts.augmentation,
        clipping=parts.clipping,
    )
    parts.model.eval()
    return View(
        task=parts.task,
        model=parts.model,
        method=parts.method,
        state=state,
        mechanism=mechanism,
        examples=parts.task.train,
        step=step,
        device=CPU,
        gradient=gradient,
    )
