"""Folders of random images, laid out like hub snapshots."""

import datasets
import numpy as np
from PIL import Image


def save_images(root, settings, counts, shards=1, seed=0):
    """Write images where a set of the hub would have them, and give what was written.

    Args:
        root: the folder for data_root.
        settings: of the task, as in conf/task.
        counts: how many of each split.
        shards: files of each split.
        seed: of pixels and labels.
    """
    rng = np.random.default_rng(seed)
    channels, height, width = settings["input_shape"]
    folder = root / settings["repo"] / settings["config"]
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for split, count in counts.items():
        pixels = rng.integers(0, 256, (count, height, width, channels), dtype=np.uint8)
        labels = rng.integers(0, settings["num_classes"], count)
        images = [Image.fromarray(p.squeeze(-1) if channels == 1 else p) for p in pixels]
        columns = {settings["image_column"]: images, settings["label_column"]: labels}
        features = datasets.Features(
            {
                settings["image_column"]: datasets.Image(),
                settings["label_column"]: datasets.Value("int64"),
            }
        )
        whole = datasets.Dataset.from_dict(columns, features=features)
        for index in range(shards):
            part = whole.shard(shards, index, contiguous=True)
            part.to_parquet(folder / f"{split}-{index:05d}-of-{shards:05d}.parquet")
        written[split] = (pixels.transpose(0, 3, 1, 2), labels)
    return written
