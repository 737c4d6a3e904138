"""Hold training examples out of a run: its config's N is what is left to train on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, open_dict

from dpexp.cli.instantiate import make


def settle(cfg: DictConfig) -> DictConfig:
    """Return a config whose N, task.dataset_size, leaves out what is held out.

    All that a config derives from N follows: batch sizes, delta, a method's epochs.

    Raises:
        ConfigError: if so many examples can't be held out.
    """
    node = cfg.get("holdout")
    total = cfg.task.get("dataset_size")
    if not isinstance(node, DictConfig) or type(total) is not int:
        return cfg  # without one, or refused by whoever reads it
    from dpexp.data.holdout import check_size

    size = check_size(node.get("size"), total)
    cfg = cfg.copy()
    with open_dict(cfg):
        cfg.task.dataset_size = total - size
    return cfg


def whole(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config's task as it is read: with the examples that are to be held out."""
    task = dict(config["task"])
    if "holdout" in config:
        task["dataset_size"] += config["holdout"]["size"]
    return task


def left_out(task: Any, config: Mapping[str, Any]) -> Any:
    """Return a task without what a config holds out, which the last evaluation judges.

    Raises:
        ConfigError: for settings that hold nothing out.
    """
    if "holdout" not in config:
        return task
    return make("holdout", config["holdout"], without=("name",), given=(task,))
