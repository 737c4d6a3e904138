"""Which cases of a test `make test` runs, and which `make test-long` alone."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def few(cases: Iterable[Any], keep: Collection[Any]) -> list[Any]:
    """Mark the cases as long that are not among those to keep.

    Args:
        cases: values of one parameter, or tuples of values, one for each of several.
        keep: cases that `make test` runs.

    Raises:
        ValueError: one to keep is no case, such as one that was renamed.
    """
    cases = [*cases]
    if unknown := [each for each in keep if each not in cases]:
        raise ValueError(f"Expected cases to keep among {cases}; got {unknown}.")
    return [case if case in keep else _long(case) for case in cases]


def _long(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.long)
