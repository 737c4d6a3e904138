"""A search for neighbouring sums whose releases differ by more than the declared sensitivity.

A method's `compress` maps clipped sums to releases, before the noise. One more example changes a
release's sums by any vector within the clip norm. Sums and vectors are synthetic; no data are read.
The search climbs from starts at which choices, ties, thresholds and scales that depend on the sums
change abruptly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpexp.types import Key, Release, counted

Blocks = Mapping[Key, Tensor]
Compress = Callable[[Blocks], Blocks]

SIZES = (1e-3, 1.0, 30.0, 1000.0)
"""Norms of sums, in clip norms (ours): from one small example to a large, aligned batch."""

TIE = 1e-6
"""Relative difference of nearly tied entries of sums (ours)."""

ADDED = ("spread", "one entry", "against", "along", "largest", "tipping", "hair")
"""The example's vector: random, one entry, against or along the sums, their largest entry, less on
the larger half of them and more on the rest, or nearly zero."""

BEST = 4
"""Number of starts that the search climbs from (ours)."""


class Differs(Exception):
    """The structure of a release depends on the sums; the message says how."""


@dataclass(frozen=True)
class Movement:
    """The largest change of any release.

    Attributes:
        ratio: of the change to the declared sensitivity.
        release: name of the release.
        neighbours: description of the neighbouring sums.
    """

    ratio: float
    release: str
    neighbours: str


def movement(one: Blocks, other: Blocks, releases: Sequence[Release], words: str) -> Movement:
    """Measure the change of releases, in l2 or, for Laplace noise, l1.

    Args:
        one: releases, before noise.
        other: releases of a neighbour.
        releases: as declared.
        words: description of the neighbours.

    Returns:
        The release that changed most, less what rounding in the blocks' precision explains.

    Raises:
        Differs: blocks, their order, shapes or precision differ, or are not as declared.
    """
    require_same_make(one, other, words)
    declared = {release.name: release.dimension for release in releases}
    sizes = dict.fromkeys(declared, 0)
    for key, block in one.items():
        if key.release not in declared:
            raise Differs(f"block {key} belongs to no declared release")
        sizes[key.release] += block.numel()
    for name, size in sizes.items():  # a declared dimension is the largest of all steps'
        if not 0 < size <= declared[name]:
            raise Differs(
                f"release {name} has {counted(size, 'number')} where {declared[name]} are declared"
            )
    worst = Movement(0.0, releases[0].name, words)
    for release in releases:
        keys = [key for key in one if key.release == release.name]
        before, after = (torch.cat([side[key].flatten() for key in keys]) for side in (one, other))
        order = 1 if release.noise == "laplace" else 2
        moved = torch.linalg.vector_norm((after - before).double(), order)
        size = torch.linalg.vector_norm(torch.cat([before, after]).double(), order)
        moved = moved - 8 * torch.finfo(before.dtype).eps * size
        ratio = float(moved) / (release.sensitivity * release.clip_norm)
        if not ratio <= worst.ratio:  # NaN counts as worst
            worst = Movement(ratio, release.name, words)
            if math.isnan(ratio):
                break
    return worst


def require_same_make(one: Blocks, other: Blocks, words: str) -> None:
    """Check that blocks, their order, shapes and precision are the same.

    Raises:
        Differs: they are not; `words` describes the neighbours.
    """
    forms = [[(key, tuple(b.shape), b.dtype) for key, b in side.items()] for side in (one, other)]
    if forms[0] != forms[1]:
        raise Differs(f"blocks, their order, shapes or precision differ ({words})")


class _Point:
    """Sums, and the vector that one example adds; flat for each release, in clip norms."""

    def __init__(self, sums: dict[str, Tensor], added: dict[str, Tensor], words: str) -> None:
        self.sums, self.added, self.words = sums, added, words


class Search:
    """Searches synthetic sums and examples for the largest change of `compress`."""

    def __init__(
        self,
        compress: Compress,
        shapes: Mapping[Key, tuple[int, ...]],
        releases: Sequence[Release],
        like: Tensor,
        gen: torch.Generator,
    ) -> None:
        """Set up the search.

        Args:
            compress: the method's, at some state; it gets its own copy of the sums.
            shapes: of the sums.
            releases: as declared.
            like: a tensor with the sums' device and precision.
            gen: on the CPU; draws the neighbours.
        """
        self._compress, self._shapes, self._like, self._gen = compress, dict(shapes), like, gen
        self._releases = {release.name: release for release in releases}
        self._first: Blocks = {}
        self._sizes: dict[str, int] = {}
        for key, shape in self._shapes.items():
            size = self._sizes.get(key.release, 0)
            self._sizes[key.release] = size + math.prod(shape)

    def worst(self, climbs: int) -> Movement:
        """Return the largest change found.

        Args:
            climbs: steps from each of the best starts, >= 0.

        Raises:
            Differs: the structure of a release depends on the sums.
        """
        starts = [(self._moved(point), point) for point in self._starts()]
        starts.sort(key=lambda start: badness(start[0]), reverse=True)
        worst = starts[0][0]
        for movement, point in starts[:BEST]:
            for _ in range(climbs):
                nearby = self._changed(point)
                tried = self._moved(nearby)
                if badness(tried) > badness(movement):
                    movement, point = tried, nearby
            worst = max(worst, movement, key=badness)
        return worst

    def _moved(self, point: _Point) -> Movement:
        one = self._compress(self._blocks(point.sums))
        after = {name: point.sums[name] + point.added[name] for name in point.sums}
        other = self._compress(self._blocks(after))
        require_same_make(self._first or one, one, point.words)
        self._first = self._first or one
        return movement(one, other, tuple(self._releases.values()), point.words)

    def _blocks(self, flat: Mapping[str, Tensor]) -> dict[Key, Tensor]:
        position = dict.fromkeys(flat, 0)
        blocks = {}
        for key, shape in self._shapes.items():
            begin, size = position[key.release], math.prod(shape)
            position[key.release] += size
            part = flat[key.release][begin : begin + size] * self._releases[key.release].clip_norm
            blocks[key] = part.view(shape).clone()
        return blocks

    def _random(self, size: int) -> Tensor:
        drawn = torch.randn(size, generator=self._gen, dtype=torch.float64)
        return drawn.to(self._like)

    def _starts(self) -> Iterator[_Point]:
        for size in (0.0, *SIZES):
            for of_sums in ("spread", "tied", "tied in one sign", "few", "one block"):
                sums = {name: size * self._sums(of_sums, name) for name in self._sizes}
                for of_added in ADDED:
                    added = {name: self._added(of_added, name, sums[name]) for name in sums}
                    yield _Point(sums, added, f"sums of {size:g} C, {of_sums}; added {of_added}")

    def _sums(self, kind: str, name: str) -> Tensor:
        """Return sums of norm one: random, nearly tied, with few entries, or in one block."""
        size = self._sizes[name]
        drawn = self._random(size)
        if kind.startswith("tied"):
            sign = drawn.sign() if kind == "tied" else torch.ones_like(drawn)
            drawn = sign * (1 + TIE * drawn)
        elif kind == "few":
            kept = drawn.abs().topk(min(2, size)).indices
            drawn = torch.zeros_like(drawn).index_fill_(0, kept, 1.0) * (1 + TIE * drawn)
        by = math.inf if self._releases[name].clip == "coordinates" else 2
        if kind == "one block":
            drawn = drawn * self._some_block(name)
        return drawn / torch.linalg.vector_norm(drawn, by)

    def _some_block(self, name: str) -> Tensor:
        """Return the mask of a random block of a release."""
        sizes = [math.prod(shape) for key, shape in self._shapes.items() if key.release == name]
        chosen = int(torch.randint(len(sizes), (), generator=self._gen))
        ones = [self._like.new_full((num,), float(k == chosen)) for k, num in enumerate(sizes)]
        return torch.cat(ones)

    def _added(self, kind: str, name: str, sums: Tensor) -> Tensor:
        size = len(sums)
        if kind in ("against", "along"):
            added = (-sums if kind == "against" else sums) + 1e-30 * self._random(size)
        elif kind in ("one entry", "largest"):
            entry = int(torch.randint(size, (), generator=self._gen))
            if kind == "largest":
                entry = int(sums.abs().argmax())
            added = torch.zeros_like(sums).index_fill_(
                0, torch.tensor([entry], device=sums.device), 1.0
            )
        elif kind == "tipping":
            is_large = sums.abs() > sums.abs().median()
            added = torch.where(is_large, -1.0, 1.0) * torch.where(sums < 0, -1.0, 1.0)
            added = added.to(sums)
        else:
            added = self._random(size)
        added = self._allowed(name, added)
        return TIE * added if kind == "hair" else added

    def _allowed(self, name: str, added: Tensor) -> Tensor:
        """Scale a vector to the largest that one example can add."""
        if self._releases[name].clip == "coordinates":
            largest = added.abs().max()
            return added.sign() if largest > 0 else added
        norm = torch.linalg.vector_norm(added)
        most = 0.5 if self._releases[name].clip == "count" else 1.0
        return most * added / norm if norm > 0 else added

    def _changed(self, point: _Point) -> _Point:
        """Change the sums, the example's vector, or both by a random amount."""
        which = int(torch.randint(3, (), generator=self._gen))
        far = 10 ** float(torch.empty(()).uniform_(-4, 0.5, generator=self._gen))
        sums, added = dict(point.sums), dict(point.added)
        for name, vector in point.sums.items():
            if which != 0:
                spread = far * torch.linalg.vector_norm(vector) / math.sqrt(len(vector))
                sums[name] = vector + spread * self._random(len(vector))
            if which != 1:
                random = self._random(len(vector)) / math.sqrt(len(vector))
                moved = added[name] + far * random
                if self._releases[name].clip == "coordinates":
                    added[name] = moved.clamp(-1, 1)
                else:
                    added[name] = self._allowed(name, moved)
        return _Point(sums, added, f"{point.words.removesuffix(', climbed')}, climbed")


def badness(found: Movement) -> float:
    """Return the key that orders movements; NaN counts as worst."""
    return math.inf if math.isnan(found.ratio) else found.ratio
