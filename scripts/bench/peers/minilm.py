"""A classifier on a pretrained sentence encoder, with its embeddings frozen."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer, logging

from scripts.bench.peers.sentences import Sentences


class Classifier(nn.Module):
    """The mean of the last states, at norm one, and a linear layer."""

    def __init__(self, folder: Path, num_classes: int = 2) -> None:
        """Load the encoder of transformers from a folder."""
        super().__init__()
        no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        self.encoder = AutoModel.from_pretrained(
            folder, add_pooling_layer=False, dtype=torch.float32, **no_dropout
        )
        self.encoder.embeddings.requires_grad_(False)
        self.head = nn.Linear(self.encoder.config.hidden_size, num_classes)
        nn.init.normal_(self.head.weight, std=0.1)
        nn.init.zeros_(self.head.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map ids and mask [n, 2, t] to logits [n, num_classes]."""
        ids, mask = inputs.unbind(1)
        states = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask[..., None].to(states.dtype)
        mean = (states * weights).sum(1) / weights.sum(1)
        return self.head(F.normalize(mean, dim=1))


def prepared(
    given: argparse.Namespace,
) -> tuple[Classifier, list[nn.Parameter], Sentences, Sentences]:
    """Return the model in training mode, what of it trains, and the two splits, tokenised."""
    logging.set_verbosity_error()
    torch.manual_seed(given.seed)
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    train, test = (Sentences(given.data, split, tokenizer) for split in ("train", "validation"))
    model = Classifier(given.model).train()
    return model, [each for each in model.parameters() if each.requires_grad], train, test
