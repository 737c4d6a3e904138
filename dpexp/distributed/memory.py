"""Memory: keep freed pages, measure peaks, recover from running out."""

from __future__ import annotations

import ctypes
import gc
import logging
import math
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

from dpexp.types import ConfigError, one_line

log = logging.getLogger("dpexp")

Result = TypeVar("Result")

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # of mallopt(3)

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
MEMINFO, CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
OWN_GROUP = Path("/proc/self/cgroup")

SIGNS = (
    "can't allocate memory",  # torch's allocator on a CPU
    "bad_alloc",
    "could not create a memory",  # oneDNN
    "out of memory",  # CUDA itself, outside torch's allocator
    "ALLOC_FAILED",  # cuBLAS, cuDNN
)
"""Out-of-memory messages of libraries that have no exception type for it."""

SMALLER = "Set micro_batch=auto, a smaller model, or another device."
"""What to do about a run that does not fit."""


def keep_pages() -> None:
    """Make the C library keep freed memory, on Linux with glibc; elsewhere do nothing.

    Every step allocates again what the last one freed. Returning those pages to the kernel costs
    up to a tenth of a step on a CPU (ours, measured on WRN28-4, batches of 32).
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, -1)  # never
        mallopt(M_TOP_PAD, 64 * 2**20)


def release_pages() -> None:
    """Return freed memory to the system, where the C library can; see `keep_pages`."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if CLEAR.exists() else None
    if trim is not None:
        trim(0)


def reset_peak(device: torch.device) -> None:
    """Reset the peak; on a CPU outside Linux it remains that of the whole process."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif CLEAR.exists():
        release_pages()  # memory that earlier runs freed does not count
        try:
            CLEAR.write_text("5")  # resets VmHWM, see proc_pid_clear_refs(5)
        except OSError:
            return


def peak_mb(device: torch.device) -> float:
    """Return the peak since the last reset, in MB (10^6 bytes): GPU tensors, or resident memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    if (peak := _kilobytes(STATUS, "VmHWM:")) > 0:
        return peak * 1024 / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def room_mb(device: torch.device, sharing: int) -> float | None:
    """Return how far `peak_mb` may rise before memory runs out, in MB; None if unknown.

    Args:
        device: where this process computes.
        sharing: number of such processes that share the memory, >= 1.
    """
    if device.type == "cuda":
        left, _ = torch.cuda.mem_get_info(device)
        held = torch.cuda.memory_reserved(device)
        return (held + left / sharing) / 1e6
    if (available := _kilobytes(MEMINFO, "MemAvailable:")) == 0:
        return None
    free = min(available * 1024, _left_to_group(), sharing * _left_to_process())
    return (_kilobytes(STATUS, "VmRSS:") * 1024 + free / sharing) / 1e6


class _Files(NamedTuple):
    """What a version of cgroups calls its files on memory, and file pages that it can take back."""

    limit: str
    used: str
    reclaimable: str


V1 = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2 = _Files("memory.max", "memory.current", "inactive_file")


def _left_to_group() -> float:
    """Return the bytes left under limits of a container or a service (cgroups), or infinity.

    A process's group is within others, each of which may have a limit. Version 1 has a tree of
    groups for each controller, version 2 one for all.
    """
    own = _own_groups()
    roots = (("", CGROUP, V2), ("memory", CGROUP / "memory", V1))
    left = math.inf
    for controller, root, files in roots:
        names = Path(own.get(controller, "").strip("/")).parts
        for depth in range(len(names) + 1):
            left = min(left, _left_under(root.joinpath(*names[:depth]), files))
    return left


def _own_groups() -> dict[str, str]:
    """Return this process's group by controller, "" for version 2's, as in cgroups(7)."""
    lines = (line.split(":", 2) for line in _read(OWN_GROUP).splitlines())
    split = [parts for parts in lines if len(parts) == 3]
    return {name: path for _, controllers, path in split for name in controllers.split(",")}


def _left_under(group: Path, files: _Files) -> float:
    """Return the bytes left under a group's limit; infinity without one that can be read."""
    limit, used = (_read(group / name).strip() for name in (files.limit, files.used))
    if not (limit.isdecimal() and used.isdecimal()):  # "max", or not there
        return math.inf
    told = (line.partition(" ") for line in _read(group / "memory.stat").splitlines())
    pages = next((size for name, _, size in told if name == files.reclaimable), "")
    return float(limit) - float(used) + (float(pages) if pages.isdecimal() else 0.0)


def _read(path: Path) -> str:
    """Return a small file's text; "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _left_to_process() -> float:
    """Return the bytes left under `ulimit -v`, which counts addresses; infinity without a limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return math.inf
    return float(limit - _kilobytes(STATUS, "VmSize:") * 1024)


def _kilobytes(path: Path, field: str) -> int:
    """Return a field of a file of /proc; 0 where a system has no such file or field."""
    lines = (line.split() for line in _read(path).splitlines() if line.startswith(field))
    return next((int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()), 0)


def ran_out(error: BaseException) -> bool:
    """Return whether an error means that memory ran out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)


def collect() -> None:
    """Collect garbage, and empty torch's cache on a GPU so that other sizes can use it."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def halving(work: Callable[[int], Result], size: int, of: str) -> tuple[Result, int]:
    """Call `work`, halving the size each time that memory runs out.

    Args:
        work: called with the size; starts over each time, and keeps nothing of a failed attempt.
        size: number of examples at once to start with, >= 1.
        of: name of the size, for warnings.

    Returns:
        The result of `work`, and the size at which it succeeded.

    Raises:
        ConfigError: if not even one example fits.
    """
    while True:
        try:
            return work(size), size
        except (MemoryError, RuntimeError) as error:
            if not ran_out(error):
                raise
            if size == 1:
                raise ConfigError(one_example(error)) from None
            reason = _reason(error)
        # Inside the except clause the error's traceback would still hold the attempt's tensors.
        collect()
        log.warning("out of memory with %s=%d (%s): going on with %d", of, size, reason, size // 2)
        size //= 2


def one_example(error: BaseException) -> str:
    """Return the message that not even one example fits, with remedies."""
    return (
        f"Expected one example to fit in memory; it does not: {_reason(error)}. For a language "
        "model set model.checkpointing=true or model.precision=bfloat16; of views fewer "
        "(augmentation.multiplicity); else a smaller model, or another device."
    )


@contextmanager
def in_one_line(what: str, remedy: str) -> Iterator[None]:
    """Turn an out-of-memory error into a ConfigError with a remedy.

    Args:
        what: what should have fitted.
        remedy: what to set, as a sentence.

    Raises:
        ConfigError: if memory runs out.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not ran_out(error):
            raise
        line = f"Expected {what} to fit in memory; it does not: {_reason(error)}. {remedy}"
        raise ConfigError(line) from None


def _reason(error: BaseException) -> str:
    """Return the sentence that says how much memory was requested."""
    sentences = one_line(error).split(". ")
    chosen = next((some for some in sentences if "allocate" in some), sentences[0])
    return chosen.rstrip(".") or type(error).__name__
