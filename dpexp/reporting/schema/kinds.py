"""Check a YAML entry against the annotation of the field that it fills."""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

import yaml

from dpexp.types import ConfigError

WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def require_kinds(kind: type, entries: Mapping[str, Any], where: str) -> None:
    """Check every entry of a dataclass.

    Args:
        kind: the dataclass; its fields are annotated by what they hold.
        entries: by field, lists not yet made tuples.
        where: names the place in an error.

    Raises:
        ConfigError: for an entry of another kind; text where a number is due, or the reverse.
    """
    hints = typing.get_type_hints(kind)
    for name, value in entries.items():
        if not fits(value, hints[name]):
            is_scalar = hints[name] is str and isinstance(value, int | float)
            hint = f' Put it in quotes, "{value}", if it is text.' if is_scalar else ""
            raise ConfigError(
                f"Expected {said(hints[name])} as '{name}' in {where}; got {value!r:.80}.{hint}"
            )


if typing.TYPE_CHECKING or not yaml.__with_libyaml__:
    SafeLoader = yaml.SafeLoader
else:  # libyaml reads an artifact's file several times as fast
    SafeLoader = yaml.CSafeLoader


class OneEach(SafeLoader):
    """Reads YAML, and refuses a mapping that has a key twice, of which YAML keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping.

        Raises:
            ConfigError: naming the key and its line.
        """
        seen = set()
        for each, _ in node.value:
            if each.tag == "tag:yaml.org,2002:merge":
                continue
            key = each.value
            if (each.tag, key) in seen:
                raise ConfigError(
                    f"Expected '{key}' once; line {each.start_mark.line + 1} has it again."
                )
            seen.add((each.tag, key))
        return super().construct_mapping(node, deep)


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value is of an annotation's kind; a number is finite, whole or not."""
    outer, inner = typing.get_origin(hint), typing.get_args(hint)
    if outer in (types.UnionType, typing.Union):
        return any(fits(value, each) for each in inner)
    if outer is tuple:
        if not isinstance(value, list | tuple):
            return False
        each = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return len(each) == len(value) and all(map(fits, value, each))
    if isinstance(outer, type) and issubclass(outer, Mapping):
        return isinstance(value, Mapping) and all(
            fits(key, inner[0]) and fits(entry, inner[1]) for key, entry in value.items()
        )
    if isinstance(outer, type) and issubclass(outer, Sequence):
        return isinstance(value, list | tuple) and all(fits(entry, inner[0]) for entry in value)
    if hint is float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and abs(value) <= sys.float_info.max
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def said(hint: Any) -> str:
    """Return an annotation in words, as in "a list of text"."""
    outer, inner = typing.get_origin(hint), typing.get_args(hint)
    if outer in (types.UnionType, typing.Union):
        kinds = dict.fromkeys("nothing" if each is types.NoneType else said(each) for each in inner)
        return " or ".join(kinds)
    if outer is tuple or (isinstance(outer, type) and issubclass(outer, Sequence)):
        return f"a list of {_each(inner[0])}"
    if isinstance(outer, type) and issubclass(outer, Mapping):
        return f"a mapping to {_each(inner[1])}"
    if isinstance(hint, type) and is_dataclass(hint):
        return f"the entries of {hint.__name__.lower()}"
    return WORDS.get(hint, getattr(hint, "__name__", str(hint)))


def _each(hint: Any) -> str:
    return {int: "whole numbers", float: "numbers"}.get(hint, said(hint))
