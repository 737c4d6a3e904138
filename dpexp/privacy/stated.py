"""Statements of methods for verification, and how verification finds them.

A method declares its releases twice. A run uses `Method.releases`. The statement in the same class
is written independently, from the paper and not from the code that runs, and every certificate is
checked against it:

    class Mine(Method):
        @staticmethod
        def stated_releases(config: Mapping[str, Any], size: int) -> list[Stated]:
            return [Stated("gradient", config["privacy"]["clip_norm"])]

`config` is the run's plain config, and `size` the number of trained parameters. A method or
analysis that uses public examples states how many: `stated_public_examples(settings)`, with its own
settings. A method with voting teachers has `stated_votes(settings, available)` in place of
releases.

A subclass inherits no statement, for it may release something else.

A record may come from anyone and name any class. Verification imports modules of dpexp only. Any
other class is looked up among the modules that this process has already imported, e.g. those that
the user's own conf or command line names. Only a class's statements are called.

A clipping rule that releases something beside the method states that: `stated_releases(config)`.

A method whose settings leave others unread says so, and who types one of these is told:
`unread_settings(settings, steps, last)` returns their names, each with what leaves it unread.
`steps` is how many a run takes, and `last` the epochs after which the last of them begins; both are
infinite where that is not known.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]

OPTIMIZERS = re.compile(r"torch\.optim\.\w+")


@dataclass(frozen=True)
class Stated:
    """One release of a step, as stated by a method.

    Attributes:
        name: None accepts any.
        clip_norm: bound on one example's contribution.
        sensitivity: in clip norms; in l2 under Gaussian noise, in l1 under Laplace noise.
        noise: "gaussian" or "laplace", the same for all releases of a method.
        clip: "norm", "coordinates" or "count", as in `Release`.
        dimension: number of entries; None: not stated, and not checked.
        noise_multiplier: its own; None: the one that all others share.
    """

    name: str | None
    clip_norm: float
    sensitivity: float = 1.0
    noise: str = "gaussian"
    clip: str = "norm"
    dimension: int | None = None
    noise_multiplier: float | None = None


@dataclass(frozen=True)
class StatedVotes:
    """One kind of query to teachers, as stated by a method.

    Attributes:
        name: of the query.
        sensitivity: of the votes' histogram to one teacher's vote, in l2.
        noise: standard deviation, in units of the certificate's noise multiplier.
        at_most: largest number of such queries in a run.
    """

    name: str
    sensitivity: float
    noise: float
    at_most: int


@dataclass(frozen=True)
class Statement:
    """The statements of a config's method, or what is assumed without any.

    Attributes:
        is_known: whether the method states its releases.
        releases: maps a config and the number of trained parameters to a step's releases.
        votes: maps the method's settings and the number of public inputs (None: unknown) to the
            allowed queries; None: the method does not vote.
    """

    is_known: bool
    releases: Callable[[Mapping[str, Any], int], Sequence[Stated]]
    votes: Callable[[Mapping[str, Any], int | None], Sequence[StatedVotes]] | None


def _on_trust(config: Mapping[str, Any], _: int) -> list[Stated]:
    """Return what is assumed of an unknown method: one clipped vector, under Gaussian noise."""
    return [Stated(None, float(config["privacy"]["clip_norm"]))]


def statement_of(config: Mapping[str, Any]) -> Statement:
    """Return the statements of a config's method."""
    target = config["method"]["_target_"]
    releases, votes = _own(target, "stated_releases"), _own(target, "stated_votes")
    rule = config.get("clipping") or {}
    beside = _own(rule.get("_target_", ""), "stated_releases")

    def of_step(config: Mapping[str, Any], size: int) -> list[Stated]:
        own = (releases or _on_trust)(config, size)
        return own if beside is None else [*own, *beside(config)]

    return Statement(
        is_known=releases is not None or votes is not None,
        releases=of_step,
        votes=votes,
    )


def public_examples(config: Mapping[str, Any]) -> int:
    """Return how many public examples a run of this config needs; 0 if it loads none."""
    needs = [_public_examples(config["method"])]
    needs += [_public_examples(node) for node in (config.get("analysis") or {}).values()]
    if config.get("warm_start"):
        needs.append(config["warm_start"]["examples"])
    return max(needs)


def states_public(settings: Mapping[str, Any]) -> bool:
    """Return whether a method or an analysis states how many public examples it takes."""
    return _own(settings["_target_"], "stated_public_examples") is not None


def _public_examples(settings: Mapping[str, Any]) -> int:
    stated = _own(settings["_target_"], "stated_public_examples")
    return 0 if stated is None else stated(settings)


def unread_settings(settings: Mapping[str, Any], steps: float, last: float) -> dict[str, str]:
    """Return a method's settings that it does not read, by name, with what leaves them unread.

    Args:
        settings: the method's.
        steps: of the run; infinite if that is not known.
        last: epochs after which the last step begins; likewise.
    """
    stated = _own(settings["_target_"], "unread_settings")
    return {} if stated is None else dict(stated(settings, steps, last))


def class_of(target: str) -> type | None:
    """Return the class at a dotted name; None if there is none, or its module is not imported."""
    module, _, class_name = str(target).rpartition(".")
    # Importing a module runs it, so modules that someone else's record names are not imported.
    place = importlib.import_module(module) if is_ours(target) else sys.modules.get(module)
    found = getattr(place, "__dict__", {}).get(class_name)
    return found if isinstance(found, type) else None


def _own(target: str, name: str) -> Callable[..., Any] | None:
    """Return a statement of the class at a dotted name; None if the class itself has none."""
    found = class_of(target)
    return None if found is None or name not in vars(found) else getattr(found, name)


@cache
def is_ours(target: str) -> bool:
    """Return whether a target is defined in dpexp's own files, or is an optimizer of torch."""
    if OPTIMIZERS.fullmatch(target):
        return True
    if not re.fullmatch(r"dpexp(\.\w+)+", target):
        return False
    _, *folders, name = target.split(".")
    place = PACKAGE.joinpath(*folders)
    for path in (place.with_suffix(".py"), place / "__init__.py"):
        if folders and path.is_file():
            return bool(
                re.search(rf"^(class|def|from .*import.*)\b.*\b{name}\b", path.read_text(), re.M)
            )
    return False
