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
from scripts.bench.steps import UNIT, Case, Step, fast, nonprivate_step, private_step

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


def step_of(
    config: dict[str, Any], num: int, device: torch.device, *, is_plain: bool = False
) -> Step:
    """Make a row's step: its method, model, views and clipping rule, on `num` examples at once.

    Args:
        config: of the row, without privacy if `is_plain`.
        num: of examples.
        device: that computes.
        is_plain: whether to leave out the suite's own layout of images, and its kernels.
    """
    small, layout = stand_in(config, 1), config["model"].get("channels_last")
    if layout is not None and not is_plain:
        small["model"]["channels_last"] = layout
    if "pretrained" in small["model"]:  # random weights take as long
        small["model"]["pretrained"] = False
    if "vocabulary" in small["model"]:
        small["model"]["vocabulary"] = VOCABULARY
    parts = build_parts(small, device)

    def new_model() -> nn.Module:
        return build_parts(small, device).model

    batch = parts.task.train.batch(torch.arange(num))
    some = Examples(batch.inputs, batch.targets).to(device)
    if config["method"]["name"] == "nonprivate":
        step = nonprivate_step(some, new_model)
        return step if is_plain else fast(step)
    return private_step(
        parts.method,
        some,
        new_model,
        device,
        augmentation=parts.augmentation,
        clipping=parts.clipping,
    )


def steps(column: str, num: int, device: torch.device) -> Mapping[str, Callable[[], Step]]:
    """Name every row's step by the row's key; the unit is plain PyTorch's without privacy."""
    rows = configs(column)
    named = {row: partial(step_of, config, num, device) for row, config in rows.items()}
    return {UNIT: partial(step_of, rows[UNIT_ROW], num, device, is_plain=True), **named}


NOTES = (
    "Rows are those of [table4](../quick/dpexp/table4.md), by their keys, as its quick profile "
    "runs them, in its layout of images and with the suite's kernels. The unit is plain PyTorch's "
    "step without privacy. An average of the weights, which is no part of a gradient's step, is "
    "not counted."
)

IMAGES = Case(
    title="WRN10-2 on CIFAR10's shape, as in dpexp's table4",
    build=partial(steps, "scratch-eps8"),
    batch=64,
    notes=NOTES,
)
TUNED = Case(
    title="EfficientNet-Lite0 at 64 pixels with constant norms, as in dpexp's table4",
    build=partial(steps, "tuned-eps3"),
    batch=32,
    notes=f"{NOTES} Opacus refuses norms with constants.",
)
TEXTS = Case(
    title=f"MiniLM's shape on {LENGTH} tokens, as in dpexp's table4",
    build=partial(steps, "sst2-eps8"),
    batch=32,
    notes=NOTES,
    precision="auto",
)
