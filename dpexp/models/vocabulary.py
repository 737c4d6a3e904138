"""Which token ids a model must know."""

from __future__ import annotations

from typing import Any

from torch import nn

from dpexp.types import ConfigError


def token_table(model: nn.Module) -> nn.Embedding | None:
    """Find the embedding that token ids go to; None where there is none.

    It is what a part of the model says it is, as those of transformers do, or else the largest.
    """
    for part in model.modules():
        named = getattr(part, "get_input_embeddings", None)
        if named is not None and isinstance(table := named(), nn.Embedding):
            return table
    tables = [layer for layer in model.modules() if isinstance(layer, nn.Embedding)]
    return max(tables, key=lambda layer: layer.num_embeddings, default=None)


def require_vocabulary(model: nn.Module, examples: Any) -> None:
    """Check that a model knows every token that its texts may hold; no text is looked at.

    Args:
        model: see `token_table`.
        examples: a training set; one that is not of texts, or does not say its ids, passes.

    Raises:
        ConfigError: the tokenizer knows more ids.
    """
    wanted = getattr(examples, "vocabulary", 0)
    table = token_table(model)
    if table is not None and wanted > table.num_embeddings:
        raise ConfigError(
            f"Expected an embedding of at least {wanted} tokens, as many as the tokenizer knows; "
            f"the model's has {table.num_embeddings} rows. Set model.tokenizer to the model's own, "
            "or a larger model.vocabulary."
        )
