"""A predicted crossing of two lines of a figure, as its YAML says it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Crossing:
    """From which x on one method's steps should be better aligned than another's.

    A step's cosine to the true gradient is predicted as kept / sqrt(1 + noise²). Both numbers are
    extrapolated from the points with x up to `until` by power laws.

    Attributes:
        says: what crosses, as the beginning of a sentence.
        above, below: keys of the rows; `above` should pass `below` as x grows.
        kept: panel of the cosine before noise.
        noise: panel of the noise's norm over the signal's.
        seen: panel of the cosine after noise, which the prediction is checked by.
        until: largest x that the prediction is made from.
    """

    says: str
    above: str
    below: str
    kept: str
    noise: str
    seen: str
    until: float

    @property
    def panels(self) -> tuple[str, str, str]:
        """The panels that it reads."""
        return (self.kept, self.noise, self.seen)
