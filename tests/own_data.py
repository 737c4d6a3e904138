"""Data of someone's own, in the shapes that people keep them in."""

import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from dpexp import cli
from dpexp.cli.config_cache import Configs
from dpexp.types import ConfigError
from tests.steps import CPU

CONFIGS = Configs()


def task_of(*words):
    """Load the task that these words name."""
    return cli.build_task(CONFIGS.compose_anew(["method=dpsgd", *words]), CPU)


def refusal(*words):
    """Return the one line with which these words are refused."""
    with pytest.raises(ConfigError) as raised:
        task_of(*words)
    line = str(raised.value)
    assert "\n" not in line and line.startswith("Expected ") and len(line) < 1500
    return line


def picture(seed=0, size=(8, 8), mode="RGB"):
    """Draw a random image of a size (height, width)."""
    channels = {"L": (), "RGB": (3,), "RGBA": (4,), "LA": (2,)}[mode]
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, *channels), dtype=np.uint8)
    if mode in ("RGBA", "LA"):
        pixels[..., -1] = 255
    return Image.fromarray(pixels, mode)


def save_folders(root, splits, **drawn):
    """Write random images as SPLIT/CLASS/N.png, {split: {class: count}}; "" is no split."""
    seed = 0
    for split, classes in splits.items():
        for name, count in classes.items():
            folder = root / split / name
            folder.mkdir(parents=True)
            for index in range(count):
                picture(seed, **drawn).save(folder / f"{index}.png")
                seed += 1
    return root


def save_csv(path, rows, **how):
    """Write rows, the header first, as Python's csv does."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, **how).writerows(rows)
    return path


def save_lines(path, rows):
    """Write objects as JSONL."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def save_parquet(path, columns, names=None):
    """Write columns; `names` gives some class names, as the datasets library has them."""
    table = pa.table(columns)
    if names:
        features = {
            key: {"names": list(some), "_type": "ClassLabel"} for key, some in names.items()
        }
        said = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": said})
    pa.parquet.write_table(table, path)
    return path
