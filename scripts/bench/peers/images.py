"""CIFAR10 from parquet files, as a data set of normalised images; and its evaluation."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

MEAN = torch.tensor([0.4914, 0.4822, 0.4465])[:, None, None]
STD = torch.tensor([0.2023, 0.1994, 0.2010])[:, None, None]


class Images(Dataset):
    """A split, decoded into memory; an item is a normalised image and its class."""

    def __init__(self, folder: Path, split: str) -> None:
        """Read and decode `<folder>/<split>-00000-of-00001.parquet`."""
        rows = pd.read_parquet(folder / f"{split}-00000-of-00001.parquet")
        self.images = [
            Image.open(io.BytesIO(image["bytes"])).convert("RGB") for image in rows["img"]
        ]
        self.labels = rows["label"].tolist()

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return an image [3, 32, 32] and its class."""
        pixels = torch.from_numpy(np.array(self.images[index])).permute(2, 0, 1)
        return (pixels / 255 - MEAN) / STD, self.labels[index]


@torch.no_grad()
def evaluate(model: nn.Module, test: Dataset) -> float:
    """Return the percentage of images whose class the model tells."""
    model.eval()
    right = sum(
        int((model(images).argmax(1) == labels).sum())
        for images, labels in DataLoader(test, batch_size=128)
    )
    return 100 * right / len(test)
