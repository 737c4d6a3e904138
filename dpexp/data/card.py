"""What a data set's card, README.md in a folder as the hub has it, says of files and classes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import yaml

from dpexp.types import ConfigError, one_line


class Card(NamedTuple):
    """Parts of a card.

    Attributes:
        configs: entries of `configs`: each names a configuration's files by split.
        infos: entries of `dataset_info`: each names a configuration's columns.
    """

    configs: list[Mapping[str, Any]]
    infos: list[Mapping[str, Any]]


NONE = Card([], [])


def read(folder: Path) -> Card:
    """Return what a folder's README.md and dataset_infos.json say; `NONE` without them.

    Raises:
        ConfigError: README.md opens with what is no YAML.
    """
    said: Any = {}
    text = _text(folder / "README.md")
    if text.startswith("---"):
        try:
            said = yaml.safe_load(text[3:].partition("\n---")[0])
        except yaml.YAMLError as error:
            raise ConfigError(
                f"Expected {folder}/README.md to open with YAML between two lines of ---; it "
                f"cannot be read ({one_line(error)}). Mend it, or set data to a file."
            ) from None
    said = said if isinstance(said, Mapping) else {}
    infos = _mappings(said.get("dataset_info"))
    try:
        older = json.loads(_text(folder / "dataset_infos.json") or "{}")
    except ValueError:
        older = {}
    older = older if isinstance(older, Mapping) else {}
    known = {str(info.get("config_name", key)) for info in infos for key in older}
    infos += [
        {"config_name": key, **info}
        for key, info in older.items()
        if isinstance(info, Mapping) and key not in known
    ]
    return Card(_mappings(said.get("configs")), infos)


def files(card: Card, root: Path, config: str | None) -> dict[str, list[Path]]:
    """Return the files of a configuration by split; none if the card names none that are here.

    Raises:
        ConfigError: the card has several configurations, and none is chosen or the default.
    """
    entries = {str(entry.get("config_name", "default")): entry for entry in card.configs}
    here = {name: found for name, entry in entries.items() if (found := _files(entry, root))}
    if not here or (config is not None and config not in here):
        return {}
    if config is None and len(here) > 1:
        chosen = [e["config_name"] for e in card.configs if e.get("default") is True]
        config = next((name for name in (*chosen, "default") if name in here), None)
        if config is None:
            raise ConfigError(
                f"Expected one configuration in {root}; its README.md has {', '.join(here)[:300]}. "
                "Set task.config."
            )
    return here[next(iter(here)) if config is None else config]


def names(card: Card, config: str | None) -> dict[str, tuple[str, ...]]:
    """Return the class names that the card gives, by column."""
    infos = [info for info in card.infos if config in (None, info.get("config_name", config))]
    found: dict[str, tuple[str, ...]] = {}
    differ = set()  # two configurations may give a column of one name other classes
    for column, feature in (one for info in infos for one in _features(info.get("features"))):
        if (listed := _names(feature)) != found.setdefault(column, listed):
            differ.add(column)
    return {column: names for column, names in found.items() if names and column not in differ}


def _files(entry: Mapping[str, Any], root: Path) -> dict[str, list[Path]]:
    said = entry.get("data_files")
    if not isinstance(said, list | str):
        return {}
    parts = said if isinstance(said, list) else [said]
    found: dict[str, list[Path]] = {}
    for part in parts:
        split, patterns = "train", part
        if isinstance(part, Mapping):
            split, patterns = str(part.get("split", "train")), part.get("path")
        for pattern in patterns if isinstance(patterns, list) else [patterns]:
            if not isinstance(pattern, str) or not pattern or _leaves(pattern):
                continue
            if paths := sorted(path for path in root.glob(pattern) if path.is_file()):
                found.setdefault(split, []).extend(paths)
    return found


def _leaves(pattern: str) -> bool:
    """Return whether a pattern names what lies outside the folder."""
    path = PurePosixPath(pattern)
    return path.is_absolute() or ".." in path.parts


def _features(said: Any) -> Iterator[tuple[str, Any]]:
    """Yield columns with their features; README.md lists them, dataset_infos.json maps them."""
    if isinstance(said, Mapping):
        yield from ((str(column), feature) for column, feature in said.items())
    for feature in said if isinstance(said, list) else ():
        if isinstance(feature, Mapping) and "name" in feature:
            yield str(feature["name"]), feature.get("dtype")


def _names(feature: Any) -> tuple[str, ...]:
    """Return a feature's class names in the order of their indices; none if it has none."""
    if not isinstance(feature, Mapping):
        return ()
    inner = feature.get("class_label")
    listed = (inner if isinstance(inner, Mapping) else feature).get("names")
    if isinstance(listed, Mapping) and all(str(key).isdecimal() for key in listed):
        listed = [listed[key] for key in sorted(listed, key=lambda key: int(str(key)))]
    return tuple(map(str, listed)) if isinstance(listed, list) else ()


def _mappings(said: Any) -> list[Mapping[str, Any]]:
    entries = said if isinstance(said, list) else [said]
    return [entry for entry in entries if isinstance(entry, Mapping)]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return ""
