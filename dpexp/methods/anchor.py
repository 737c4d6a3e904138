"""The anchor subspace of gep: parameter groups, their shares of the basis, anchor gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dpexp.linalg import as_rows, orthonormal_columns
from dpexp.types import ConfigError, PublicGradients, require_word

GROUPINGS = ("stages", "layers", "all")

Groups = Mapping[str, Sequence[str]]
"""The names of each group's parameters."""


def parameter_groups(
    shapes: Mapping[str, Sequence[int]], grouping: str
) -> dict[str, tuple[str, ...]]:
    """Split parameters into groups, each in their order.

    Args:
        shapes: of the parameters, by name, in the model's order.
        grouping: "stages" puts together what lies in one top-level module and has as many
            outputs: in a ResNet the first layer, every stage, and the classifier (gep, Section 4).
            "layers" makes each layer a group; "all" makes one.
    """
    groups: dict[str, list[str]] = {}
    for name, shape in shapes.items():
        stage = f"{name.partition('.')[0]}:{next(iter(shape), 1)}"
        layer = name.rpartition(".")[0]
        key = {"stages": stage, "layers": layer, "all": "all"}[grouping]
        groups.setdefault(key, []).append(name)
    return {key: tuple(names) for key, names in groups.items()}


def shares(sizes: Mapping[str, int], total: int, setting: str = "method.k") -> dict[str, int]:
    """Return each group's number of basis vectors, in proportion to the square root of its size.

    Rounded by Webster's method: one for each group, then always one for the group furthest below
    its share. No group gets more than its number of parameters.

    Args:
        sizes: number of parameters by group.
        total: how many vectors, k.
        setting: that determines k, for errors.

    Raises:
        ConfigError: if there are fewer vectors than groups, or more than parameters.
    """
    if not len(sizes) <= total <= sum(sizes.values()):
        raise ConfigError(
            f"Expected k in [{len(sizes)}, {sum(sizes.values())}], at least one basis vector a "
            f"group and at most one a parameter; got k={total}. Set {setting}."
        )
    given = dict.fromkeys(sizes, 1)
    for _ in range(total - len(sizes)):
        hungry = (group for group in sizes if given[group] < sizes[group])
        given[min(hungry, key=lambda g: (given[g] + 0.5) / math.sqrt(sizes[g]))] += 1
    return given


def has_random_labels(setting: str, public_labels: str | bool) -> bool:
    """Return whether public examples get random labels instead of their own.

    Args:
        setting: its name, for errors.
        public_labels: "random" or "true".

    Raises:
        ConfigError: for another word.
    """
    labels = str(public_labels).lower()  # a bare `true` is a bool
    require_word(setting, labels, ("random", "true"))
    return labels == "random"


def draw_public(
    public: PublicGradients,
    size: int,
    head: Mapping[str, Sequence[int]],
    is_random: bool,
    gen: torch.Generator,
) -> tuple[Tensor, Tensor | None]:
    """Draw public examples, with replacement.

    Args:
        public: the set.
        size: how many, m.
        head: shapes of the classifier's parameters, in the model's order; the last layer has as
            many outputs as there are classes.
        is_random: whether labels are drawn as well.
        gen: on the model's device.

    Returns:
        Indices [m], and labels [m]; None: the set's own.
    """
    indices = torch.randint(len(public), (size,), generator=gen, device=gen.device)
    if not is_random:
        return indices, None
    *_, (classes, *_) = head.values()
    return indices, torch.randint(classes, (size,), generator=gen, device=gen.device)


def anchor_gradients(
    public: PublicGradients, m: int, labels: Tensor | None, groups: Groups
) -> dict[str, Tensor]:
    """Return the gradients of the first m public examples, [m, p] by group.

    Args:
        public: the public set at the model's current weights.
        m: how many.
        labels: [m]; None: the set's own.
        groups: what to put side by side.
    """
    anchors: dict[str, Tensor] = {}
    done = 0
    for gradients in public.micro_batches(torch.arange(m), labels):
        for group, names in groups.items():
            some = [as_rows(gradients[name]) for name in names]
            sizes = [each.shape[1] for each in some]
            if done == 0:
                anchors[group] = some[0].new_empty(m, sum(sizes))
            rows = anchors[group][done : done + len(some[0])]
            for columns, each in zip(rows.split(sizes, dim=1), some, strict=True):
                columns.copy_(each)
        done += len(rows)
    return anchors


def random_basis(k: int, p: int, gen: torch.Generator, like: Tensor) -> Tensor:
    """Draw k orthonormal rows [k, p] uniformly (gep, Appendix C)."""
    gaussian = torch.randn(p, k, generator=gen, device=like.device, dtype=like.dtype)
    return orthonormal_columns(gaussian).T
