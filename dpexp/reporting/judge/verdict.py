"""The verdict on an artifact: distances from published values, and claims that hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dpexp.reporting.collect.values import NOT_FINITE, SKIPPED, Value
from dpexp.reporting.judge import claims
from dpexp.reporting.schema.artifact import Artifact, Key
from dpexp.types import counted

WITHIN_1, WITHIN_3, BEYOND, NOT_RUN = "within 1", "within 3", "beyond", "not run"
BOUNDS = ((1.0, WITHIN_1), (3.0, WITHIN_3))
"""Bounds of measured minus published, in the metric's unit (percentage points of accuracy)."""
ROUNDING = 1e-9


@dataclass(frozen=True)
class Judgement:
    """The verdict on a whole artifact.

    Attributes:
        is_comparable: whether the profile is the published setting; otherwise ignore sizes.
        sizes: for every published cell: within 1, within 3 (and not 1), beyond, not run, or
            diverged if a seed's number is not finite.
        judged: the verdict on every claim.
    """

    is_comparable: bool
    sizes: Mapping[Key, str]
    judged: tuple[claims.Verdict, ...]

    @property
    def cells(self) -> dict[str, int]:
        """The number of published cells by size; "diverged" is there only if some did."""
        sizes = list(self.sizes.values())
        always = (WITHIN_1, WITHIN_3, BEYOND, NOT_RUN)
        return {
            size: sizes.count(size)
            for size in (*always, NOT_FINITE)
            if size in always or size in sizes
        }

    @property
    def claims(self) -> dict[str, int]:
        """The number of claims by verdict; those that wait for runs are counted separately."""
        verdicts = [claim.word for claim in self.judged]
        words = (claims.HOLDS, claims.FAILS, claims.UNCLEAR)
        every = [w for word in words for w in (word, word + claims.SO_FAR)]
        every += [claims.NOT_RUN, SKIPPED]
        return {word: verdicts.count(word) for word in every}

    @property
    def has_single_seeds(self) -> bool:
        """Whether some comparison has no side with two seeds, and so judges single models."""
        return any(
            c.estimate is not None and c.estimate.lacks_seeds
            for claim in self.judged for c in claim.comparisons
        )  # fmt: skip

    @property
    def sentence(self) -> str:
        """The verdict in one line; "" if there is nothing to judge."""
        parts = []
        if self.is_comparable and self.sizes:
            near, middle, far, absent, *diverged = self.cells.values()
            parts.append(
                f"of {counted(len(self.sizes), 'published cell')}, {near} within 1 point, "
                f"{middle} more within 3, {far} beyond, {absent} not run"
                + "".join(f", {count} {NOT_FINITE}" for count in diverged)
            )
        if self.judged:
            counts = ", ".join(f"{n} {_plural(word, n)}" for word, n in self.claims.items() if n)
            single = " (where there is one seed, of its model)" if self.has_single_seeds else ""
            parts.append(f"of {counted(len(self.judged), 'claim')}, {counts}{single}")
        sentence = "; ".join(parts)
        return f"{sentence[0].upper()}{sentence[1:]}." if parts else ""


def of(artifact: Artifact, profile: str, values: Mapping[Key, Value]) -> Judgement:
    """Judge an artifact under a profile by its published values and its claims."""
    sizes = {
        cell: NOT_FINITE if values[cell].diverged else size(values[cell].difference)
        for cell in artifact.published
    }
    judged = tuple(claims.judge(artifact, values))
    return Judgement(profile == "paper", sizes, judged)


def size(difference: float | None) -> str:
    """Return the size of a difference in the metric's unit; None means not run."""
    if difference is None:
        return NOT_RUN
    near = (word for bound, word in BOUNDS if abs(difference) <= bound + ROUNDING)
    return next(near, BEYOND)


def _plural(word: str, number: int) -> str:
    if number == 1:
        return word
    return word.replace(claims.FAILS, "do not hold").replace(claims.HOLDS, "hold")
