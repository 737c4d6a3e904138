"""Say what a run's model is: a choice of conf/model by its name, all else by what it is.

What stands for no choice is taken out, so that a run has one id with and without the word.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, cast

from omegaconf import OmegaConf

from dpexp.cli import own_methods
from dpexp.cli.building import DOORS, is_of_door
from dpexp.cli.groups import CONF
from dpexp.types import ConfigError

WORDS = ("repo", "name", "target")
"""Top-level words for `model.repo`, `model.architecture` and `model._target_`."""

UNSAID = ("fix", "weight_standardization")
"""Settings of a model that are left out where they are not set: ids are older than they are."""

REPLACING = ("_target_", "repo")
"""Settings of a model that make it another one."""

NO_PUBLIC = {"_target_": "dpexp.data.public.none", "name": "none"}
"""What public=none chooses, and public=auto of a task without a public set."""

SHAPING = ("architecture", "layers", "depth", "width", "channels", "kernel", "stem_stride",
           "attention_heads", "feed_forward", "groups", "weight_standardization")  # fmt: skip
"""Settings of a model that give it another size."""


def named(config: dict[str, Any]) -> dict[str, Any]:
    """Return a resolved config whose model is named for what it is.

    Words that stand for the model's own settings are taken out, as are settings that are not set,
    and public=none beside a method that has no public set without the word.

    Raises:
        ConfigError: for a model of one's own that is not named.
    """
    model = config.get("model")
    if not isinstance(model, Mapping):
        return config  # refused by whoever reads it
    method = config.get("method")
    if config.get("public") == NO_PUBLIC and isinstance(method, Mapping):
        name = str(method.get("name"))
        if own_methods.method(name) and not own_methods.chooses(name, "public"):
            config = {key: value for key, value in config.items() if key != "public"}
    if is_of_door(model):
        config = {key: value for key, value in config.items() if key not in WORDS}
        _require_key(model)
    kept = {
        key: value
        for key, value in model.items()
        if not (key in UNSAID and (value is None or value is False))
    }
    config = {**config, "model": {**kept, "name": _name(model)}}
    if isinstance(method, Mapping):
        of_ours = str(method.get("_target_", "")).startswith("dpexp.methods.")
        idle = {"freeze"} if method.get("freeze", ...) is None else set()
        embeddings = method.get("embeddings")  # 0 is no answer, and is refused later
        idle |= {"embeddings"} if of_ours and (embeddings is None or embeddings is False) else set()
        is_gep = method.get("_target_") == "dpexp.methods.gep.GEP"
        every = method.get("every")
        idle |= {"every"} if is_gep and every == 1 and type(every) is int else set()
        if idle & method.keys():
            config["method"] = {key: value for key, value in method.items() if key not in idle}
    return config


def _require_key(model: Mapping[str, Any]) -> None:
    door = str(model["name"]).partition(":")[0]
    value = model.get(DOORS[door].key)
    if not isinstance(value, str) or not value:
        found = "none was named" if value is None else f"got {value}"
        raise ConfigError(
            f"Expected {DOORS[door].word} beside model={door}, to name the model; {found}. Set "
            f"{DOORS[door].word.partition('=')[0]}."
        )


def _name(model: Mapping[str, Any]) -> Any:
    """Return a model's name, and what differs from the choice of that name.

    Records undo this for a run's id (`dpexp.records.moved`).
    """
    name = model.get("name")
    if is_of_door(model):
        door = str(name).partition(":")[0]
        own = f"{door}:{model[DOORS[door].key]}"
        return own if model.get("pretrained", True) else f"{own} of random weights"
    option = _option(str(name))
    others = {key: model[key] for key in option if key in model and model[key] != option[key]}
    for key in REPLACING:
        if key in others:
            return f"{others[key]} in place of {name}"
    words = [f"{key}={others[key]}" for key in SHAPING if key in others]
    return f"{name} with {', '.join(words)}" if words else name


@cache
def _option(name: str) -> dict[str, Any]:
    """Return what conf/model says of a choice, but for what it takes from elsewhere."""
    path = CONF / "model" / f"{name}.yaml"
    if not name.isidentifier() or name == "auto" or not path.is_file():
        return {}
    said = cast(Any, OmegaConf.to_container(OmegaConf.load(path)))["model"]
    keys = (*REPLACING, *SHAPING)
    return {key: said[key] for key in keys if key in said and "${" not in str(said[key])}
