"""A transformer of RoBERTa-base's shape on texts of 128 tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import transformers
from torch import Tensor, nn

from dpexp.data.text import Encoded, Texts
from dpexp.methods.dpsgd import DPSGD
from dpexp.models.language import from_scratch
from scripts.bench.steps import (
    FLOOR,
    UNIT,
    Case,
    Step,
    core,
    fast,
    floor_step,
    grape,
    lsg,
    nonprivate_step,
    opacus_step,
    private_step,
    rgp,
    zo,
)

TOKENS, VOCABULARY = 128, 50_265


def random_texts(num: int, device: torch.device) -> Texts:
    """Draw texts that fill all their tokens."""
    gen = torch.Generator().manual_seed(0)
    ids = torch.randint(3, VOCABULARY, (num, TOKENS), generator=gen, dtype=torch.int32)
    full = torch.full((num,), TOKENS, dtype=torch.int32)
    targets = torch.randint(2, (num,), generator=gen)
    return Texts(Encoded(ids, full, full), targets, TOKENS).to(device)


class Plain(nn.Module):
    """transformers' own RoBERTa for classification, as anybody would train it."""

    def __init__(self, config: transformers.PretrainedConfig) -> None:
        super().__init__()
        self.classifier = transformers.RobertaForSequenceClassification(config)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map tokens [n, 3, t] to logits [n, 2]."""
        ids, mask, _ = inputs.unbind(1)
        segments = torch.zeros_like(ids)
        return self.classifier(ids, attention_mask=mask, token_type_ids=segments).logits


def plain_model(device: torch.device, has_frozen_tables: bool = False) -> nn.Module:
    """Build transformers' own of RoBERTa-base's shape with random weights."""
    with torch.device("meta"):
        config = new_model(torch.device("meta")).encoder.config
    torch.manual_seed(0)
    model = Plain(config)
    if has_frozen_tables:
        model.classifier.roberta.embeddings.requires_grad_(False)
    return model.to(device)


def new_model(device: torch.device) -> nn.Module:
    """Build the suite's own of the same shape, whose last layer asks for the first token alone."""
    torch.manual_seed(0)
    return from_scratch(
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
    ).to(device)


def steps(num: int, device: torch.device) -> dict[str, Callable[[], Step]]:
    """Name every step, with a function that builds it."""
    texts, ours = random_texts(num, device), partial(new_model, device)
    plain, frozen = (partial(plain_model, device, is_frozen) for is_frozen in (False, True))
    low_rank = {"rank": 8, "head_factor": 0.1}
    return {
        UNIT: lambda: nonprivate_step(texts, plain),
        "non-private, last layer at the first token": lambda: nonprivate_step(texts, ours),
        "non-private, last layer at the first token, by oneDNN": lambda: fast(
            nonprivate_step(texts, ours)
        ),
        FLOOR: lambda: floor_step(texts, ours),
        "RGP, r = 8": lambda: private_step(rgp("both", **low_rank), texts, ours, device),
        "RGP core, r = 8": lambda: private_step(core(8), texts, ours, device, public=texts),
        "LSG, r = 8, p = 0.5": lambda: private_step(lsg(**low_rank), texts, ours, device),
        "DP-SGD": lambda: private_step(DPSGD("all", "head"), texts, ours, device),
        "DP-SGD, matrices": lambda: private_step(DPSGD("matrices", "head"), texts, ours, device),
        "DP-GRAPE, r = 8, matrices": lambda: private_step(
            grape(8, "matrices"), texts, ours, device
        ),
        "DP-ZO, one direction": lambda: private_step(zo(), texts, ours, device),
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
    notes="The unit and Opacus's rows are transformers' own RobertaForSequenceClassification; all "
    "other rows are the suite's model, whose last layer works for the first token alone: the same "
    "function, and less work for whoever trains it (the second row). Every parameter trains in the "
    "unit and in DP-SGD, embeddings included; weights are random and dropout is off.",
)
