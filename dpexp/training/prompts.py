"""Initialise a classifier with the features of texts that name the classes.

A sentence encoder puts texts of like meaning near each other, so that the features of a few texts
for each class classify before anything is learnt, without looking at any data. Clipped, noisy steps
then start where the gradient already points somewhere (the reason for which Li et al. 2022, arXiv
2110.05679, Section 3.2, turn classification into filling in a word).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import transformers
from torch import Tensor

from dpexp.data.hub import model_folder
from dpexp.models.language import TextClassifier
from dpexp.models.mode import in_mode
from dpexp.types import ConfigError


def begin_with(
    model: TextClassifier,
    num_classes: int,
    *,
    name: str,
    texts: Sequence[Sequence[str]],
    scale: float,
    tokenizer: str | None,
    model_root: str,
) -> None:
    """Set each class's classifier weights to the mean features of its texts.

    Features are centred between the classes, so that a text in the middle favours no class.

    Args:
        model: a text classifier whose head is one layer.
        num_classes: its outputs.
        name: as in conf/prompts.
        texts: a list for each class, in the classes' order.
        scale: factor on the weights, > 0: features of norm one differ little.
        tokenizer: owner/name on the hub, the model's; None for a model without one.
        model_root: a folder laid out like hub snapshots, looked at before the hub.

    Raises:
        ConfigError: if the model does not fit, or the number of lists is not that of classes.
    """
    if not isinstance(model, TextClassifier) or model.head.dense is not None:
        raise ConfigError(
            f"Expected a language model whose classifier is one layer for prompts={name}. "
            "Set model, or model.head_layers=1, or leave prompts out."
        )
    if tokenizer is None:
        raise ConfigError(
            "Expected a model with a tokenizer of its own, which reads the texts of "
            f"prompts={name}; this one has none. Set model, or leave prompts out."
        )
    if len(texts) != num_classes or not all(texts) or scale <= 0:
        raise ConfigError(
            f"Expected prompts={name} to name texts for each of {num_classes} classes, and a scale "
            f"> 0; got {[len(some) for some in texts]} and {scale}. Set prompts.texts and "
            "prompts.scale."
        )
    words = transformers.AutoTokenizer.from_pretrained(model_folder(model_root, tokenizer))
    means = torch.stack([_mean(model, words, list(some)) for some in texts])
    middle = means.mean(0)
    weight = scale * (means - middle)
    with torch.no_grad():
        model.head.out.weight.copy_(weight)
        model.head.out.bias.copy_(-weight @ middle)


@torch.no_grad()
def _mean(
    model: TextClassifier, words: transformers.PreTrainedTokenizerBase, texts: list
) -> Tensor:
    """Return the mean of texts' features in eval mode, [width]."""
    encoded = words(texts, padding=True, return_tensors="pt")
    ids, mask = encoded["input_ids"], encoded["attention_mask"]
    inputs = torch.stack([ids, mask, torch.zeros_like(ids)], dim=1)
    with in_mode(model, is_training=False):
        features = model.features(inputs.to(model.head.out.weight.device))
    return features.to(model.head.out.weight.dtype).mean(0)
