from pathlib import Path

import pytest
import yaml

from dpexp.data.images import hub_images
from tests.images import save_images

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

    def write(*what, **how):
        return str(tmp_path / "data"), save_images(tmp_path / "data", *what, **how)

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
