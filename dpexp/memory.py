"""Memory: how it is kept between steps, and its peak between two calls."""

from __future__ import annotations

import ctypes
import resource
import sys
from pathlib import Path

import torch

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # of mallopt(3)

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def keep_pages() -> None:
    """Let the C library keep freed memory, on Linux with glibc; elsewhere do nothing.

    Every step frees what the next one asks for again. Handing those pages to the kernel and
    back costs up to a tenth of a step on a CPU (ours, measured on WRN28-4, batches of 32).
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, -1)  # never
        mallopt(M_TOP_PAD, 64 * 2**20)


def reset_peak(device: torch.device) -> None:
    """Start a new measurement; on a CPU outside Linux the peak stays the process's own."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif CLEAR.exists():
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)  # what earlier runs freed is not this one's
        try:
            CLEAR.write_text("5")  # resets VmHWM, see proc_pid_clear_refs(5)
        except OSError:
            return


def peak_mb(device: torch.device) -> float:
    """Give the peak since the last reset in MB (10^6 bytes): of tensors on a GPU, else resident."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    if STATUS.exists():
        for line in STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
