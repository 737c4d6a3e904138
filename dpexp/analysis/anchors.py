"""Anchor subspaces as in gep, for comparison with gradients; nothing here trains.

Index legend: n examples, m anchor gradients, p parameters of a group, k its basis vectors.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from dpexp.linalg import power_iteration
from dpexp.methods.anchor import (
    GROUPINGS,
    Groups,
    anchor_gradients,
    has_random_labels,
    parameter_groups,
    random_basis,
    shares,
)
from dpexp.training.observation import View
from dpexp.types import ConfigError, require_word


class Anchors:
    """Computes anchor gradients and their bases (gep, Algorithm 1, lines 3-7)."""

    def __init__(
        self, analysis: str, m: int, groups: str, power_iterations: int, public_labels: str | bool
    ) -> None:
        """Set the options.

        Args:
            analysis: name of the analysis, for messages.
            m: number of anchor gradients, >= 1, of the first m images of the public set.
            groups: "stages", "layers" or "all" (`dpexp.methods.anchor`).
            power_iterations: t >= 1.
            public_labels: "random", drawn at every observation, or "true", those of the public set.

        Raises:
            ConfigError: for a value outside its range.
        """
        require_word(f"analysis.{analysis}.groups", groups, GROUPINGS)
        is_random = has_random_labels(f"analysis.{analysis}.public_labels", public_labels)
        if m < 1 or power_iterations < 1:
            raise ConfigError(
                f"Expected analysis.{analysis}.m >= 1 and power_iterations >= 1; got {m} and "
                f"{power_iterations}. Set them."
            )
        self._analysis, self.m, self._grouping = analysis, m, groups
        self._power_iterations, self._has_random_labels = power_iterations, is_random

    def groups(self, view: View) -> Groups:
        """Return the names of each group's parameters.

        Raises:
            ConfigError: the method freezes some of them.
        """
        shapes = {name: weight.shape for name, weight in view.model.named_parameters()}
        groups = parameter_groups(shapes, self._grouping)
        frozen = [name for name in shapes if name not in view.trained]
        if frozen:
            raise ConfigError(
                f"Expected a method that trains every parameter for analysis={self._analysis}; "
                f"{frozen[0]} is frozen. Set method=nonprivate, dpsgd, gep or bgep."
            )
        return groups

    def gradients(self, view: View, groups: Groups) -> dict[str, Tensor]:
        """Return the gradients of the first m public images, [m, p] by group.

        Raises:
            ConfigError: the run has fewer public images, or true labels are requested but missing.
        """
        public = view.task.public
        if public is None or len(public) < self.m:
            raise ConfigError(
                f"Expected {self.m} public examples for analysis={self._analysis}; got "
                f"{0 if public is None else len(public)}. Set public=imagenet32, cifar100, "
                f"cifar10-test, digits or shapes, or analysis.{self._analysis}.m."
            )
        passes = view.per_example(public, f"analysis.{self._analysis}.public_labels")
        labels = None
        if self._has_random_labels:
            gen = view.generator("labels")
            labels = torch.randint(view.task.num_classes, (self.m,), generator=gen).to(view.device)
        return anchor_gradients(passes, self.m, labels, groups)

    def basis(self, view: View, anchors: Tensor, k: int) -> Tensor:
        """Return k orthonormal rows [k, p] near the principal directions of anchors [m, p]."""
        gen = torch.Generator(view.device).manual_seed(view.generator(f"basis/{k}").initial_seed())
        return power_iteration(anchors, k, self._power_iterations, gen)[1]


def random_rows(view: View, k: int, like: Tensor) -> Tensor:
    """Return k uniformly random orthonormal rows [k, p], p the columns of `like` (gep, App. C)."""
    gen = torch.Generator(view.device).manual_seed(view.generator(f"random/{k}").initial_seed())
    return random_basis(k, like.shape[-1], gen, like)


def shares_of(anchors: Mapping[str, Tensor], total: int, setting: str) -> dict[str, int]:
    """Return each group's number of basis vectors, by the square root of its size (gep, Section 4).

    Raises:
        ConfigError: the total does not suit the groups; the message names the setting.
    """
    return shares({group: matrix.shape[1] for group, matrix in anchors.items()}, total, setting)


def residual(gradients: Tensor, basis: Tensor) -> Tensor:
    """Return R = G - G B^T B, each row's residual outside a subspace (gep, Algorithm 1, line 11).

    Args:
        gradients: G [n, p], or one gradient [p].
        basis: B [k, p] with orthonormal rows.
    """
    return gradients - (gradients @ basis.T) @ basis


def projection_error(mean: Tensor, basis: Tensor) -> float:
    """Return the projection error rate |r / n| / |g| (gep, Section 3.2, Figure 4).

    Projection is linear, so the mean of the residuals is the residual of the mean.

    Args:
        mean: g [p].
        basis: B [k, p] with orthonormal rows.

    Guarantees: in [0, 1] up to rounding; NaN if g is zero.
    """
    return float(residual(mean, basis).norm() / mean.norm())
