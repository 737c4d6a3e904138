"""A transformer of RoBERTa-base's shape on texts of 128 tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from dpexp.methods.dpsgd import DPSGD
from dpexp.models.language import from_scratch
from dpexp.tasks.text import Encoded, Texts
from scripts.bench.steps import (
    FLOOR,
    UNIT,
    Case,
    Step,
    core,
    floor_step,
    lsg,
    nonprivate_step,
    opacus_step,
    private_step,
    rgp,
)

TOKENS, VOCABULARY = 128, 50_265


def random_texts(num: int, device: torch.device) -> Texts:
    """Draw texts that fill all their tokens."""
    gen = torch.Generator().manual_seed(0)
    ids = torch.randint(3, VOCABULARY, (num, TOKENS), generator=gen, dtype=torch.int32)
    full = torch.full((num,), TOKENS, dtype=torch.int32)
    targets = torch.randint(2, (num,), generator=gen)
    return Texts(Encoded(ids, full, full), targets, TOKENS).to(device)


def new_model(device: torch.device, has_frozen_tables: bool = False) -> nn.Module:
    """Build RoBERTa-base's shape with random weights."""
    torch.manual_seed(0)
    model = from_scratch(
        architecture="roberta",
        layers=12,
        width=768,
        attention_heads=12,
        feed_forward=3072,
        vocabulary=VOCABULARY,
        pooling="first",
        feature_norm=1.0,
        head_std=0.02,
        head_layers=2,
        dropout=0.0,
        precision="float32",
        checkpointing=False,
        num_classes=2,
        max_length=TOKENS,
    )
    if has_frozen_tables:
        model.encoder.embeddings.requires_grad_(False)
    return model.to(device)


def steps(num: int, device: torch.device) -> dict[str, Callable[[], Step]]:
    """Name every step, with a function that builds it."""
    texts, plain = random_texts(num, device), partial(new_model, device)
    frozen = partial(new_model, device, has_frozen_tables=True)
    low_rank = {"rank": 8, "head_scale": 0.1}
    return {
        UNIT: lambda: nonprivate_step(texts, plain),
        FLOOR: lambda: floor_step(texts, plain),
        "RGP, r = 8": lambda: private_step(rgp("both", **low_rank), texts, plain, device),
        "RGP core, r = 8": lambda: private_step(core(8), texts, plain, device, public=texts),
        "LSG, r = 8, p = 0.5": lambda: private_step(lsg(**low_rank), texts, plain, device),
        "DP-SGD": lambda: private_step(DPSGD("all", "head"), texts, plain, device),
        "DP-SGD, matrices": lambda: private_step(DPSGD("matrices", "head"), texts, plain, device),
        "Opacus hooks, no embeddings": lambda: opacus_step(texts, frozen, is_ghost=False),
        "Opacus ghost, no embeddings": lambda: opacus_step(texts, frozen, is_ghost=True),
    }


CASE = Case(
    title=f"RoBERTa-base's shape, {TOKENS} tokens",
    build=steps,
    batch=8,
    goals={
        "RGP, r = 8": (0.70, 0.9),
        "LSG, r = 8, p = 0.5": (0.70, 0.9),
        "DP-SGD": (1.35, 1.3),
    },
    notes="Every parameter trains in the unit and in DP-SGD, embeddings included; weights are "
    "random and dropout is off.",
)
