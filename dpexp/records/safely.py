"""Read untrusted files; refuse anything but plain, whole, finite values.

A record may be damaged, or crafted to crash or hang its reader: deeply nested, full of aliases,
huge, with invalid numbers. Nothing here executes the contents of a file.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from yaml.constructor import SafeConstructor

DEEPEST, MOST_NODES, LONGEST = 40, 200_000, 20_000
"""Limits on a file's value: levels of nesting, entries (an alias counts each time it is used) and
characters of one string. The largest file of our own has 5 levels and 2,000 entries."""

LARGEST_WHOLE = 2**63
"""Bound on integers; not every reader can hold larger ones."""

MOST_BYTES = {".yaml": 2**18, ".json": 2**24, ".jsonl": 2**27, ".npz": 2**31}
"""Largest size of a file, for arrays unpacked. Python's YAML parser reads 100 kB a second."""

SHALLOW = 1000
"""Levels of nesting that libyaml's loader takes, which calls itself at each and would crash (ours).
It is six times as fast as Python's."""


class Damaged(ValueError):
    """A file is not one that a run writes; the message says why, in one line."""


def text_of(path: Path) -> str:
    """Read a UTF-8 text file no larger than a run could have written.

    Raises:
        Damaged: it is missing, no file, too large or not UTF-8.
    """
    try:
        if not path.is_file():  # a folder, a pipe or circular links
            raise Damaged("is missing" if not path.exists() else "is no file")
        with path.open("rb") as file:
            most = MOST_BYTES[path.suffix]
            data = file.read(most + 1)
    except OSError as error:
        raise Damaged(f"cannot be read ({error.strerror})") from error
    if len(data) > most:
        raise Damaged(f"is larger than {most:,} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Damaged("is not UTF-8") from error


def parse_json(text: str) -> Any:
    """Parse JSON; refuse duplicate keys, NaN, infinity and deep nesting.

    Raises:
        Damaged: it is not JSON, or has any of these.
    """
    try:
        value = json.loads(text, object_pairs_hook=_once, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise error if isinstance(error, Damaged) else Damaged("is no whole JSON") from error
    return checked(value)


def parse_yaml(text: str) -> Any:
    """Parse YAML likewise; refuse dates and other objects too.

    Raises:
        Damaged: it is not YAML, or has any of these.
    """
    try:
        value = yaml.load(text, Loader=_FastLoader if _is_shallow(text) else _Loader)
    except (yaml.YAMLError, ValueError, RecursionError, TypeError) as error:
        raise error if isinstance(error, Damaged) else Damaged("is no whole YAML") from error
    return checked(value)


def checked(value: Any) -> Any:
    """Return the value itself if it consists of dicts, lists and finite scalars within the limits.

    Raises:
        Damaged: it does not.
    """
    waiting, seen = [(value, 0)], 0
    while waiting:
        item, depth = waiting.pop()
        seen += 1
        if depth > DEEPEST or seen > MOST_NODES:
            raise Damaged("is nested too deeply" if depth > DEEPEST else "has too many entries")
        if isinstance(item, dict):
            waiting += [(inner, depth + 1) for pair in item.items() for inner in pair]
        elif isinstance(item, list):
            waiting += [(inner, depth + 1) for inner in item]
        else:
            _check_scalar(item)
    return value


def _check_scalar(item: Any) -> None:
    if item is None or isinstance(item, bool):
        return
    if isinstance(item, str):
        if len(item) > LONGEST:
            raise Damaged(f"has a text of {len(item):,} characters")
    elif isinstance(item, int):
        if abs(item) >= LARGEST_WHOLE:
            raise Damaged("has a whole number of more than 63 bits")
    elif not isinstance(item, float):
        raise Damaged(f"has a {type(item).__name__}, no plain value")
    elif not math.isfinite(item):
        raise Damaged("has a number that is not finite")


def dict_of(path: Path) -> dict[str, Any]:
    """Read a .json or .yaml file that holds a dict.

    Raises:
        Damaged: it cannot be read, or holds something else.
    """
    value = (parse_yaml if path.suffix == ".yaml" else parse_json)(text_of(path))
    if not isinstance(value, dict):
        raise Damaged("holds no dict")
    return value


def arrays_of(path: Path, wanted: Iterable[str] | None = None) -> dict[str, np.ndarray]:
    """Read arrays of an .npz file: no objects, and none larger than its declared size.

    Args:
        path: of the file.
        wanted: names to read, if the file has them; None reads all.

    Raises:
        Damaged: it cannot be read, or unpacks to more than a run would write.
    """
    if not path.is_file():
        raise Damaged("is missing" if not path.exists() else "is no file")
    try:
        with zipfile.ZipFile(path) as whole:
            members = whole.infolist()
            if len({member.filename for member in members}) < len(members):
                raise Damaged("has an array twice")
            if sum(member.file_size for member in members) > MOST_BYTES[".npz"]:
                raise Damaged("unpacks to too many bytes")
            for member in members:
                _check_header(whole, member)
        with np.load(path, allow_pickle=False) as file:
            keys = file.files if wanted is None else [key for key in wanted if key in file.files]
            return {key: file[key] for key in keys}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError, MemoryError, RuntimeError) as error:
        raise error if isinstance(error, Damaged) else Damaged("is no whole .npz file") from error
    except (KeyError, NotImplementedError, SyntaxError, OverflowError) as error:
        raise Damaged("is no whole .npz file") from error


def _check_header(whole: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Compare an array's declared shape with its bytes: numpy allocates it before reading them."""
    with whole.open(member) as file:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
            version, np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read(file)
        if dtype.hasobject:
            raise Damaged("has an array of objects")
        if math.prod(shape) * dtype.itemsize != member.file_size - file.tell():
            raise Damaged("has an array that is not of its declared shape")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        raise Damaged("has a key twice")
    return unique


def _refuse(word: str) -> None:
    raise Damaged(f"has {word}, which is no number")


def _is_shallow(text: str) -> bool:
    """Return whether no YAML in a text is nested deeply.

    A level takes a bracket, or lies at a column of its own but for a list right below its key.
    """
    longest = max(map(len, text.split("\n")))
    return text.count("[") + text.count("{") + 2 * longest < SHALLOW


class _PlainValues(SafeConstructor):
    """Makes plain values; refuses duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [(key.tag, key.value) for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len(set(keys)) < len(node.value):
            raise Damaged("has a key twice, or one that is no word")
        return super().construct_mapping(node, deep)


class _Loader(_PlainValues, yaml.SafeLoader):
    pass


if TYPE_CHECKING or not yaml.__with_libyaml__:
    _FastLoader = _Loader
else:

    class _FastLoader(_PlainValues, yaml.CSafeLoader):
        pass


Parse = Callable[[str], Any]
"""`parse_json` or `parse_yaml`."""
