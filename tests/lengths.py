"""Which cases of a test `make test` runs, and which `make test-long` alone."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


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
