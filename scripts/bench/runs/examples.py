"""The examples that every contender of a case reads: one folder of parquet files, laid out alike.

Each is a random part of the real set under data_root, or images made up here.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from dpexp.data.hub import parquet_files
from dpexp.types import ConfigError, MissingData

MINILM = Path("sentence-transformers/all-MiniLM-L6-v2")
IMAGES, SENTENCES = "uoft-cs/cifar10/plain_text", "nyu-mll/glue/sst2"
"""Folders as they lie on the hub."""


def data_root() -> Path:
    """Return where data sets are looked for, as a run does."""
    return Path(os.environ.get("DPEXP_DATA_ROOT", "data")).expanduser().absolute()


def model_root() -> Path:
    """Return where pretrained models are looked for, as a run does."""
    return Path(os.environ.get("DPEXP_MODEL_ROOT", "models")).expanduser().absolute()


def write_images(root: Path, train: int, test: int) -> str:
    """Write images to root as CIFAR10 lies on the hub; return what they are.

    Raises:
        ConfigError: the real set is there, and has fewer.
    """
    if (data_root() / IMAGES).is_dir():
        return _write_part(root, "uoft-cs/cifar10", "plain_text", {"train": train, "test": test})
    folder = root / IMAGES
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (10, 4, 4, 3))
    for split, count in (("train", train), ("test", test)):
        labels = rng.integers(0, 10, count)
        drawn = [_picture(coarse[label], rng) for label in labels]
        images = [{"bytes": each, "path": None} for each in drawn]
        rows = pd.DataFrame({"img": images, "label": labels})
        rows.to_parquet(folder / f"{split}-00000-of-00001.parquet", index=False)
    return f"{train:,} training and {test:,} test images made up in CIFAR10's shape"


def _picture(coarse: np.ndarray, rng: np.random.Generator) -> bytes:
    """Return a PNG of 32 x 32 pixels: a class's 16 colours, and noise over them."""
    colours = coarse.repeat(8, 0).repeat(8, 1) + rng.normal(0, 60, (32, 32, 3))
    file = io.BytesIO()
    Image.fromarray(colours.clip(0, 255).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def write_sentences(root: Path, train: int, test: int) -> str:
    """Write sentences to root as SST-2 lies on the hub; return what they are.

    Raises:
        ConfigError: data or model are not there, or there are fewer sentences.
    """
    if not (model_root() / MINILM / "config.json").is_file():
        raise ConfigError(
            f"Expected {MINILM} in {model_root()} for run-language; found none. Put it there, or "
            "set DPEXP_MODEL_ROOT to the folder that holds it."
        )
    if not (data_root() / SENTENCES).is_dir():
        raise ConfigError(
            f"Expected nyu-mll/glue/sst2 in {data_root()} for run-language; found none. Put it "
            "there, or set DPEXP_DATA_ROOT to the folder that holds it."
        )
    return _write_part(root, "nyu-mll/glue", "sst2", {"train": train, "validation": test})


def _write_part(root: Path, repo: str, config: str, counts: dict[str, int]) -> str:
    """Write that many examples of each split, drawn at random, in the order in which they lie."""
    try:
        files = parquet_files(data_root(), repo, config, list(counts))
    except MissingData as error:
        raise ConfigError(str(error)) from None
    folder, told = root / repo / config, []
    folder.mkdir(parents=True)
    for split, count in counts.items():
        rows = pd.concat([pd.read_parquet(path) for path in files[split]], ignore_index=True)
        if len(rows) < count:
            raise ConfigError(
                f"Expected at most {len(rows)} examples, which {split} of {repo} has; got {count}. "
                "Set --examples or --test."
            )
        part = rows.sample(count, random_state=0).sort_index()
        part.to_parquet(folder / f"{split}-00000-of-00001.parquet", index=False)
        told.append(f"{count:,} of {split}'s {len(rows):,}")
    return f"{' and '.join(told)} examples of {repo}, {config}, at random"
