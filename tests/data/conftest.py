from pathlib import Path

import datasets
import numpy as np
import pytest
import yaml
from PIL import Image

from dpexp.data.images import hub_images

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """No test reads what another, or a real run, has decoded."""
    monkeypatch.setenv("DPEXP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """The hub is a port nothing listens on, and its cache is empty."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")


@pytest.fixture
def conf():
    """Gives a task's settings as its YAML holds them, with some of them replaced."""

    def read(name, **changes):
        settings = yaml.safe_load((ROOT / "conf" / "task" / f"{name}.yaml").read_text())
        settings.pop("_target_")
        return {**settings, **changes}

    return read


@pytest.fixture
def hub_folder(tmp_path):
    """Writes random images where a set of the hub would have them, and says what it wrote."""

    def write(settings, counts, shards=1, seed=0):
        rng = np.random.default_rng(seed)
        channels, height, width = settings["input_shape"]
        folder = tmp_path / "data" / settings["repo"] / settings["config"]
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
        return str(tmp_path / "data"), written

    return write


@pytest.fixture
def cifar(conf, hub_folder):
    """Loads a tiny stand-in for CIFAR-10, written once and then read with any settings."""
    root, written = hub_folder(conf("cifar10"), {"train": 40, "test": 10})

    def load(**changes):
        return hub_images(**conf("cifar10", **{"data_root": root, "dataset_size": 40, **changes}))

    load.written = written
    load.folder = Path(root) / "uoft-cs" / "cifar10" / "plain_text"
    return load
