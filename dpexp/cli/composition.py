"""Compose a run's config from command-line words."""

from __future__ import annotations

import pickle
import re
import sys
import warnings
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

import hydra

# Hydra has no public way to compose in two steps; pyproject.toml keeps it below 1.4.
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from dpexp.cli import blocks, errors, holdout, own_data
from dpexp.cli.groups import CONF, options_of
from dpexp.cli.quoting import readable


def up_to(value: Any, *choices: Any) -> Any:
    """Choose by a number in a config: `${up_to:${eps},2,20,50}` is 20 for eps <= 2, else 50.

    Args:
        value: a number; anything else, such as None, takes the last choice.
        choices: ascending bounds, each followed by its choice; last, the choice above all bounds.
    """
    if isinstance(value, int | float):
        for bound, chosen in zip(choices[::2], choices[1::2], strict=False):
            if value <= bound:
                return chosen
    return choices[-1]


def by(value: Any, known: Mapping[str, Any], other: Any) -> Any:
    """Choose by a name in a config: `${by:${method},{rgp: sgd},adam}` is sgd for rgp, else adam."""
    return known.get(str(value), other)


def called() -> str:
    """Return the program's name for its help: `dpexp run` if installed, else `python run.py`."""
    return sys.argv[0] if sys.argv[0].startswith("dpexp ") else "python run.py"


OmegaConf.register_new_resolver("up_to", up_to, replace=True)
OmegaConf.register_new_resolver("by", by, replace=True)
OmegaConf.register_new_resolver("called", called, replace=True)
OmegaConf.register_new_resolver("options", lambda group: ", ".join(options_of(group)), replace=True)

blocks.store()

# Launcher configs share their plugins' names on purpose: `hydra/launcher=joblib` finds either.
warnings.filterwarnings("ignore", r"\s*'hydra/launcher/\w+' is validated against ConfigStore")


def compose(overrides: Sequence[str]) -> dict[str, Any]:
    """Compose a run's plain config from command-line words, e.g. ["method=rgp", "task=digits"].

    A process reads the files of dpexp's own options once.
    """
    words = readable(overrides)
    if any(word.lstrip("+~").startswith("hydra") for word in words):  # such as folders of one's own
        return compose_at_once(overrides)
    groups = {path.name for path in CONF.iterdir() if path.is_dir()}
    try:
        cfg = set_values(_chosen(str(CONF), choices_of(words, groups)), words, groups)
    except Exception:  # which is explained there
        return compose_at_once(overrides)
    return plain(cfg, overrides)


def choices_of(words: Sequence[str], groups: Collection[str]) -> tuple[str, ...]:
    """Return the words that choose an option of one of these groups, or remove a choice."""

    def chooses(word: str) -> bool:
        place = word.lstrip("+~").partition("=")[0]
        return "." not in place and re.split("[/@]", place)[0] in groups

    return tuple(filter(chooses, words))


def set_values(chosen: DictConfig, words: Sequence[str], groups: Collection[str]) -> DictConfig:
    """Return a copy of what Hydra merged from the chosen options, with single values set.

    Hydra itself first merges files, then sets values one by one.
    """
    choices = choices_of(words, groups)
    config = pickle.loads(pickle.dumps(chosen))  # which takes half as long as deepcopy
    values = [word for word in words if word not in choices]
    parsed = OverridesParser.create().parse_overrides(values)
    ConfigLoaderImpl._apply_overrides_to_config(parsed, config)
    return config


@lru_cache(maxsize=256)
def _chosen(conf: str, choices: tuple[str, ...]) -> DictConfig:
    with hydra.initialize_config_dir(conf, version_base="1.3"):
        return hydra.compose("config", list(choices))


def compose_at_once(overrides: Sequence[str]) -> dict[str, Any]:
    """Do what `compose` does by Hydra alone, which tells what is wrong in any word."""
    from dpexp.types import ConfigError

    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        try:
            cfg = hydra.compose("config", readable(overrides))
        except ValueError as error:
            if str(error).startswith(errors.NAMELESS):
                raise ConfigError(errors.unnamed(overrides) or str(error)) from None
            raise
        return plain(cfg, overrides)


def plain(cfg: DictConfig, overrides: Sequence[str]) -> dict[str, Any]:
    """Resolve a config that was composed from these overrides to dicts and lists.

    Raises:
        ConfigError: if method or task is not chosen, if the task has no default model under the
            profile, or if a setting is invalid.
    """
    from dpexp.cli import validate

    config = resolved(cfg, overrides)
    validate.check_taken(config)
    return config


def resolved(cfg: DictConfig, overrides: Sequence[str]) -> dict[str, Any]:
    """Return what `plain` does, without the checks that need torch.

    Raises:
        ConfigError: as `plain`.
    """
    from dpexp.cli import begun, naming, validate
    from dpexp.records import present_names
    from dpexp.types import ConfigError

    for group in ("method", "task"):
        if group not in cfg:
            raise ConfigError(
                f"Expected a {group}: none was chosen. Set {group}, one of "
                f"{', '.join(options_of(group))}."
            )
    if OmegaConf.is_missing(cfg.model, "name"):
        raise ConfigError(
            f"Expected a model: task {cfg.task.name} has no default one under profile "
            f"{cfg.profile.name}. Set model, one of {', '.join(options_of('model'))}."
        )
    validate.check_names(overrides)
    validate.check_rate(overrides)
    cfg = holdout.settle(own_data.settle(cfg))
    own_data.fit_batch(cfg, overrides)
    resolved: Any = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    config = naming.named(validate.at_home(present_names(resolved)))
    validate.check(config)
    return begun.settled(config)
