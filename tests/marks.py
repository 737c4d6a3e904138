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


def few(cases: Iterable[Any], keep: Collection[Any]) -> list[Any]:
    """Mark the cases as long that are not among those to keep.

    Raises:
        ValueError: one to keep is no case, such as one that was renamed.
    """
    cases = [*cases]
    if unknown := [each for each in keep if each not in cases]:
        raise ValueError(f"Expected cases to keep among {cases}; got {unknown}.")
    return some_long(cases, keep)


def pairs_long(*values: Iterable[Any], short: Callable[..., bool]) -> list[Any]:
    """Combine values of several parameters; mark what `short` is false of as long."""
    return [
        pytest.param(*each, marks=() if short(*each) else pytest.mark.long)
        for each in product(*values)
    ]
