"""The methods that an audit looks at, and the words of their runs."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpexp.cli import own_methods

SMALL = ("model=cnn", "model.channels=[4,8]", "model.kernel=3")
"""A model small enough for thousands of steps (ours), as are the sizes below."""

SIZES = {"rank": 2, "m": 20, "k": 8, "public_examples": 20}
"""Settings in a distinguishing game, of methods that have them (ours)."""


@dataclass(frozen=True)
class Subject:
    """A method to audit.

    Attributes:
        name: in the table.
        method: words that choose it.
        seed: of its runs; with a common seed, methods with releases of equal size would share every
            random number.
        one_run: more words for one run; None if there is none.
        small: more words for two worlds.
    """

    name: str
    method: tuple[str, ...]
    seed: int
    one_run: tuple[str, ...] | None = ()
    small: tuple[str, ...] = SMALL


PRIVATE = ("noise=true", "clip=true", "eps=8")

BY_LABEL = {"one_run": ("audit.canaries=mislabelled",), "small": ()}
"""For methods that clip coordinates or release something other than sums of gradients."""

FEW = {"one_run": ("audit.m=300",)}
"""Canaries that share a coordinate mask each other; embeddings and heads have few coordinates."""

PARTICULAR: dict[str, dict[str, Any]] = {
    "bgep": FEW,
    "dp_zo": FEW,  # all canaries share its one number
    "gep": FEW,
    "linear": {"method": ("method=linear", *PRIVATE), "one_run": ("audit.m=600",)},
    "compressive": BY_LABEL,
    "compressive_unmeasured": {"method": ("method=compressive", "method.psi=none"), **BY_LABEL},
    "pate": {"method": ("method=pate", "method.queries=80", "method.answers=30"), "one_run": None},
    "bitfit": {"method": ("method=bitfit", "model=cnn"), "one_run": ("audit.m=600",)},
}
"""Extra settings of some methods' audits."""

FIRST = (
    *("dpsgd", "sparse_dpsgd", "dp_powersgd", "rgp_random", "rgp", "rgp_public", "rgp_core", "lsg"),
    *("bgep", "gep", "linear", "compressive", "compressive_unmeasured", "pate", "bitfit"),
)
"""The committed table's order; a position is the run's seed, which its run id depends on."""


def subjects_of(words: Sequence[str]) -> list[Subject]:
    """Return every private method of conf/method and of the user's own config folders.

    Args:
        words: of the command line; hydra.searchpath names such folders.
    """
    private = [
        name for name, node in own_methods.methods(words).items() if node.get("noise") is not False
    ]
    names = [*FIRST, *sorted({*private} - {*FIRST})]
    return [
        Subject(
            name,
            **{"method": (f"method={name}",), "seed": _seed(name), **PARTICULAR.get(name, {})},
        )
        for name in names
    ]


def _seed(name: str) -> int:
    return FIRST.index(name) if name in FIRST else zlib.crc32(name.encode())
