"""Clip and sum over examples, which happens nowhere else."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpexp.grad_sample.per_example import MaterializedGrads
from dpexp.grad_sample.rounding import add_
from dpexp.linalg import as_rows
from dpexp.privacy.bound import is_exact_enough, slack_of, upper_bound
from dpexp.privacy.clipping import (
    Clipping,
    Flat,
    Group,
    bounds_of,
    centred_bits,
    groups_of,
    held_weights,
)
from dpexp.types import ConfigError, Key, PerExampleGrads, Release, Size

Blocks = dict[Key, Tensor]

FLAT = Flat()

NARROW = 256
"""Largest number of examples summed in the model's precision. Even if all their vectors agree, the
float32 sum loses only 10^-5 clip norms, which the clip weights leave room for."""


@dataclass
class ClipCounts:
    """Clipping counts of one logical batch.

    Attributes:
        examples: number of examples in the batch.
        clipped: number with a norm, or a coordinate, above the clip norm in some release.
        nonfinite: number with a NaN or infinite norm; they contribute zero.
    """

    examples: int = 0
    clipped: int = 0
    nonfinite: int = 0


class ClippedSum:
    """Sums clipped per-example gradients over micro-batches.

    Formal guarantees, for every input: an example's contribution to a release's sum has a norm of
    at most the clip norm, the rounding of its own terms included. In a release clipped by
    coordinates, the clip norm bounds each coordinate instead; to a count an example adds a half at
    most. An example whose norm is not finite adds zero.
    See `dpexp.privacy.bound`, and docs/privacy/rounding.md for other examples' rounding. Without
    clipping there is no such bound.

    Attributes:
        counts: of the examples so far.
        rows: how many examples the blocks of the current micro-batch have; one number for all.
    """

    def __init__(
        self,
        shapes: Mapping[Key, tuple[int, ...]],
        releases: Iterable[Release],
        like: Tensor,
        *,
        is_clipping: bool = True,
        is_wide: bool = False,
        micro_batch: int = NARROW,
        clipping: Clipping = FLAT,
    ) -> None:
        """Start from zeros.

        Args:
            shapes: of all blocks.
            releases: with their clip norms.
            like: a tensor with the examples' device and precision.
            is_clipping: False sums the gradients unclipped.
            is_wide: True keeps every sum in float64 from the start, as needed to add over ranks.
                False sums the first micro-batch in the model's precision, if it has no more than
                `NARROW` examples, and uses float64 once there are more.
            micro_batch: examples at once. If two micro-batches fit in `NARROW`, as many as fit are
                summed in the model's precision before they are added to float64, which costs more
                than a small micro-batch's products.
            clipping: how an example's norm is brought down to the clip norm.
        """
        self.counts = ClipCounts()
        self.rows: set[int] = set()
        self._shapes, self._like = shapes, like
        self._narrow: Blocks = {}  # in the model's precision, not yet in `_wide`
        self._wide: Blocks = {}
        self._gathers, self._gathered = 2 * micro_batch <= NARROW, 0
        self._releases = {release.name: release for release in releases}
        self._is_clipping, self._is_wide = is_clipping, is_wide
        self._held: dict[Key, PerExampleGrads] = {}
        self._clipping = clipping
        self._groups = groups_of(clipping, shapes, self._releases)
        self._bounds = bounds_of(self._groups.values(), self._releases)
        self._sizes: dict[Group, Size] = {}
        self._largest: dict[str, Tensor] = {}  # largest coordinate by release
        self._counts = [key for key in shapes if self._releases[key.release].clip == "count"]

    @property
    def sums(self) -> Blocks:
        """Every block's sum so far, in the order of the shapes."""
        wide = {key: self._widened(key) for key in self._shapes if key in self._wide}
        return {key: wide[key] if key in wide else self._sum(key) for key in self._shapes}

    def _sum(self, key: Key) -> Tensor:
        """Return a block's sum to add to, in float64 if required."""
        if self._is_wide or self._releases[key.release].clip != "norm":
            return self._widened(key)
        # Allocated only when there is something to add: until then activations need the memory.
        if key not in self._narrow:
            self._narrow[key] = self._like.new_zeros(self._shapes[key])
        return self._narrow[key]

    def _widened(self, key: Key) -> Tensor:
        """Return a block's sum in float64, after adding its sum in the model's precision."""
        gathered = self._narrow.pop(key, None)
        if key not in self._wide:
            if gathered is None:
                gathered = self._like.new_zeros(self._shapes[key], dtype=torch.float64)
            self._wide[key] = gathered.double()
        elif gathered is not None:
            add_(self._wide[key], gathered)
        return self._wide[key]

    def take(self, per_example: Mapping[Key, PerExampleGrads]) -> None:
        """Take one layer's per-example gradients of the current micro-batch."""
        for key, grads in per_example.items():
            if not self._is_clipping:
                grads.add_to(self._sum(key), None)
                continue
            release = self._releases[key.release]
            if release.clip == "coordinates":
                largest, self._held[key] = clip_coordinates(grads.materialize(), release.clip_norm)
                self.rows.add(len(largest))
                seen = self._largest.get(release.name) if len(self.rows) == 1 else None
                self._largest[release.name] = largest if seen is None else seen.maximum(largest)
            else:
                size, self._held[key] = grads.measured()
                self.rows.add(len(size.squares))
                group = self._groups[key]
                before = self._sizes.get(group) if len(self.rows) == 1 else None
                self._sizes[group] = size if before is None else before.plus(size)

    def close_micro_batch(self, num_examples: int) -> None:
        """Clip every example jointly over its release's blocks, and add them to the sums."""
        self.counts.examples += num_examples
        if not self._is_clipping:
            self._is_wide = True  # from the second micro-batch on
            return
        if not self._held:
            return
        if len(self.rows) > 1:
            raise ValueError(f"Expected blocks of as many examples; got {sorted(self.rows)}.")
        self.rows = set()
        enough = [is_exact_enough(size, self._bounds[of]) for of, size in self._sizes.items()]
        enough += [largest.isfinite() for largest in self._largest.values()]
        is_exact = torch.stack(enough).all(0)
        held, self._held = self._held, {}
        sizes, largest = self._sizes, self._largest
        self._sizes, self._largest = {}, {}
        is_all_exact = bool(is_exact.all())
        self._is_wide |= len(is_exact) > NARROW or not is_all_exact
        if self._gathered + len(is_exact) > NARROW:
            for key in [*self._narrow]:
                self._widened(key)
            self._gathered = 0
        self._gathered += len(is_exact)
        if is_all_exact:
            self._add(held, sizes, largest)
            self._is_wide |= not self._gathers  # from the second micro-batch on
            return
        # The rest is summed in float64: its norm overflows, or it would cost others digits.
        others = {key: grads.select(~is_exact).double() for key, grads in held.items()}
        of_others = {name: each[~is_exact] for name, each in largest.items()}
        self._add(others, self._measured(others), of_others, is_widened=True)
        held = {key: grads.select(is_exact) for key, grads in held.items()}
        sizes = {name: size.select(is_exact) for name, size in sizes.items()}
        largest = {name: each[is_exact] for name, each in largest.items()}
        self._add(held, sizes, largest)

    def _measured(self, held: dict[Key, PerExampleGrads]) -> dict[Group, Size]:
        """Return new sizes of all groups clipped by norm; `held` gets the forms to keep."""
        sizes: dict[Group, Size] = {}
        for key, grads in held.items():
            if self._releases[key.release].clip == "norm":
                size, held[key] = grads.measured()
                group = self._groups[key]
                seen = sizes.get(group)
                sizes[group] = size if seen is None else seen.plus(size)
        return sizes

    def _add(
        self,
        held: dict[Key, PerExampleGrads],
        sizes: Mapping[Group, Size],
        largest: Mapping[str, Tensor],
        *,
        is_widened: bool = False,
    ) -> None:
        """Clip examples and add them to the sums, emptying `held` on the way."""
        is_widened &= self._like.dtype != torch.float64
        slack = slack_of(self._like.dtype, is_widened=is_widened)
        bounds = {of: upper_bound(size, slack, is_widened=is_widened) for of, size in sizes.items()}
        finite = torch.stack([each.isfinite() for each in (*bounds.values(), *largest.values())])
        norms = {of: size.squares.sqrt() for of, size in sizes.items()}
        above = [each > self._bounds[of] for of, each in norms.items()]
        above += [each > self._releases[name].clip_norm for name, each in largest.items()]
        is_finite = finite.all(0)
        num_finite, num = int(is_finite.sum()), len(is_finite)
        self.counts.clipped += int((torch.stack(above).any(0) & is_finite).sum())
        self.counts.nonfinite += num - num_finite
        for key in self._counts:
            bits = [centred_bits(each, self._bounds[of]) for of, each in norms.items()]
            self._sum(key).add_(torch.stack(bits).amin(0)[is_finite].sum())
        weights = {
            of: held_weights(self._clipping.weights(each, self._bounds[of]), each, self._bounds[of])
            for of, each in bounds.items()
        }
        if num_finite < num:  # zero times NaN is NaN, so drop these examples
            weights = {of: weight[is_finite] for of, weight in weights.items()}
            for key in held:
                held[key] = held[key].select(is_finite)
        while held:
            key, grads = held.popitem()
            grads.add_to(self._sum(key), weights.get(self._groups[key]))


def clip_coordinates(values: Tensor, bound: float) -> tuple[Tensor, MaterializedGrads]:
    """Clamp per-example gradients [n, ...] to [-bound, bound] in every coordinate.

    Returns:
        Each example's largest absolute coordinate before clamping, [n] (NaN if any is NaN), and the
        clamped gradients.
    """
    clamped = values.double().clamp(-bound, bound)  # float64, to add without rounding
    return as_rows(values).abs().amax(1), MaterializedGrads(clamped)


FULL = (torch.float32, torch.float64)
"""Dtypes of weights that noise may be drawn for."""


def require_norms(clipping: Clipping, releases: Sequence[Release]) -> None:
    """Refuse a rule for norms beside a release whose coordinates are clipped.

    Raises:
        ConfigError: if they do not go together.
    """
    if clipping != FLAT and any(each.clip == "coordinates" for each in releases):
        raise ConfigError(
            "Expected a method that clips norms beside a clipping rule; this one clips "
            "coordinates. Leave clipping out."
        )


ONEDNN_MODES, STRICT = ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"), "STRICT"


def require_full_precision(model: nn.Module) -> None:
    """Check that all weights have one precision, float32 or float64; releases have it too.

    Noise on the coarse grid of half precision would not hide the low bits of the sums. The bounds
    on rounding hold for a single precision, and for products that lose nothing: oneDNN is not to
    multiply float32 in bfloat16, which only its environment variable asks of it.

    Raises:
        ConfigError: naming the first weight that fails, or the variable.
    """
    for variable in ONEDNN_MODES:
        if os.environ.get(variable, STRICT).upper() != STRICT:
            raise ConfigError(
                f"Expected oneDNN to multiply float32 without loss; got "
                f"{variable}={os.environ[variable]}, by which a norm may come out too small. Unset "
                f"it, or set {variable}={STRICT}."
            )
    for name, weight in model.named_parameters():
        if weight.is_complex():
            raise ConfigError(
                f"Expected weights of real numbers; {name} is in {weight.dtype}. Hold its real and "
                "imaginary parts as two parameters."
            )
    floating = [each for each in model.named_parameters() if each[1].is_floating_point()]
    for name, weight in floating:
        if weight.dtype not in FULL:
            raise ConfigError(
                f"Expected weights in float32 or float64; {name} is in {weight.dtype}, too coarse "
                "for noise. Load the model in float32; autocast may still multiply in half "
                "precision (model.precision=bfloat16)."
            )
        if weight.dtype != floating[0][1].dtype:
            raise ConfigError(
                f"Expected weights of one precision; {name} is in {weight.dtype}, the first one in "
                f"{floating[0][1].dtype}. Load the whole model in float32."
            )
