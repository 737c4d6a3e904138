"""Class lists: declared, from metadata, or read off the labels; and labels as class indices."""

from __future__ import annotations

import math
import re
import reprlib
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any

from dpexp.data.labels import HIDDEN
from dpexp.data.numerals import NUMBER, is_truth
from dpexp.types import ConfigError

READ = "read"
"""Value of task.classes: the classes are those that occur; the certificate says so."""

WHOLE = re.compile(r"0|-?[1-9][0-9]*")

ROUND = re.compile(r"([-+]?[0-9]+)(?:\.0*)?")
"""A whole number, however it is written: 1, 01, 1.0."""


@dataclass(frozen=True)
class Classes:
    """The classes of a task, in the order of their indices.

    Attributes:
        words: of each class; the numbers from 0 where only their count is declared.
    """

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        """Check the words.

        Raises:
            ConfigError: there are fewer than two, two that nobody could tell apart, or one that no
                file can hold.
        """
        if len(self.words) < 2:
            raise ConfigError(
                f"Expected two classes or more; got {', '.join(self.words) or 'none'}. Set "
                "task.classes."
            )
        seen: dict[str, str] = {}
        for word in self.words:
            if any("\ud800" <= letter <= "\udfff" for letter in word):
                raise ConfigError(
                    f"Expected classes of whole characters; {word!a} has half of a surrogate pair, "
                    "which is none. Mend the labels, or set task.classes."
                )
            if word in seen.values():
                raise ConfigError(
                    f"Expected every class once; got {', '.join(self.words)[:200]}, with {word} "
                    "twice. Take one out. A name with a comma is quoted within the word: "
                    """'task.classes=["yes, often",no]'."""
                )
            other = seen.setdefault(_plain(word), word)
            if other is not word or not word.strip():
                what = "one has no name" if not word.strip() else f"{other!r} and {word!r} are not"
                raise ConfigError(
                    f"Expected classes whose names differ by more than case, spaces or the form of "
                    f"their accents; {what}. Rename one, or set task.classes."
                )

    def index(self, label: Any, place: str, names: Sequence[str] = ()) -> int:
        """Return a label's class index, exactly or not at all.

        A text is the word of a class. A whole number is the place of a name in the file's own
        list, if it has one; else the word of a class, if any word is a number; else an index. Other
        numbers are words.

        Args:
            label: a cell.
            place: of the cell, for messages: "in column label, row 3 of /data/train.parquet".
            names: the file's own list.

        Raises:
            ConfigError: the label is none of the classes'.
        """
        value = label
        if isinstance(label, float) and math.isfinite(label):
            is_whole = label.is_integer() and (bool(names) or str(label) not in self._indices)
            value = int(label) if is_whole else str(label)
        word = None
        if isinstance(value, bool):
            word = _text(value)
        elif isinstance(value, str):
            is_told = value in self._indices or not is_truth(value)
            word = value if is_told else value.lower()
            if value not in self._indices and WHOLE.fullmatch(value) and not self._has_numbers:
                value = int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            if value == HIDDEN and str(HIDDEN) not in self._indices:
                raise ConfigError(
                    f"Expected a label {place}; {HIDDEN} marks a withheld one. "
                    "Set task.train_splits or task.test_splits to splits that have labels."
                )
            if names:
                word = names[value] if 0 <= value < len(names) else None
            elif self._has_numbers:
                word = str(value)
            else:
                word = self.words[value] if 0 <= value < len(self.words) else None
        found = self._indices.get(word) if word is not None else None
        if found is None and is_missing(label):
            raise ConfigError(
                f"Expected a class, {self.listed()}, {place}; it is missing. Remove the row, or "
                "fill it in."
            )
        if found is None:
            raise ConfigError(
                f"Expected a class, {self.listed()}, {place}; got "
                f"{reprlib.repr(label)}.{self._near(label)} Set task.classes, or mend the file."
            )
        return found

    def listed(self) -> str:
        """Return the words in a line, the first ones of many."""
        shown = ", ".join(self.words[:8])
        return f"one of {shown}{f' and {len(self.words) - 8} more' * (len(self.words) > 8)}"

    @cached_property
    def _indices(self) -> dict[str, int]:
        return {word: index for index, word in enumerate(self.words)}

    @cached_property
    def _has_numbers(self) -> bool:
        return any(form.fullmatch(word) for word in self.words for form in NUMBER)

    def _near(self, label: Any) -> str:
        known = {word.casefold(): word for word in self.words}
        near = get_close_matches(str(label).casefold(), known, 1, 0.6)
        return f" Did you mean {known[near[0]]}?" if near else ""


def declared(classes: Any, num_classes: int | None) -> Classes | None:
    """Return the declared classes; None if they are not declared.

    Args:
        classes: task.classes: words, `READ` or None.
        num_classes: task.num_classes: their number or None.

    Raises:
        ConfigError: either is of another kind, or they disagree.
    """
    if num_classes is not None and (type(num_classes) is not int or num_classes < 2):
        raise ConfigError(
            f"Expected task.num_classes to be a whole number >= 2; got {num_classes}. Set "
            "task.num_classes."
        )
    if classes is None or classes == READ:
        if classes is None and num_classes is not None:
            return Classes(tuple(map(str, range(num_classes))))
        return None
    are_words = isinstance(classes, Sequence) and not isinstance(classes, str)
    if not are_words or any(not isinstance(word, str | int | float) for word in classes):
        raise ConfigError(
            f"Expected task.classes to be words, as in task.classes=[cat,dog], or {READ}; got "
            f"{classes}. Set task.classes."
        )
    if num_classes not in (None, len(classes)):
        raise ConfigError(
            f"Expected task.num_classes={len(classes)} beside so many task.classes; got "
            f"{num_classes}. Leave task.num_classes out."
        )
    return Classes(tuple(map(_text, classes)))


def of_lists(lists: Mapping[str, Sequence[str]]) -> Classes | None:
    """Return the classes that files name in their metadata; None if there are no such lists.

    Args:
        lists: file -> names in the order of its indices.

    Raises:
        ConfigError: two files name other classes.
    """
    (first, names), *others = lists.items() if lists else [("", ())]
    for path, other in others:
        if sorted(other) != sorted(names):
            raise ConfigError(
                f"Expected the same classes in all files; {first} names {', '.join(names)[:200]}, "
                f"and {path} {', '.join(other)[:200]}. Set task.classes."
            )
    return Classes(tuple(names)) if names else None


def read_off(labels: Iterable[Any]) -> Classes:
    """Return the classes that occur, sorted: numbers by size, words by their letters.

    A missing label is none; the reader, which knows its row, refuses it.

    Raises:
        ConfigError: a whole number is written in two ways, as where a program made 1.0 of 1 in one
            file: each would be a class of its own.
    """
    values = {int(v) if isinstance(v, float) and v.is_integer() else v for v in labels}
    words = {_text(value) for value in values if not is_missing(value) and value != HIDDEN}
    ways: dict[str, str] = {}
    for word in sorted(words):
        whole = ROUND.fullmatch(word)
        if whole and (other := ways.setdefault(_digits(whole[1]), word)) != word:
            raise ConfigError(
                f"Expected labels that are written in one way; {other} and {word} are one number, "
                "and would be two classes. Write them alike in all files, or set task.classes."
            )
    are_numbers = all(WHOLE.fullmatch(word) for word in words)
    return Classes(tuple(sorted(words, key=lambda word: (int(word) if are_numbers else 0, word))))


def is_missing(label: Any) -> bool:
    """Return whether a cell holds no label: nothing, spaces or NaN."""
    if isinstance(label, str):
        return not label.strip()
    return label is None or (isinstance(label, float) and math.isnan(label))


def _digits(whole: str) -> str:
    """Return a whole number's sign and digits, of any number of them, without leading zeros."""
    digits = whole.lstrip("+-0")
    return "-" * (digits != "" and whole.startswith("-")) + digits


def _text(value: Any) -> str:
    """Return a class as it is written in files; a truth value as JSON has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _plain(word: str) -> str:
    return " ".join(unicodedata.normalize("NFC", word).casefold().split())
