"""Which cases of a test `make test` runs, and which `make test-long` alone."""

from collections.abc import Collection, Iterable
from typing import Any

from tests.marks import some_long


def few(cases: Iterable[Any], keep: Collection[Any]) -> list[Any]:
    """Return the cases, those not in `keep` marked long.

    Raises:
        ValueError: for what is in `keep` and no case, as where a case was renamed.
    """
    cases = list(cases)
    unknown = [each for each in keep if each not in cases]
    if unknown:
        raise ValueError(f"Expected cases in keep; {unknown} are none of {cases}.")
    return some_long(cases, keep)
