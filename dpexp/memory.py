"""Peak memory of what runs between two calls."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def reset_peak(device: torch.device) -> None:
    """Start a new measurement; on a CPU outside Linux the peak stays the process's own."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif CLEAR.exists():
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
