"""SST-2 from parquet files, tokenised; batches padded to their longest; and its evaluation."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedTokenizerBase

LONGEST = 128


class Sentences(Dataset):
    """A split; an item is a sentence's token ids and its class."""

    def __init__(self, folder: Path, split: str, tokenizer: PreTrainedTokenizerBase) -> None:
        """Read and tokenise `<folder>/<split>-00000-of-00001.parquet`."""
        rows = pd.read_parquet(folder / f"{split}-00000-of-00001.parquet")
        told = tokenizer(rows["sentence"].tolist(), truncation=True, max_length=LONGEST)
        self.ids = [torch.tensor(ids) for ids in told["input_ids"]]
        self.labels = rows["label"].tolist()

    def __len__(self) -> int:
        """Return the number of sentences."""
        return len(self.ids)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return token ids [t] and the class."""
        return self.ids[index], self.labels[index]


def collate(items: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """Return ids and mask [n, 2, t], padded to the longest, and classes [n]."""
    ids = [sentence for sentence, _ in items]
    mask = [torch.ones_like(sentence) for sentence in ids]
    padded = [pad_sequence(each, batch_first=True) for each in (ids, mask)]
    return torch.stack(padded, 1), torch.tensor([label for _, label in items])


def in_parts(
    items: list[tuple[Tensor, int]], size: int, *, is_sorted: bool
) -> list[tuple[Tensor, Tensor]]:
    """Return a batch in parts of `size` sentences, which may be sorted by length before."""
    if is_sorted:
        items = sorted(items, key=lambda item: len(item[0]))
    return [collate(items[at : at + size]) for at in range(0, len(items), size)]


@torch.no_grad()
def evaluate(model: nn.Module, test: Dataset) -> float:
    """Return the percentage of sentences whose class the model tells."""
    model.eval()
    right = sum(
        int((model(inputs).argmax(1) == labels).sum())
        for inputs, labels in DataLoader(test, batch_size=128, collate_fn=collate)
    )
    return 100 * right / len(test)
