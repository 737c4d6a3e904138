"""The precision of a model's matrix products: float32, bfloat16, or whichever a processor has."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

PRECISIONS = ("auto", "float32", "bfloat16")
UNITS = ("avx512_bf16", "amx_bf16", "bf16")
"""Names of a CPU's instructions for bfloat16, those of ARM last. Without them products in bfloat16
are made by float32's, with conversions before and after, and take longer than float32's."""

AMPERE = (8, 0)
"""Compute capability of the first GPUs with units for bfloat16."""


def resolve(precision: str, device: torch.device) -> str:
    """Return float32 or bfloat16; auto is bfloat16 where the device has units for it.

    Args:
        precision: one of `PRECISIONS`.
        device: of the model.
    """
    if precision != "auto":
        return precision
    return "bfloat16" if _has_units(device) else "float32"


@cache
def _has_units(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= AMPERE
    return device.type == "cpu" and not _cpu_flags().isdisjoint(UNITS)


def _cpu_flags() -> set[str]:
    """Return the names of a CPU's instructions; torch tells them from 2.13 on, Linux always."""
    if hasattr(torch.cpu, "get_capabilities"):
        return {name for name, has in torch.cpu.get_capabilities().items() if has is True}
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    return {
        flag
        for line in lines
        if line.lower().startswith(("flags", "features"))
        for flag in line.partition(":")[2].split()
    }
