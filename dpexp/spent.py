"""What a killed run has spent, and where it goes on so that nothing is released twice uncounted."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch

from dpexp.mechanism import Mechanism, PrivacyError
from dpexp.ranks import Ranks
from dpexp.records import (
    LEDGER,
    Ledger,
    Mark,
    Run,
    code_sha256,
    describe_device,
    read_mark,
    versions,
)


def take_up(
    run: Run, mechanism: Mechanism, step: int | None, surroundings: Mapping[str, Any] | None
) -> tuple[Ledger | None, int]:
    """Open a run's ledger, and say at which step it goes on.

    Args:
        run: begun, or to be gone on with.
        mechanism: its noise.
        step: of its checkpoint; None without one.
        surroundings: of `surroundings_of`.

    Returns:
        The ledger (None without noise: nothing is accounted), and the next step, from 0: that of
        the checkpoint, or a later one where steps are lost.

    Raises:
        PrivacyError: if no budget is left, or what is left is not known.
        RecordError: if the ledger cannot be written.
    """
    begun, mark = step or 0, read_mark(run.directory)
    if not mechanism.noise:
        return None, begun
    is_secret = mechanism.noise == "secret"
    if is_secret:
        surroundings = None
    if mark is None:
        if is_secret and (step is not None or (run.directory / LEDGER).exists()):
            raise PrivacyError(
                f"Expected {run.directory} to say how many steps may have been released; its "
                "ledger is missing or damaged. Set seed to begin another run."
            )
        mark = Mark(begun, begun, begun, surroundings)
    now = mark.taken_up(begun, surroundings)
    next_step = max(begun, now.begun_at)
    if step is None and next_step >= mechanism.num_steps:
        raise PrivacyError(
            f"Expected budget left for {run.directory}; all {mechanism.num_steps} steps may have "
            "been released, and no checkpoint is left. Set seed to begin another run, with another "
            "budget."
        )
    if next_step > begun:
        why = "the noise is secret" if is_secret else _difference(mark.surroundings, surroundings)
        warnings.warn(
            f"{next_step - begun} steps after step {begun} may have been released and cannot be "
            f"repeated exactly ({why}): they count as spent, and the run goes on without them.",
            stacklevel=2,
        )
    return Ledger(run.directory, now, is_durable=is_secret), next_step


def surroundings_of(config: dict, micro_batch: int, ranks: Ranks) -> dict[str, Any] | None:
    """Name what the rounding of sums depends on; None where they are added in any order.

    Args:
        config: the run's.
        micro_batch: examples in memory at once.
        ranks: who shares the run.
    """
    device = ranks.device
    if device.type != "cpu" and not torch.are_deterministic_algorithms_enabled():
        return None
    return {
        "ranks": ranks.size,
        "micro_batch": micro_batch,
        "channels_last": config["model"].get("channels_last"),
        "device": describe_device(device),
        "code": code_sha256(),
        **versions(),
    }


def _difference(before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> str:
    if before is None or now is None:
        return "sums are not added in one order"
    changed = [key for key in now if before.get(key) != now[key]]
    return f"changed: {', '.join(changed)}" if changed else "they were lost before"
