"""The rows of dpexp's table4, methods and recipes, on random examples of its quick profile's shape.

What a step of each row costs stands beside its accuracy in the table's page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from dpexp.cli import composition, groups
from dpexp.cli.parts import build_parts
from dpexp.cli.stand_in import LENGTH, stand_in
from dpexp.data import Examples
from dpexp.reporting.collect import cells
from dpexp.reporting.schema import spec
from scripts.bench.steps import UNIT, Case, Step, nonprivate_step, private_step

UNIT_ROW = "np"

VOCABULARY = 30_522
"""Of MiniLM, whose embeddings some rows train."""


def configs(column: str) -> dict[str, dict[str, Any]]:
    """Return the config of every row that the quick profile has in a column, by the row's key."""
    artifact = spec.load(groups.CONF, "dpexp", "table4")
    profile = cells.profile_of(artifact, "quick")
    (at,) = (c for c in artifact.columns if c.key == column)
    return {
        row.key: composition.compose(["profile=quick", *cells.words_of(row, at, profile)])
        for row in artifact.rows
        if not cells.is_skipped(artifact, profile, row, at)
    }


def step_of(config: dict[str, Any], num: int, device: torch.device) -> Step:
    """Make a row's step: its method, model, views and clipping rule, on `num` examples at once."""
    small = stand_in(config, 1)
    if "vocabulary" in small["model"]:
        small["model"]["vocabulary"] = VOCABULARY
    parts = build_parts(small, device)

    def new_model() -> nn.Module:
        return build_parts(small, device).model

    batch = parts.task.train.batch(torch.arange(num))
    some = Examples(batch.inputs, batch.targets).to(device)
    if config["method"]["name"] == "nonprivate":
        return nonprivate_step(some, new_model)
    return private_step(
        parts.method,
        some,
        new_model,
        device,
        augmentation=parts.augmentation,
        clipping=parts.clipping,
    )


def steps(column: str, num: int, device: torch.device) -> Mapping[str, Callable[[], Step]]:
    """Name every row's step by the row's key; the one without privacy is the unit, too."""
    return {
        name: partial(step_of, config, num, device)
        for row, config in configs(column).items()
        for name in ((UNIT, row) if row == UNIT_ROW else (row,))
    }


NOTES = (
    "Rows are those of [table4](../quick/dpexp/table4.md), by their keys, as its quick profile "
    "runs them. An average of the weights, which is no part of a gradient's step, is not counted."
)

IMAGES = Case(
    title="WRN10-2 on CIFAR10's shape, as in dpexp's table4",
    build=partial(steps, "scratch-eps8"),
    batch=64,
    notes=NOTES,
)
TEXTS = Case(
    title=f"MiniLM's shape on {LENGTH} tokens, as in dpexp's table4",
    build=partial(steps, "sst2-eps8"),
    batch=32,
    notes=NOTES,
)
