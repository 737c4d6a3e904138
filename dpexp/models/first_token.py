"""A last encoder layer that works out the first token's state alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FirstTokenAttention(nn.Module):
    """The attention of transformers' BERT and RoBERTa, asked by the first token only.

    It is their own cross-attention, in which the first token attends to all: keys and values are
    of every token, queries and everything after them of one. Parameters keep their names.
    """

    def __init__(self, attention: nn.Module) -> None:
        """Take over a self-attention's layers.

        Args:
            attention: of an encoder's layer, with its `self` and `output`.
        """
        super().__init__()
        own = attention.self
        with torch.device("meta"):  # whose layers take no memory and draw no random numbers
            asking = type(attention)(own.config, layer_idx=own.layer_idx, is_cross_attention=True)
        self.self, self.output = asking.self, attention.output
        for name in ("query", "key", "value", "dropout"):
            setattr(self.self, name, getattr(own, name))
        self.train(attention.training)

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: object
    ) -> tuple[Tensor, Tensor | None]:
        """Map states [n, t, d] and a mask [n, 1, t, t] to the first token's, [n, 1, d]."""
        first = hidden_states[:, :1]
        mask = None if attention_mask is None else attention_mask[:, :, :1]
        attended, weights = self.self(
            first, encoder_hidden_states=hidden_states, attention_mask=mask, **kwargs
        )
        return self.output(attended, first), weights


def keep_first_token(encoder: nn.Module) -> None:
    """Let an encoder's last layer give the first token's state alone, [n, 1, d].

    Where a classifier reads no other, the last layer's queries, output and feed-forward layers
    would work for states that nobody looks at: of RoBERTa-base's products 10 in 144. What comes out
    is the same up to rounding, and up to the masks that dropout draws.

    Args:
        encoder: transformers' BERT or RoBERTa; changed in place.
    """
    last = encoder.encoder.layer[-1]
    last.attention = FirstTokenAttention(last.attention)
