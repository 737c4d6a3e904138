"""Check that a model's vocabulary covers its tokenizer."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from dpexp.types import ConfigError


def token_table(model: nn.Module) -> nn.Embedding | None:
    """Return the embedding of token ids; None if there is none.

    It is the one that a module names, as transformers' do, or else the largest.
    """
    for part in model.modules():
        getter = getattr(part, "get_input_embeddings", None)
        with suppress(NotImplementedError):  # transformers' answer for most models of images
            if getter is not None and isinstance(table := getter(), nn.Embedding):
                return table
    tables = [layer for layer in model.modules() if isinstance(layer, nn.Embedding)]
    return max(tables, key=lambda layer: layer.num_embeddings, default=None)


def ended(model: nn.Module, ids: Tensor) -> Tensor:
    """Return made-up integers as texts that a model takes: of one end token each, at the end.

    Encoder-decoders of transformers, as T5 and BART, classify by the end token and refuse a batch
    in which texts have several or none. What another model is given stays as it is.

    Args:
        model: any module.
        ids: [n, t], made up.
    """
    config = getattr(model, "config", None)
    end = getattr(config, "eos_token_id", None)
    if not getattr(config, "is_encoder_decoder", False) or type(end) is not int or ids.ndim != 2:
        return ids
    ids = torch.where(ids == end, end - 1 if end > 1 else end + 1, ids)
    ids[:, -1] = end
    return ids


def require_vocabulary(model: nn.Module, examples: Any) -> None:
    """Check that a model's embedding covers the tokenizer's vocabulary, without reading texts.

    Args:
        model: see `token_table`.
        examples: a training set; one without texts or a known vocabulary passes.

    Raises:
        ConfigError: the tokenizer has more ids.
    """
    wanted = getattr(examples, "vocabulary", 0)
    table = token_table(model)
    if table is not None and wanted > table.num_embeddings:
        raise ConfigError(
            f"Expected an embedding of at least {wanted} tokens, as many as the tokenizer has; "
            f"the model's has {table.num_embeddings} rows. Set model.tokenizer to the model's, "
            "or a larger model.vocabulary."
        )
