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
    """Mark the cases as long that are not to be kept.

    Args:
        cases: of a test, each a value, a tuple with a value for every parameter, or what
            `pytest.param` makes of them.
        keep: those that `make test` runs, too: values, or tuples of them.

    Returns:
        All cases, in their order.

    Raises:
        ValueError: a case to keep is none.
    """
    known = []
    for case in cases:
        if not hasattr(case, "marks"):
            case = pytest.param(*case) if isinstance(case, tuple) else pytest.param(case)
        known.append((case.values[0] if len(case.values) == 1 else case.values, case))
    if missing := [each for each in keep if each not in [value for value, _ in known]]:
        raise ValueError(f"Expected cases of the test to keep; got {missing}")
    return [
        case if value in keep else case._replace(marks=[*case.marks, pytest.mark.long])
        for value, case in known
    ]


def pairs_long(*values: Iterable[Any], short: Callable[..., bool]) -> list[Any]:
    """Combine values of several parameters; mark what `short` is false of as long."""
    return [
        pytest.param(*each, marks=() if short(*each) else pytest.mark.long)
        for each in product(*values)
    ]
