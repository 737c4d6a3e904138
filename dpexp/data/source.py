"""Find the files of one's own data: a file, a folder, or a data set of the hub."""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from dpexp.data import card, folders, rows
from dpexp.data.hub import dataset_folder
from dpexp.data.task import check_splits
from dpexp.types import ConfigError, MissingData
from dpexp.warned import warn_caller

log = logging.getLogger("dpexp")

TRAIN = ("train", "training")
TEST = ("test", "testing", "validation", "valid", "val", "dev", "eval")
"""Names of splits; the first that is there is taken."""

DEEPEST = 4
"""Folders below the data's that are looked into (ours): config, data, split."""

HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})(?:-[0-9a-f]+)?")
PATTERNS = ["README.md", "*.parquet", "*.csv", "*.tsv", "*.jsonl"]
OF_IMAGES = [f"*{ending}" for ending in folders.ENDINGS]


class Found(NamedTuple):
    """Files of the data.

    Attributes:
        train: of the training set, in order; images or tables.
        test: of the test set; empty where task.test_size splits it off.
        are_images: whether each file is an image, of the class that its folder is named after.
        classes: of a folder of images, the names of its class folders.
        names: class names by column, from the data set's card.
    """

    train: list[Path]
    test: list[Path]
    are_images: bool
    classes: tuple[str, ...]
    names: Mapping[str, tuple[str, ...]]


def find(
    *,
    data: str,
    config: str | None,
    train_splits: Sequence[str] | None,
    test_splits: Sequence[str] | None,
    test_size: int | None,
    judged_on_training: bool | None = None,
    data_root: str,
    takes_images: bool,
) -> Found:
    """Return the files of the training and the test set.

    Args:
        data: a file, a folder, or owner/name of the hub; data_root is looked at before the hub.
        config: of several configurations, the one to read.
        train_splits: of the training set; None: the one that is named so.
        test_splits: of the test set; None: the first of `TEST` that is there.
        test_size: examples to split off the training set's for the test set, or None.
        judged_on_training: whether test examples are training ones; None: then they are refused.
        data_root: a folder laid out like hub snapshots.
        takes_images: whether folders of images are data.

    Raises:
        MissingData: there is nothing of that name.
        ConfigError: what is there cannot be told apart, or is no data of this kind.
    """
    if not isinstance(judged_on_training, bool | None):
        raise ConfigError(
            f"Expected task.judged_on_training to be true or false; got {judged_on_training}. Set "
            "task.judged_on_training, or leave it out."
        )
    root = _located(data, data_root, config, takes_images)
    both = bool(judged_on_training)
    known = [*TRAIN, *TEST, *(s.lower() for s in (*(train_splits or ()), *(test_splits or ())))]
    if takes_images and root.is_dir() and (splits := folders.splits(root, known)):
        _refuse_config(config, "folders of images")
        files = {name: split.files for name, split in splits.items()}
        train, tests = _chosen(root, files, train_splits, test_splits, test_size, both)
        of_classes = [splits[name].classes for name in (*train, *tests)]
        classes = tuple(sorted(set().union(*of_classes)))
        found = Found(_joined(files, train), _joined(files, tests), True, classes, {})
    else:
        described = card.read(root) if root.is_dir() else card.NONE
        files = _tables(root, config, described, takes_images)
        train, tests = _chosen(root, files, train_splits, test_splits, test_size, both)
        names = card.names(described, config)
        found = Found(_joined(files, train), _joined(files, tests), False, (), names)
    _refuse_twice(found, judged_on_training)
    if unread := [split for split in files if split not in (*train, *tests)]:
        log.info("splits that are not read: %s", ", ".join(unread))
    return found


def count(found: Found, delimiter: str | None, test_size: int | None) -> int:
    """Return the number of training examples.

    Raises:
        ConfigError: a file cannot be read.
    """
    total = len(found.train)
    if not found.are_images:
        total = sum(rows.count(path, delimiter) for path in found.train)
    return total if test_size is None else max(total - test_size, 0)


def _located(data: str, data_root: str, config: str | None, takes_images: bool) -> Path:
    """Return the file or folder that `data` names."""
    here, below = Path(data).expanduser().absolute(), Path(data_root).expanduser() / data
    for path in (here, below.absolute()):
        with suppress(OSError):  # a name may be too long to be one
            if path.is_file() or path.is_dir():
                return path
    reason = "it is no owner/name of the hub"
    if HUB_ID.fullmatch(data):
        wanted = [*PATTERNS, *(OF_IMAGES if takes_images else [])]
        if config is not None:
            wanted = ["README.md", *(f"{config}/{pattern}" for pattern in wanted)]
        snapshot, reason = dataset_folder(data, wanted)
        if snapshot is not None:
            return snapshot
        reason = f"the hub could not supply it: {reason}"
    raise MissingData(
        f"Expected data={data[:200]} to be a file or folder, below {data_root} too, or owner/name "
        f"of the hub; there is none at {str(here)[:300]}, and {reason}.{_near(here)} Set data."
    )


def _near(path: Path) -> str:
    try:
        beside = [other.name for other in path.parent.iterdir()]
    except OSError:
        return ""
    near = get_close_matches(path.name, beside, 1, 0.6)
    return f" Did you mean {near[0]}?" if near else ""


def _tables(
    root: Path, config: str | None, described: card.Card, takes_images: bool
) -> dict[str, list[Path]]:
    """Return the tables of every split."""
    formats = (".parquet",) if takes_images else rows.FORMATS
    wanted = "parquet files, or folders of images by class" if takes_images else "tables"
    expected = f"Expected {wanted} ({', '.join(formats)})"
    if root.is_file():
        if root.suffix.lower() not in formats:
            raise ConfigError(f"{expected}; got {root}. Convert it, or set data.")
        _refuse_config(config, "a file")
        return {TRAIN[0]: [root]}
    if listed := card.files(described, root, config):
        for path in (path for paths in listed.values() for path in paths):
            if path.suffix.lower() not in formats:
                raise ConfigError(f"{expected}; {root}/README.md names {path}. Set data to a file.")
        return {split: _in_order(root, split, paths) for split, paths in listed.items()}
    groups: dict[str, list[tuple[str | None, Path]]] = {}
    for path in _below(root, formats):
        of, split = _placed(path.relative_to(root))
        groups.setdefault(of, []).append((split, path))
    if not groups:
        held = ", ".join(path.name for path in folders.entries(root)[:6])
        raise ConfigError(f"{expected} in {root}; it holds {held or 'nothing'}. Set data.")
    chosen = _config_of(root, config, groups)
    by_split: dict[str, list[Path]] = {}
    are_named = any(split is not None for split, _ in groups[chosen])
    unread = [path.name for split, path in groups[chosen] if are_named and split is None]
    for split, path in groups[chosen]:
        if split is not None or not are_named:
            by_split.setdefault(split or TRAIN[0], []).append(path)
    if unread:
        warn_caller(
            f"{', '.join(unread[:6])} of {root} belong to no split that their names say, and are "
            "not read."
        )
    for split, paths in by_split.items():
        by_name = [path.stem for path in paths if path.stem.lower().startswith(split)]
        if len({re.sub(r"[0-9]", "", stem) for stem in by_name}) > 1:
            warn_caller(
                f"{', '.join(path.name for path in paths[:6])} of {root} are read together, as the "
                f"split {split}. Move away what is not to be in it, or set data to one file."
            )
    return {split: _in_order(root, split, paths) for split, paths in by_split.items()}


def _refuse_config(config: str | None, of: str) -> None:
    if config is not None:
        raise ConfigError(f"Expected no task.config for {of}; got {config}. Leave task.config out.")


def _config_of(root: Path, config: str | None, groups: Mapping[str, object]) -> str:
    """Return which of a folder's configurations is read."""
    if config is not None:
        if config in groups:
            return config
        names = sorted(name for name in groups if name)
        near = get_close_matches(config, names, 1, 0.5)
        held = f"it has {', '.join(names)[:200]}" if names else "its files are in no such folder"
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ConfigError(
            f"Expected task.config={config} to be a folder of {root}; {held}.{hint} "
            f"{'Set' if names else 'Leave out'} task.config."
        )
    if len(groups) > 1:
        several = ", ".join(sorted(name or "files in no folder" for name in groups))
        raise ConfigError(
            f"Expected one configuration in {root}; it has {several[:300]}. Set task.config, or "
            "data to a folder below."
        )
    return next(iter(groups))


def _placed(path: Path) -> tuple[str, str | None]:
    """Return the configuration and the split that a table's place and name say."""
    words = {*TRAIN, *TEST}
    split = next((part.lower() for part in path.parts[:-1] if part.lower() in words), None)
    config = "/".join(p for p in path.parts[:-1] if p != "data" and p.lower() not in words)
    if shard := SHARD.fullmatch(path.stem):
        return config, split or shard[1]
    first = re.split(r"[^A-Za-z]", path.stem)[0].lower()
    return config, split or (first if first in words else None)


def _below(root: Path, formats: Sequence[str]) -> list[Path]:
    """List the tables in a folder and a few below it, sorted; hidden ones are left out."""
    found, depths = [], [root]
    for _ in range(DEEPEST):
        entries = [path for folder in depths for path in folders.entries(folder)]
        entries = [path for path in entries if not _is_hidden(path.name)]
        found += [p for p in entries if p.suffix.lower() in formats and not p.is_dir()]
        depths = [path for path in entries if path.is_dir()]
    return sorted(found)


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "_", "~"))


def _in_order(root: Path, split: str, paths: Sequence[Path]) -> list[Path]:
    """Return a split's tables in order, after checking that they are one format, and all."""
    if len(endings := sorted({path.suffix.lower() for path in paths})) > 1:
        raise ConfigError(
            f"Expected one format for split {split} of {root}; got {' and '.join(endings)}. Set "
            "data to a file or folder with one."
        )
    shards = [(m, path) for path in paths if (m := SHARD.fullmatch(path.stem))]
    if shards:
        present = sorted((int(m[2]), int(m[3])) for m, _ in shards)
        total = max(of for _, of in present)
        if present != [(index, total) for index in range(total)] or len(shards) < len(paths):
            raise ConfigError(
                f"Expected all of {total} shards of {split} in {root}, each once, and nothing "
                f"else; got {', '.join(sorted(p.name for p in paths)[:6])}. Put in all of one "
                "version, and no others."
            )
    return sorted(paths)


def _chosen(
    root: Path,
    files: Mapping[str, list[Path]],
    train: Sequence[str] | None,
    tests: Sequence[str] | None,
    test_size: int | None,
    is_of_training: bool,
) -> tuple[list[str], list[str]]:
    """Return the splits to train and to test on, which may be the same where that is said."""
    held = f"{root} has {', '.join(files)}"
    if test_size is not None and (type(test_size) is not int or test_size < 1):
        raise ConfigError(
            f"Expected task.test_size to be a whole number >= 1; got {test_size}. Set "
            "task.test_size."
        )
    if test_size is not None and tests is not None:
        raise ConfigError(
            "Expected task.test_splits or task.test_size; got both. Leave one of them out."
        )
    for kind, splits in (("train", train), ("test", tests)):
        for split in splits or ():
            if split not in files:
                near = get_close_matches(str(split), files, 1, 0.5)
                hint = f" Did you mean {near[0]}?" if near else ""
                raise ConfigError(f"Expected split {split}; {held}.{hint} Set task.{kind}_splits.")
    if train is None:
        named = [split for split in TRAIN if split in files]
        train = named[:1] or [split for split in files if len(files) == 1 and split not in TEST]
        if not train:
            raise ConfigError(f"Expected a split named train; {held}. Set task.train_splits.")
    if test_size is not None:
        check_splits(train, ["test_size"])
        return list(train), []
    if tests is None:
        tests = [split for split in TEST if split in files and split not in train][:1]
        if not tests:
            raise ConfigError(
                f"Expected test examples; {held}. Set task.test_splits, or task.test_size to split "
                "so many off at random."
            )
    check_splits(train, tests, may_share=is_of_training)
    return list(train), list(tests)


def _joined(files: Mapping[str, list[Path]], splits: Iterable[str]) -> list[Path]:
    return [path for split in splits for path in files[split]]


def _refuse_twice(found: Found, judged_on_training: bool | None) -> None:
    """Refuse a file that is read twice: its examples would count twice, or be tested on."""
    if judged_on_training is not None:  # each set is still without doubles
        for part in (found._replace(test=[]), found._replace(train=[])):
            _refuse_twice(part, None)
        return
    files = [(path, False) for path in found.train] + [(path, True) for path in found.test]
    places: dict[Path, Path] = {}
    for path, _ in files:
        other = places.setdefault(path.resolve(), path)
        if other is not path:
            raise _twice(other, path)
    sizes = Counter(_size(path) for path, _ in files)
    seen: dict[bytes, tuple[Path, bool]] = {}
    for path, is_test in files:
        if sizes[_size(path)] == 1:
            continue
        other, was_test = seen.setdefault(_hash(path), (path, is_test))
        # Two images of one set may well be equal, as two rows of a table may; two tables may not.
        if other is not path and (is_test != was_test or not found.are_images):
            raise _twice(other, path)


def _twice(one: Path, other: Path) -> ConfigError:
    return ConfigError(
        f"Expected every file to be read once, for training or for testing; {one} and {other} hold "
        "the same bytes. Remove one, set task.test_splits, or say by task.judged_on_training=true "
        "that the metric may be of the training set."
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise ConfigError(
            f"Expected a readable file at {path}; {error.strerror}. Fetch it again, or remove it."
        ) from None


def _hash(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").digest()
    except OSError as error:
        raise ConfigError(
            f"Expected a readable file at {path}; {error.strerror}. Fetch it again, or remove it."
        ) from None


def named(data: str) -> str:
    """Return what a record calls the data: owner/name as it is, of a path its last part."""
    if HUB_ID.fullmatch(data):
        return data
    name = Path(data).name
    return Path(data).resolve().name if name in ("", "..") else name
