"""What every run's settings must be like, whatever they are for; looked at before anything is."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from inspect import Parameter
from typing import Any

import yaml

from dpexp import records
from dpexp.cli import blocks
from dpexp.cli.errors import nearest, unknown_key
from dpexp.cli.groups import CONF
from dpexp.cli.instantiate import parameters
from dpexp.cli.quoting import FOLDERS
from dpexp.training.schedules import LARGEST
from dpexp.training.tracking import MODES
from dpexp.types import ConfigError, require_word, setting_at

GROUPS = {
    "profile": "profile=embedded",
    "task": "task=digits",
    "model": "model=wrn10_1",
    "method": "method=rgp",
    "privacy": "privacy.clip_norm=1",
    "optimizer": "optimizer=adam optimizer.lr=1e-3",
    "schedule": "schedule=linear_decay",
    "checkpoint": "checkpoint.steps=100",
    "wandb": "wandb.mode=offline",
}
"""Settings that have others below them, with an example of one."""

CLOSED = {"privacy": ("budget",), "checkpoint": (), "wandb": (), "profile": ("name",)}
"""Groups in which nothing else is read than conf/config.yaml says, and this."""

NAMED = ("method", "model", "task", "profile", "public", "attack", "audit")
"""Groups whose settings hold the name of the option that was chosen."""

CHOSEN = ("optimizer", "schedule")
"""Groups whose options are other things with other settings each."""

OPTIMIZERS = ("optimizer", "method.teacher_optimizer")

LEAST = 1 / LARGEST
"""Of what numbers in float32 are multiplied by, as learning rates are."""

SCALES = {
    "method.head_factor": (2.0**-24, 2.0**24),
    "method.head_scale": (2.0**-24, 2.0**24),  # what a core releases of the head is divided by it
    "method.xi": (LEAST, LARGEST),
    "warm_start.lr": (LEAST, LARGEST),
    "warm_start.head_lr": (LEAST, LARGEST),
    "prompts.scale": (LEAST, LARGEST),
    "model.feature_norm": (LEAST, LARGEST),
    "model.head_std": (LEAST, LARGEST),
}
"""Factors, each with the least and the largest that it may be. A head's scale spans the bits that
the range of releases leaves on either side (`dpexp.privacy.room`)."""

MANY = 2e6
"""Examples, each counted once an epoch, that take more than minutes on two cores (ours)."""

WORDS = {
    "results": "a folder",
    "data_root": "a folder",
    "model_root": "a folder",
    "device": "auto, cpu, cuda or cuda:N",
}


def check_names(overrides: Sequence[str]) -> None:
    """Refuse a new name for what was chosen by name: it would stand in records and tables.

    What is made of another `_target_` may have one of its own.

    Args:
        overrides: of the command line.

    Raises:
        ConfigError: naming the word.
    """
    places = [word.lstrip("+~").partition("=")[0] for word in overrides]
    for place, word in zip(places, overrides, strict=True):
        group, dot, key = place.rpartition(".")
        is_inside = place in NAMED and re.search(r"=\s*\{.*\bname\s*:", word)
        is_named = dot and key == "name" and group in NAMED and f"{group}._target_" not in places
        if is_inside or is_named:
            raise ConfigError(
                f"Expected {group or place} to keep the name that it is chosen by; got {word}. "
                "Leave it out."
            )


def at_home(config: Any, name: str = "") -> Any:
    """Replace ~, ~user and $VARIABLE in every folder that a config names.

    Raises:
        ConfigError: there is no such home or variable.
    """
    if isinstance(config, dict):
        return {key: at_home(value, key) for key, value in config.items()}
    is_folder = name in FOLDERS and isinstance(config, str)
    return records.at_home(name, config) if is_folder else config


def check_rate(overrides: Sequence[str]) -> None:
    """Refuse an optimizer without a learning rate: the model's is for the one that it has.

    Args:
        overrides: of the command line.

    Raises:
        ConfigError: naming the rate.
    """
    words = dict(word.lstrip("+").partition("=")[::2] for word in overrides)
    if "optimizer" in words and "{" not in words["optimizer"] and "optimizer.lr" not in words:
        raise ConfigError(
            f"Expected optimizer.lr beside optimizer={words['optimizer']}: the model's recipe has "
            "one for its own optimizer alone. Set optimizer.lr."
        )


def check(config: Mapping[str, Any]) -> None:
    """Refuse what no run can mean.

    Args:
        config: a run's, resolved.

    Raises:
        ConfigError: naming the setting.
    """
    _check_keys(config)
    _check_groups(config)
    _check_words(config)
    _check_numbers(config)
    _check_complete(config)
    _check_taken(config)


def unscaled(config: Mapping[str, Any]) -> str:
    """Warn where a small profile leaves a run near its published size; else give ""."""
    profile, task, epochs = config["profile"]["name"], config["task"], config["epochs"]
    if profile == "paper" or not isinstance(epochs, int | float):
        return ""
    examples = epochs * task["dataset_size"]
    if examples < MANY:
        return ""
    scaled = {name for name, _ in blocks.of(CONF / "scale" / f"{profile}.yaml")}
    tasks = sorted(scaled & {path.stem for path in (CONF / "task").glob("*.yaml")})
    return (
        f"profile={profile} leaves task={task['name']} at {epochs:g} epochs, through "
        f"which {examples:,.0f} examples pass. It makes {', '.join(tasks)} small; or set epochs."
    )


def warn_of_idle(config: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Warn of overrides of settings that this run does not read, though they enter its id."""
    unread = set() if config["clip"] else {"privacy.clip_norm"}
    if "loop" in config:  # a method's own, which takes its settings from the method
        unread |= {"epochs", "batch_size", "eval_every", "privacy.clip_norm"}
    for word in overrides:
        if word.lstrip("+").partition("=")[0] in unread:
            warnings.warn(
                f"{word} has no effect with method={config['method']['name']} as it is set; it "
                "makes the run another one all the same. Leave it out.",
                stacklevel=1,
            )


def _check_keys(config: Mapping[str, Any]) -> None:
    """Refuse a setting that nothing reads; a table that others look values up in may be new."""
    for group, example in blocks.GROUPS.items():
        if group in config:
            raise ConfigError(
                f"Expected {group} to be a block, such as {example}; got a whole file. "
                f"Leave {group} out: a run takes its own."
            )
    tree, groups = _defaults()
    known = [key for key in (*tree, *groups, "loop") if key.isidentifier() and key != "hydra"]
    for key, value in config.items():
        if key not in known and not isinstance(value, Mapping):
            raise ConfigError(unknown_key(key, {name: config.get(name) for name in known}))
    for group, more in CLOSED.items():
        valid = dict.fromkeys((*tree.get(group, ()), *more))
        for key in config[group] if isinstance(config.get(group), Mapping) else ():
            if key not in valid:
                raise ConfigError(unknown_key(f"{group}.{key}", valid))


def _check_complete(config: Mapping[str, Any]) -> None:
    """Refuse a config from which a setting that others read was taken out."""
    tree, _ = _defaults()
    wanted = [key for key, value in tree.items() if key != "hydra" and value is not None]
    wanted += [f"{group}.{key}" for group in CLOSED for key in tree.get(group, ())]
    wanted += [f"{group}.name" for group in NAMED if group in config]
    for place in wanted:
        group, _, key = place.rpartition(".")
        if key not in (config[group] if group else config):
            raise ConfigError(f"Expected {place} to have a value; it was taken out. Set {place}.")


@cache
def _defaults() -> tuple[dict[str, Any], list[str]]:
    """Return what conf/config.yaml sets, and the groups it chooses from."""
    tree = yaml.safe_load((CONF / "config.yaml").read_text(encoding="utf-8"))
    groups = [group for entry in tree.pop("defaults") if isinstance(entry, dict) for group in entry]
    return tree, groups


def _check_taken(config: Mapping[str, Any]) -> None:
    """Refuse settings that are not of the optimizer or the schedule that was chosen."""
    for group in CHOSEN:
        node = config[group]
        try:
            takes = parameters(group, node)
        except ConfigError:
            continue  # which is told of where it is called
        if any(takes[name].kind is Parameter.VAR_KEYWORD for name in takes):
            continue
        valid = [name for name in takes if name != "params"]
        for key in node:
            if node[key] is not None and key not in valid and not key.startswith("_"):
                raise ConfigError(
                    f"Unknown key {group}.{key}: {node['_target_']} takes {', '.join(valid)}."
                    f"{nearest(key, valid)}"
                )


def _check_groups(config: Mapping[str, Any]) -> None:
    for group, example in GROUPS.items():
        node = config.get(group)
        if not isinstance(node, Mapping) or (group in CHOSEN and "_target_" not in node):
            raise ConfigError(
                f"Expected {group} to hold settings of its own; "
                f"{_found(config if not isinstance(node, Mapping) else {}, group)}. Set what is "
                f"below it, as in {example}."
            )


def _check_words(config: Mapping[str, Any]) -> None:
    for name, kind in WORDS.items():
        if not isinstance(config.get(name), str) or not config[name]:
            raise ConfigError(f"Expected {name} to be {kind}; {_found(config, name)}. Set {name}.")
        if not config[name].isprintable():  # nor are bytes that are no text
            raise ConfigError(
                f"Expected {name} to be {kind}, in printable characters; got {config[name]!a}. Set "
                f"{name}."
            )
    if "mode" not in config["wandb"]:
        raise ConfigError(f"Expected wandb.mode, one of {', '.join(MODES)}; it was taken out.")
    require_word("wandb.mode", config["wandb"]["mode"], MODES)


def _check_numbers(config: Mapping[str, Any]) -> None:
    """Refuse a seed, what is not finite, and what the model's precision cannot multiply with.

    All else is looked at by who reads it.
    """
    seed = config.get("seed")
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ConfigError(
            f"Expected seed to be a whole number >= 0; {_found(config, 'seed')}. Set seed."
        )
    for place, value in _numbers("", config):
        if not abs(value) <= sys.float_info.max:  # nor is a whole number that no float can hold
            told = value if isinstance(value, float) else "a whole number above all of them"
            raise ConfigError(f"Expected {place} to be finite; got {told}. Set {place}.")
    for group in OPTIMIZERS:
        node = setting_at(config, group)
        if isinstance(node, Mapping):
            _check_optimizer(group, node)
    for place, (least, largest) in SCALES.items():
        value = setting_at(config, place)
        if place == "method.xi" and value == setting_at(config, "privacy.clip_norm"):
            continue  # which it follows, and which is named where it is out of reach
        # What is not above zero is refused by who reads it.
        if isinstance(value, int | float) and value > 0 and not least <= value <= largest:
            raise ConfigError(_outside(place, value, least, largest))


def _check_optimizer(group: str, node: Mapping[str, Any]) -> None:
    rate = node.get("lr")
    if "lr" in node and (rate is None or isinstance(rate, str | bool)):
        found = "null" if rate is None else rate
        raise ConfigError(f"Expected {group}.lr to be a number; got {found}. Set {group}.lr.")
    for name, value in node.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            continue
        if name == "lr" and 0 <= value < LEAST:  # what is negative is refused by who reads it
            raise ConfigError(
                f"Expected {group}.lr to be at least {LEAST:.2g}, or no step would move a weight; "
                f"got {value:g}. Set {group}.lr."
            )
        if abs(value) > LARGEST:
            raise ConfigError(
                f"Expected {group}.{name} to be at most {LARGEST:.2g}, so that float32 holds what "
                f"it multiplies; got {value:g}. Set {group}.{name}."
            )


def _outside(place: str, value: float, least: float, largest: float) -> str:
    return (
        f"Expected {place} to lie between {least:.2g} and {largest:.2g}, so that float32 keeps the "
        f"bits of what it multiplies; got {value:g}. Set {place}."
    )


def _numbers(place: str, node: Any) -> Iterator[tuple[str, float]]:
    """Return every number of a config with its place, but for what is none of ours."""
    if isinstance(node, int | float):
        yield place, node
    elif isinstance(node, Mapping):
        if not str(node.get("_target_", "dpexp.")).startswith(("dpexp.", "torch.")):
            return
        for key, value in node.items():
            yield from _numbers(f"{place}.{key}" if place else str(key), value)
    elif isinstance(node, list):
        for value in node:
            yield from _numbers(place, value)


def _found(config: Mapping[str, Any], name: str) -> str:
    if name not in config:
        return "it was taken out"
    value = config[name]
    return f"got {name}={'null' if value is None else value}"
