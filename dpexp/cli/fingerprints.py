"""Hash the pretrained weights and tokenizers that a config names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PRETRAINED = "dpexp.models.language.pretrained"

READERS = {
    PRETRAINED: "repo",
    "dpexp.models.from_transformers.classifier": "repo",
    "dpexp.models.from_timm.classifier": "architecture",
    "dpexp.models.from_torchvision.classifier": "architecture",
}
"""Models that are read from files, each with the setting that names them."""

SETTINGS, WEIGHTS, ELSE = ("config.json",), ("*.safetensors",), ("*.bin",)
"""Files of a pretrained language model; the last are read only if WEIGHTS match none."""


READ_BY = ("task", "public", "prompts")
"""Config groups whose `tokenizer` is read; their default is the model's."""


def pretrained(config: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the SHA-256 of a config's pretrained weights and tokenizers: model -> file -> hash.

    Raises:
        MissingData: if they are not found.
    """
    found: dict[str, dict[str, str]] = {}
    for name, files in (*_weights(config), *_tokenizers(config)):
        found.setdefault(name, {}).update({path.name: _sha256(path) for path in files})
    return found


def _weights(config: Mapping[str, Any]) -> Iterator[tuple[str, list[Path]]]:
    model, features = config["model"], config.get("features")
    if name := weights_named(config):
        yield name, _files(model)
    if features:
        from dpexp.data.encoders import files_of

        yield features["encoder"], files_of(features["encoder"], features["model_root"])


def weight_files(config: Mapping[str, Any]) -> list[Path]:
    """Return the files of weights that a config's model and its encoder of features begin with.

    Raises:
        MissingData: if they are not found.
    """
    found = [path for _, files in _weights(config) for path in files]
    return [path for path in found if path.name not in SETTINGS]


def reads_weights(config: Mapping[str, Any]) -> bool:
    """Return whether a config's model is built from files, so that a record cannot build it."""
    return config["model"].get("_target_") in READERS


def weights_named(config: Mapping[str, Any]) -> str:
    """Return the name of the files that a config's model reads; "" if it reads none."""
    model = config["model"]
    target = str(model.get("_target_"))
    key = READERS.get(target)
    if key is None or (key != "repo" and not model.get("pretrained", True)):
        return ""
    library = target.split(".")[-2].removeprefix("from_")
    return str(model[key]) if key == "repo" else f"{library}/{model[key]}"


def _files(model: Mapping[str, Any]) -> list[Path]:
    """Return the files that a model reads."""
    target, root = model["_target_"], model["model_root"]
    if READERS[target] != "repo":
        from dpexp.cli.instantiate import find

        weights_of = find("model", f"{target.rpartition('.')[0]}.weights_of")
        return [weights_of(model["architecture"], root)]
    from dpexp.data.hub import model_folder

    folder = model_folder(root, model["repo"])
    settings = [folder / name for name in SETTINGS]
    if not model.get("pretrained", True):
        return settings
    weights = [path for pattern in WEIGHTS for path in sorted(folder.glob(pattern))]
    weights = weights or [path for pattern in ELSE for path in sorted(folder.glob(pattern))]
    return [*settings, *weights]


def _tokenizers(config: Mapping[str, Any]) -> Iterator[tuple[str, list[Path]]]:
    """Return the files of every tokenizer that a config's texts or prompts use."""
    for name, root in tokenizers_named(config).items():
        from dpexp.data.hub import model_folder
        from dpexp.data.text import FILES

        folder = model_folder(root, name)
        yield name, [path for file in (*SETTINGS, *FILES) if (path := folder / file).is_file()]


def tokenizers_named(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the models whose tokenizers are read: name -> its model_root."""
    nodes = [config[group] for group in READ_BY if isinstance(config.get(group), Mapping)]
    return {node["tokenizer"]: node["model_root"] for node in nodes if node.get("tokenizer")}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
