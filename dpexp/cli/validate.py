"""Validate the settings that every run has, before anything is built."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from inspect import Parameter
from typing import Any

import yaml

from dpexp import records
from dpexp.cli import blocks, own_data
from dpexp.cli.errors import nearest, unknown_key
from dpexp.cli.groups import CONF, options_of
from dpexp.cli.instantiate import parameters
from dpexp.cli.numbers_in_range import found_at, require_in_range
from dpexp.cli.prefixes import to_take_out
from dpexp.cli.quoting import FOLDERS
from dpexp.distributed.wanted import require_device_word, require_ranks_word
from dpexp.privacy.budget import require_budget, require_sizes
from dpexp.records.keeping import WORDS as KEPT
from dpexp.training import tracking
from dpexp.training.numbers import check_checkpoint, check_numbers
from dpexp.training.tracking import MODES
from dpexp.types import ConfigError, counted, require_word, setting_at

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
"""Settings that hold other settings, each with an example."""

CLOSED = {"privacy": ("budget",), "checkpoint": (), "wandb": (), "profile": ("name",)}
"""Groups whose only keys are those in conf/config.yaml and these."""

OF_THE_COMMON_LOOP = ("averaging", "augmentation", "clipping", "correlation", "denoise")
"""Groups that a method with its own loop does not read."""

NAMED = ("method", "model", "task", "profile", "public", "attack", "audit", "holdout",
         *OF_THE_COMMON_LOOP)  # fmt: skip
"""Groups with a `name`: the chosen option."""

DATA = ("_target_", "repo", "config", "text_columns", "target", "columns")
"""Settings of a task without which it is another one."""

COPIED = {
    "audit.clip_norm": "privacy.clip_norm",
    "audit.batch_size": "batch_size",
    "audit.sampling": "privacy.sampling",
    "method.batch_size": "batch_size",
    "method.dataset_size": "task.dataset_size",
    "method.xi": "privacy.clip_norm",
}
"""What an audit or a method of the suite is told of its run: setting -> the run's own."""

CHOSEN = ("optimizer", "schedule")
"""Groups whose options each take settings of their own."""


MANY = 2e6
"""Examples times epochs that take more than minutes on two cores (ours)."""

WORDS = {
    "results": "a folder",
    "data_root": "a folder",
    "model_root": "a folder",
    "device": "auto, cpu, cuda or cuda:N",
}


def check_names(overrides: Sequence[str]) -> None:
    """Refuse a block that does not exist, and to rename a chosen option.

    Records and tables show an option's name. One with another `_target_` may have its own.

    Args:
        overrides: of the command line.

    Raises:
        ConfigError: naming the word.
    """
    blocks.require_known(overrides)
    places = [word.lstrip("+~").partition("=")[0] for word in overrides]
    for place, word in zip(places, overrides, strict=True):
        group, dot, key = place.rpartition(".")
        is_inside = place in NAMED and re.search(r"=\s*\{.*\bname\s*:", word)
        is_named = dot and key == "name" and group in NAMED and f"{group}._target_" not in places
        if is_inside or is_named:
            raise ConfigError(
                f"Expected {group or place} to keep the name of the chosen option; got {word}. "
                "Leave it out."
            )


def at_home(config: Any, name: str = "") -> Any:
    """Replace ~, ~user and $VARIABLE in every folder that a config names.

    Raises:
        ConfigError: if there is no such user or variable.
    """
    if isinstance(config, dict):
        return {key: at_home(value, key) for key, value in config.items()}
    is_folder = name in FOLDERS and isinstance(config, str)
    return records.at_home(name, config) if is_folder else config


def check_rate(overrides: Sequence[str]) -> None:
    """Refuse a chosen optimizer without a learning rate: the recipe's is for its own optimizer.

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
    """Refuse invalid settings; `check_taken` looks at the rest.

    Args:
        config: a run's resolved config.

    Raises:
        ConfigError: naming the setting.
    """
    _check_keys(config)
    _check_groups(config)
    _check_words(config)
    require_in_range(config)
    _check_complete(config)
    _check_loop(config)
    _check_clipping(config)
    _check_copied(config)
    _check_task(config["task"])
    own_data.check_judged(config)


def unscaled(config: Mapping[str, Any]) -> str:
    """Return a warning if a small profile leaves a run near its published size, else ""."""
    profile, task, epochs = config["profile"]["name"], config["task"], config["epochs"]
    if profile == "paper" or not isinstance(epochs, int | float):
        return ""
    examples = epochs * task["dataset_size"]
    if examples < MANY:
        return ""
    scaled = {name for name, _ in blocks.of(CONF / "scale" / f"{profile}.yaml")}
    tasks = sorted(scaled & {path.stem for path in (CONF / "task").glob("*.yaml")})
    return (
        f"profile={profile} leaves task={task['name']} at {counted(epochs, 'epoch', 'g')}, a total "
        f"of {examples:,.0f} examples. It shrinks only {', '.join(tasks)}. Set "
        "epochs for a shorter run."
    )


def _check_keys(config: Mapping[str, Any]) -> None:
    """Refuse a setting that nothing reads; allow new mappings, which interpolations may use."""
    for group, example in blocks.GROUPS.items():
        if group in config:
            raise ConfigError(
                f"Expected {group} to be a block, such as {example}; got a whole file. "
                f"Leave {group} out: a run takes its own."
            )
    tree, groups = _defaults()
    known = [key for key in (*tree, *groups, "loop") if key.isidentifier() and key != "hydra"]
    known += ["dataset_size"] if config.get("dataset_size") == own_data.COUNT else []
    for key, value in config.items():
        if key not in known and not isinstance(value, Mapping):
            raise ConfigError(unknown_key(key, {name: config.get(name) for name in known}))
    for group, more in CLOSED.items():
        valid = dict.fromkeys((*tree.get(group, ()), *more))
        for key in config[group] if isinstance(config.get(group), Mapping) else ():
            if key not in valid:
                raise ConfigError(unknown_key(f"{group}.{key}", valid))


def _check_complete(config: Mapping[str, Any]) -> None:
    """Refuse a config that lacks a setting which other code reads."""
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
    """Return the settings of conf/config.yaml, and the groups in its defaults."""
    tree = yaml.safe_load((CONF / "config.yaml").read_text(encoding="utf-8"))
    groups = [group for entry in tree.pop("defaults") if isinstance(entry, dict) for group in entry]
    return tree, groups


def check_values(config: Mapping[str, Any]) -> None:
    """Refuse what a run would refuse once it has imported torch, as far as that needs no torch.

    Raises:
        ConfigError: naming the setting.
    """
    require_device_word(config["device"])
    require_ranks_word(config["ranks"])
    check_checkpoint(config["checkpoint"])
    if "loop" in config:  # which reads settings of its own
        return
    check_numbers(config)
    require_budget(config["privacy"])
    size = config["task"].get("dataset_size")
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        require_sizes(size, config["batch_size"])


def check_taken(config: Mapping[str, Any]) -> None:
    """Refuse settings that the chosen optimizer or schedule does not take.

    It imports them, and torch with them.

    Raises:
        ConfigError: naming the setting.
    """
    for group in CHOSEN:
        node = config[group]
        try:
            takes = parameters(group, node)
        except ConfigError:
            continue  # reported when the part is built
        if any(takes[name].kind is Parameter.VAR_KEYWORD for name in takes):
            continue
        valid = [name for name in takes if name != "params"]
        known = ", ".join(valid) or "no settings"
        for key in node:
            if node[key] is not None and key not in valid and not key.startswith("_"):
                raise ConfigError(
                    f"Unknown key {group}.{key}: {node['_target_']} takes {known}."
                    f"{nearest(key, valid) or to_take_out(f'{group}.{key}')}"
                )


def _check_clipping(config: Mapping[str, Any]) -> None:
    """Refuse a clipping rule where nothing is clipped by a norm."""
    if "clipping" in config and not config["privacy"]["clip"]:
        raise ConfigError(
            f"Expected clip=true beside clipping={config['clipping']['name']}; got clip=false. "
            "Leave clipping out, or set clip=true."
        )


def _check_copied(config: Mapping[str, Any]) -> None:
    """Refuse a run whose audit or method takes it for another one."""
    for place, source in COPIED.items():
        node = config.get(place.partition(".")[0], {})
        got, wanted = setting_at(config, place), setting_at(config, source)
        if got not in (None, wanted) and str(node.get("_target_")).startswith("dpexp."):
            raise ConfigError(
                f"Expected {place} to be {source} of the run, {wanted}; got {got}. "
                f"Leave {place} out, or set {source}."
            )


def _check_loop(config: Mapping[str, Any]) -> None:
    """Refuse what a method's own loop would pass over."""
    for group in OF_THE_COMMON_LOOP if "loop" in config else ():
        if group in config:
            raise ConfigError(
                f"Expected a method of the common training loop beside {group}="
                f"{config[group]['name']}; method={config['method']['name']} has its own, which "
                f"does not read it. Leave {group} out."
            )


def _check_groups(config: Mapping[str, Any]) -> None:
    for group, example in GROUPS.items():
        node = config.get(group)
        if not isinstance(node, Mapping) or (group in CHOSEN and "_target_" not in node):
            raise ConfigError(
                f"Expected {group} to hold settings of its own; "
                f"{found_at(config if not isinstance(node, Mapping) else {}, group)}. Set what is "
                f"below it, as in {example}."
            )


def _check_task(task: Mapping[str, Any]) -> None:
    """Refuse other data under the name of a task of conf/task: records and tables show its name."""
    name = task["name"]
    if name not in options_of("task"):
        return
    known = _task_of(name)
    for key in DATA:
        if task.get(key) != (stated := known.get(key)):
            remedy = (
                "Set task=images, texts or table, and data"
                if key != "_target_"
                else ("Set task.name too")
            )
            raise ConfigError(
                f"Expected task={name} to be of its own data, with task.{key}={stated}; got "
                f"{task.get(key)}. {remedy}, so that records name what ran."
            )


@cache
def _task_of(name: str) -> dict[str, Any]:
    """Return the settings of a task of conf/task."""
    known = yaml.safe_load((CONF / "task" / f"{name}.yaml").read_text(encoding="utf-8"))
    return dict(known.get("task", known))


def _check_words(config: Mapping[str, Any]) -> None:
    for name, kind in WORDS.items():
        if not isinstance(config.get(name), str) or not config[name]:
            raise ConfigError(
                f"Expected {name} to be {kind}; {found_at(config, name)}. Set {name}."
            )
        if not config[name].isprintable():  # undecodable bytes are not printable either
            raise ConfigError(
                f"Expected {name} to be {kind}, in printable characters; got {config[name]!a}. Set "
                f"{name}."
            )
    if "mode" not in config["wandb"]:
        raise ConfigError(f"Expected wandb.mode, one of {', '.join(MODES)}; it was taken out.")
    tracking.require(config)
    require_word("weights", config["weights"], KEPT)
    layout = config["model"].get("channels_last", "auto")  # no part of an id: a look-up builds none
    if layout not in (True, False, "auto"):
        raise ConfigError(
            f"Expected model.channels_last to be true, false or auto; got {layout}. Set "
            "model.channels_last."
        )
