"""What a config for one's own data lacks until the data are looked at: their name and their N."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import DictConfig, OmegaConf, open_dict

KINDS = {
    "dpexp.data.own_images.images": "a folder of class folders, or parquet files",
    "dpexp.data.own_texts.texts": "a parquet, CSV, TSV or JSONL file, or a folder of them",
    "dpexp.data.own_tables.table": "a parquet, CSV, TSV or JSONL file, or a folder of them",
}
"""Doors for one's own data: their `_target_`, and what they read."""

NAMES = ("config", "image_column", "label_column", "target", "delimiter")
LISTS = ("train_splits", "test_splits", "text_columns")
"""Settings that are a name, and those that are one or several."""

COUNT = "count"
"""Value of dataset_size: N is counted, and the certificate says so."""

WORDS = ("data", "dataset_size")
"""Words at the top of such a config."""


SHARE = (4, 1000)
"""A step takes a fourth of the examples, at most a thousand (ours, as conf/task says)."""


def delta_for(size: Any) -> float | None:
    """Return the delta for so many examples; None until their number is known.

    It is the largest power of ten up to half of 1/size, as the papers' 1e-5 is for the 50,000
    examples of CIFAR10: at 1/size one of them might be published.
    """
    return 10.0 ** -len(str(2 * size - 1)) if type(size) is int and size > 0 else None


def share_of(size: Any, parts: int, most: int) -> int | None:
    """Return a part of a size, at least 1 and at most `most`; None until the size is known."""
    return min(max(size // parts, 1), most) if type(size) is int else None


OmegaConf.register_new_resolver("delta_for", delta_for, replace=True)
OmegaConf.register_new_resolver("share_of", share_of, replace=True)


def settle(cfg: DictConfig) -> DictConfig:
    """Return a config whose task is named after its data and declares its N.

    Args:
        cfg: as composed; returned as it is where the task is no door for one's own data.

    Raises:
        ConfigError: data or N are not said, or the data cannot be found.
    """
    from dpexp.types import ConfigError

    if cfg.task.get("_target_") not in KINDS:
        return cfg
    cfg = cfg.copy()
    said = {word: cfg[word] for word in WORDS if cfg.get(word) is not None}
    for word, value in said.items():
        if cfg.task[word] != value:
            raise ConfigError(
                f"Expected {word} or task.{word}; got {word}={value} and "
                f"task.{word}={cfg.task[word]}. Leave one of them out."
            )
    node = cast(dict[str, Any], OmegaConf.to_container(cfg.task, resolve=True))
    if node.get("judged_on_training", ...) is None:  # unsaid: ids are older than the setting is
        with open_dict(cfg):
            del cfg.task.judged_on_training
    meant = _names(node) | _columns(node)
    node |= meant
    data, size = _data(node), node["dataset_size"]
    if size is None or size == COUNT:
        held = _count({**node, "data": data})
    if size is None:
        raise ConfigError(
            "Expected dataset_size, the number N of training examples: it is declared, because the "
            f"accounting may not depend on private data. {data} holds {held}. Set "
            f"dataset_size={held}, or dataset_size={COUNT}, which the certificate then says."
        )
    if size != COUNT and (type(size) is not int or size < 1):
        raise ConfigError(
            f"Expected dataset_size to be a whole number >= 1, or {COUNT}; got {size}. Set "
            "dataset_size."
        )
    from dpexp.data.source import named

    with open_dict(cfg):
        for word in WORDS:
            cfg.pop(word, None)
        of_config = "" if node["config"] is None else f"/{node['config']}"
        cfg.task.update(meant)
        cfg.task.data, cfg.task.name = data, f"{node['name']}:{named(data)}{of_config}"
        cfg.task.dataset_size = size
        if size == COUNT:
            cfg.task.dataset_size, cfg.dataset_size = held, COUNT
    return cfg


def fit_batch(cfg: DictConfig, overrides: Sequence[str]) -> None:
    """Bring a recipe's batch size, not one that was said, down to a share of one's own data."""
    is_said = any(word.lstrip("+").startswith("batch_size=") for word in overrides)
    is_own = cfg.task.get("_target_") in KINDS and not is_said
    if is_own and isinstance(cfg.batch_size, int) and cfg.batch_size > cfg.task.dataset_size:
        with open_dict(cfg):
            cfg.batch_size = share_of(cfg.task.dataset_size, *SHARE)


def misplaced(word: str, task: Any) -> str:
    """Return the error for a word of one's own data beside another task, or beside none."""
    got = f"task={task}" if task else "no task"
    return f"Expected task=images, texts or table beside {word}=; got {got}. Set task."


def check_judged(config: Mapping[str, Any]) -> None:
    """Refuse what takes the test examples for others than the training ones, where they are not.

    Raises:
        ConfigError: an attack or a method of its own loop does.
    """
    from dpexp.types import ConfigError

    if config["task"].get("judged_on_training") is not True:
        return
    attack = config["attack"]["name"] if "attack" in config else None
    if "loop" in config or attack == "loss_threshold":
        taker = f"attack={attack}" if attack else f"method={config['method']['name']}"
        raise ConfigError(
            f"Expected test examples that are not trained on, since {taker} takes them for public "
            "or for others; got task.judged_on_training=true. Set other test examples."
        )


def _data(node: Mapping[str, Any]) -> str:
    """Return the data that a task names, without what a shell's completion adds."""
    from dpexp.records import at_home
    from dpexp.types import ConfigError

    data = node["data"]
    if not isinstance(data, str) or not data or not data.isprintable():
        got = "none was named" if data is None else f"got data={data!a}"
        raise ConfigError(
            f"Expected data, {KINDS[node['_target_']]}, or owner/name of the hub; {got}. Set data."
        )
    return os.path.normpath(at_home("data", data))


def _names(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that name columns and splits, as texts: 2019 may be a column."""
    from dpexp.types import ConfigError

    found: dict[str, Any] = {}
    for key in (*NAMES, *LISTS):
        value = node.get(key)
        if value is None:
            continue
        listed = value if key in LISTS and isinstance(value, list) else [value]
        if not all(isinstance(name, str | int | float) for name in listed):
            example = "[NAME,NAME]" if key in LISTS else "NAME"
            raise ConfigError(
                f"Expected names, as in task.{key}={example}; got {value}. Set task.{key}."
            )
        names = [str(n).lower() if isinstance(n, bool) else str(n) for n in listed]
        found[key] = names if key in LISTS else names[0]
    return found


@cache
def _words_once() -> type:
    """Return a reader of YAML in which yes, no, on and off are words, as in a table's cells.

    It refuses a key that comes twice. It is made where it is needed: its parent is slow to import.
    """
    from dpexp.reporting.schema.kinds import OneEach

    class Words(OneEach):
        yaml_implicit_resolvers = {
            first: [one for one in some if not one[0].endswith((":bool", ":timestamp"))]
            for first, some in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    return Words


def _columns(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that a table declares in a YAML file, or in words that Hydra cannot read.

    The config holds what the file says, so that a record does not depend on it.
    """
    from dpexp.records import at_home
    from dpexp.types import ConfigError, one_line

    said = node.get("columns")
    if not isinstance(said, str):
        return {}
    try:
        text = said
        if not said.lstrip().startswith("{"):
            text = Path(at_home("task.columns", said)).read_text(encoding="utf-8-sig")
        return {"columns": yaml.load(text, _words_once())}
    except ConfigError as error:  # a column that is said twice
        raise ConfigError(f"{error} Leave one of them out of task.columns.") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        why = (isinstance(error, OSError) and error.strerror) or one_line(error)
        raise ConfigError(
            "Expected task.columns to be {COLUMN: [LOWEST, HIGHEST], COLUMN: [WORD, WORD]}, or a "
            f"YAML file that says so; got {said[:200]!r} ({why}). Set task.columns."
        ) from None


def _count(node: Mapping[str, Any]) -> int:
    """Return the number of training examples that the data hold."""
    from dpexp.data import source
    from dpexp.types import ConfigError

    found = source.find(
        takes_images=str(node["_target_"]).endswith(".images"),
        **{key: node.get(key) for key in FINDING},  # type: ignore[arg-type]
    )
    size = node["test_size"]
    held = source.count(found, node.get("delimiter"), size)
    if not held:
        whole = source.count(found, node.get("delimiter"), None)
        if size is not None and whole > 1:
            raise ConfigError(
                f"Expected task.test_size below {whole}, the number of examples of {node['data']}, "
                f"so that some are left to train on; got {size}. Set task.test_size."
            )
        beside = "" if size is None else f" beside task.test_size={size}"
        raise ConfigError(
            f"Expected at least one training example{beside}; {node['data']} holds "
            f"{whole or 'none'}. Set data, or task.train_splits."
        )
    return held


FINDING = (
    "data",
    "config",
    "train_splits",
    "test_splits",
    "test_size",
    "judged_on_training",
    "data_root",
)
"""Settings that decide which files are read."""
