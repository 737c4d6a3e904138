"""Which of a test's values `make test` tries, and which `make test-long` does."""

from collections.abc import Callable, Collection, Iterable
from itertools import product
from typing import Any

import pytest


def long(*values: Any) -> Any:
    """Mark one case as long: another in the list goes the same way."""
    return pytest.param(*values, marks=pytest.mark.long)


def some_long(values: Iterable[Any], short: Collection[Any]) -> list[Any]:
    """Mark the values as long that are not among the short ones."""
    return [
        each if each in short else pytest.param(each, marks=pytest.mark.long) for each in values
    ]


def pairs_long(*values: Iterable[Any], short: Callable[..., bool]) -> list[Any]:
    """Combine values of several parameters; mark what `short` is false of as long."""
    return [
        pytest.param(*each, marks=() if short(*each) else pytest.mark.long)
        for each in product(*values)
    ]
