"""The budget ledger of a run: after a kill, no step is released a second time without counting."""

from __future__ import annotations

import json
import os
import random
import zlib
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from dpexp.distributed.ranks import Ranks
from dpexp.kernels import compiled
from dpexp.privacy import Mechanism, PrivacyError
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
from dpexp.records.own_code import require_same
from dpexp.records.weights import digest
from dpexp.training.probing.sketch import fingerprint
from dpexp.training.probing.stage import OF_ALL_MODULES
from dpexp.types import ConfigError, counted
from dpexp.warned import warn_caller

_LIBRARIES = ("ATEN_", "DNNL_", "MKL_", "ONEDNN_", "OPENBLAS_CORETYPE", "NVIDIA_TF32_OVERRIDE")
_HARMLESS = ("_VERBOSE", "_NUM_THREADS")

GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
"""Kinds of what a model may draw from beside the generators that every step seeds."""

LEAST = 1e-40
"""A float32 too small for a full mantissa; torch.set_flush_denormal has it taken as 0."""

OTHER_DATA = (
    "Expected to go on with the data the run began with; their fingerprints differ. Put the former "
    "data back, or point data or data_root to them, or remove the run's directory."
)


def open_ledger(
    run: Run,
    mechanism: Mechanism,
    step: int | None,
    data: str,
    surroundings: Mapping[str, Any] | None,
    own_code: Mapping[str, Mapping[str, str]],
    starts: str = "",
) -> tuple[Ledger | None, int]:
    """Open a run's budget ledger, and find the step at which the run continues.

    Args:
        run: new or resumed.
        mechanism: of the run.
        step: of its checkpoint; None without one.
        data: fingerprint of the task's examples.
        surroundings: from `surroundings_of`.
        own_code: hashes of the user's code that is to run.
        starts: of its checkpoint, as in a `Mark`.

    Returns:
        The ledger (None without noise: nothing is accounted), and the next step, from 0: that of
        the checkpoint, or a later one if steps are lost.

    Raises:
        ConfigError: if the data or the user's code changed since the run began.
        PrivacyError: if no budget is left, or the rest is unknown.
        RecordError: if the ledger cannot be written.
    """
    begun = step or 0
    if not mechanism.noise:
        return None, begun
    is_secret = mechanism.noise == "secret"
    if is_secret:
        surroundings = None
    mark = read_ledger(run, data, own_code, is_needed=step is not None)
    if mark is None:
        mark = Mark(data, begun, begun, begun, surroundings, run.id, own_code)
    now = mark.resumed(begun, surroundings, starts)
    next_step = max(begun, now.begun_at)
    why = difference(mark.surroundings, surroundings)
    if step is None and next_step >= mechanism.num_steps:
        raise PrivacyError(
            f"Expected budget left for {run.directory}; all {mechanism.num_steps} steps may have "
            f"been released and cannot be repeated exactly ({why}), and no checkpoint is left. Set "
            "seed to begin another run, with another budget."
        )
    behind = f"{counted(next_step - begun, 'step')} after step {begun}"
    if next_step > begun and mechanism.correlation is not None:
        raise PrivacyError(
            f"{behind} may have been released and cannot be repeated exactly ({why}), and later "
            "noise needs theirs. Set seed to begin another run."
        )
    if next_step > begun:
        warn_caller(
            f"{behind} may have been released and cannot be repeated exactly ({why}). Such steps "
            "count as spent, and the run goes on without them."
        )
    return Ledger(run.directory, now, is_durable=is_secret), next_step


def read_ledger(
    run: Run, data: str, own_code: Mapping[str, Mapping[str, str]], is_needed: bool
) -> Mark | None:
    """Return what a run may have released so far; None if it has no ledger yet.

    Args:
        run: with noise.
        data: fingerprint of the task's examples.
        own_code: hashes of the user's code that is to run.
        is_needed: whether the run must have a ledger by now.

    Raises:
        ConfigError: if the data or the user's code changed since the run began.
        PrivacyError: if the rest of its budget is unknown.
    """
    mark = read_mark(run.directory)
    if mark is None and (is_needed or (run.directory / LEDGER).exists()):
        raise PrivacyError(
            f"Expected {run.directory} to say how many steps may have been released; its ledger is "
            "missing, damaged or of former code. Set seed to begin another run."
        )
    if mark is not None and mark.run != run.id:
        raise PrivacyError(
            f"Expected {run.directory / LEDGER} to be this run's; it is of "
            f"{f'run {mark.run}' if mark.run else 'former code'}, so that nothing tells how many "
            "steps may have been released. Put the run's own there, or set seed to begin another."
        )
    if mark is not None and mark.data != data:
        raise ConfigError(OTHER_DATA)
    if mark is not None:
        require_same(mark.own_code, own_code)
    return mark


def surroundings_of(
    config: dict,
    data: str,
    model: nn.Module,
    ranks: Ranks,
    own_code: Mapping[str, Mapping[str, str]],
) -> dict[str, Any] | None:
    """Return a fingerprint of whatever affects floating-point sums.

    None if their order varies, or if the model draws by a generator of its own, which no checkpoint
    has. Every rank must call it.

    Args:
        config: the run's.
        data: fingerprint of the task's examples.
        model: before the first step.
        ranks: that share the run.
        own_code: hashes of the user's code that is to run.

    Raises:
        RankLost: if another rank died.
    """
    if ranks.device.type != "cpu" and not torch.are_deterministic_algorithms_enabled():
        return None
    if any(isinstance(each, GENERATORS) for part in model.modules() for each in _held(part)):
        return None
    own: dict[str, Any] = {
        "data": data,
        "weights": digest(model.state_dict()),
        "device": describe_device(ranks.device),
        "code": code_sha256(),
        "instructions": _instructions(),
        **versions(),
    }
    if own_code:
        own["own_code"] = own_code
    may_lay = _may_lay_channels_last(model)
    layout = config["model"].get("channels_last", may_lay)
    if layout == "auto" and not _convolves(model):  # as a network of texts
        layout = False
    if (layout or may_lay) and ranks.device.type == "cpu":
        kernels = compiled()
        own["kernels"] = kernels.sha256 if kernels else None
    if layout == "auto":
        layout = own.get("kernels") is not None
    each = torch.zeros(ranks.size, dtype=torch.int64, device=ranks.device)
    each[ranks.rank] = zlib.crc32(json.dumps(own).encode())
    ranks.all_reduce([each])
    return {
        "ranks": ranks.size,
        "other_ranks": each[1:].tolist(),
        "channels_last": layout,
        **own,
    }


def _held(part: nn.Module) -> list[Any]:
    """Return what a module's attributes hold, also in lists and dicts."""
    return tree_leaves({key: v for key, v in vars(part).items() if key not in OF_ALL_MODULES})


def _convolves(model: nn.Module) -> bool:
    """Return whether a model may give our kernels images: what convolves them has four axes."""
    return any(weight.ndim == 4 for weight in model.parameters())


def _may_lay_channels_last(model: nn.Module) -> bool:
    """Return whether a model's own code may lay out images so, whatever it is given.

    ConvNeXt's norms do. Depthwise convolutions take our kernels in either layout.
    """
    return not type(model).__module__.startswith("dpexp.models.") and _convolves(model)


def _instructions() -> dict[str, str]:
    """Return the instruction set that torch uses, and the settings that restrict it.

    The processor's name is not enough: a virtual machine may hide some of its flags. In a notebook
    torch's own switches may have been set since.
    """
    told = [key for key in os.environ if key.startswith(_LIBRARIES) and not key.endswith(_HARMLESS)]
    chosen = {key: os.environ[key] for key in sorted(told)}
    switches = {  # only those that are not as torch has them
        "onednn": not torch.backends.mkldnn.enabled,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "denormals": float(torch.tensor(LEAST) * 1) == 0,
    }
    changed = {name: "changed" for name, is_changed in switches.items() if is_changed}
    return {"torch": torch.backends.cpu.get_cpu_capability(), **changed, **chosen}


def told_by(released: Iterable[Tensor]) -> str:
    """Return 16 hexadecimal digits that tell noisy releases from others, by their bits."""
    told = repr([fingerprint(each) for each in released]).encode()
    return blake2b(told, digest_size=8).hexdigest()


def difference(before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> str:
    """Return in a few words why steps released in one environment cannot be repeated in another."""
    if before is None or now is None:
        return (
            "the noise is secret, sums are not added in one order, a repeated step came out "
            "otherwise, or the model has a generator of its own"
        )
    changed = [key for key in now if before.get(key) != now[key]]
    return f"changed: {', '.join(changed)}" if changed else "they were lost before"
