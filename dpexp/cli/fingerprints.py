"""The hashes of the pretrained weights and tokenizers that a config names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PRETRAINED = "dpexp.models.language.pretrained"

SETTINGS, WEIGHTS, ELSE = ("config.json",), ("*.safetensors",), ("*.bin",)
"""Files of a pretrained language model, of which the last are read where there are no others."""


READ_BY = ("task", "public", "prompts")
"""Groups of a config whose `tokenizer` is read; a model's own is what these take by default."""


def pretrained(config: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Hash the pretrained weights and tokenizers that a config names: SHA-256 by file, by model.

    Raises:
        MissingData: they are nowhere to be found.
    """
    found: dict[str, dict[str, str]] = {}
    for name, files in (*_weights(config), *_tokenizers(config)):
        found.setdefault(name, {}).update({path.name: _sha256(path) for path in files})
    return found


def _weights(config: Mapping[str, Any]) -> Iterator[tuple[str, list[Path]]]:
    model, features = config["model"], config.get("features")
    if model.get("_target_") == PRETRAINED:
        from dpexp.data.hub import model_folder

        folder = model_folder(model["model_root"], model["repo"])
        weights = [path for one in WEIGHTS for path in sorted(folder.glob(one))]
        weights = weights or [path for one in ELSE for path in sorted(folder.glob(one))]
        yield model["repo"], [*(folder / name for name in SETTINGS), *weights]
    if features:
        from dpexp.data.features import files_of

        yield features["encoder"], files_of(features["encoder"], features["model_root"])


def _tokenizers(config: Mapping[str, Any]) -> Iterator[tuple[str, list[Path]]]:
    """Return the files of every tokenizer that a config's texts or prompts go through."""
    for name, root in tokenizers_named(config).items():
        from dpexp.data.hub import model_folder
        from dpexp.data.text import FILES

        folder = model_folder(root, name)
        yield name, [path for one in (*SETTINGS, *FILES) if (path := folder / one).is_file()]


def tokenizers_named(config: Mapping[str, Any]) -> dict[str, str]:
    """Name the models whose tokenizers are read, and the root below which each lies."""
    nodes = [config[group] for group in READ_BY if isinstance(config.get(group), Mapping)]
    return {node["tokenizer"]: node["model_root"] for node in nodes if node.get("tokenizer")}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
