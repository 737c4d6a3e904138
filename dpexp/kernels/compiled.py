"""Compile the C kernels, once a machine, and load them."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import shlex
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

import torch
from torch import Tensor

from dpexp.kernels import keeping

SOURCES = sorted(Path(__file__).parent.glob("*.c"))
FLAGS = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")
PATIENCE = 60  # seconds, ours; compiling takes one

log = logging.getLogger("dpexp")


@dataclass(frozen=True)
class Compiled:
    """The compiled library.

    Attributes:
        functions: by their names in C.
        lanes: numbers in a vector; `kernel_gradients` needs a multiple of this many channels, and
            `winograd` of channels and outputs.
        most_taps: most kernel positions that `kernel_gradients` supports.
        most_squares: that `kept_squares` adds in float32, one after the other.
        most_channels: most channels that `norm_relu` supports.
        sha256: of the library; its rounding depends on compiler and processor.
    """

    functions: ctypes.CDLL
    lanes: int
    most_taps: int
    most_squares: int
    most_channels: int
    sha256: str


_ahead: Future[Compiled | None] | None = None


def prepare() -> None:
    """Begin to compile, while what comes before the first kernel goes on."""
    global _ahead
    if _ahead is None and not compiled.cache_info().currsize:
        _ahead = ThreadPoolExecutor(1, "kernels").submit(_compiled)


def _forget() -> None:
    """Forget what is under way: a forked process has no thread that would end it."""
    global _ahead
    _ahead = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


@cache
def compiled() -> Compiled | None:
    """Return the kernels, compiled once per machine; None, with a warning, if that fails."""
    global _ahead
    ahead, _ahead = _ahead, None
    return _compiled() if ahead is None else ahead.result()


def _compiled() -> Compiled | None:
    try:
        command = [*shlex.split(os.environ.get("CC", "cc")), *FLAGS]
        key = keeping.key_of(command, SOURCES)
        if key and (kept := keeping.find(key)) is not None:
            with suppress(OSError, ValueError):  # a folder of which nothing may be executed
                return _loaded(kept)
        with TemporaryDirectory() as folder:  # a loaded library outlives its file
            target = Path(folder, "kernels.so")
            command += [*map(str, SOURCES), "-o", str(target), "-lm"]
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE)
            found = _loaded(target)
            if key:
                keeping.keep(key, target.read_bytes())
            return found
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        log.warning(
            "Channels-last images use torch's slower operations. The faster kernels need a C "
            "compiler with OpenMP (set CC), a processor with AVX, and permission to execute files "
            "in %s (set TMPDIR): %s",
            _temporary(),
            _reason(error),
        )
        return None


def _temporary() -> str:
    """Return the folder for temporary files, in words where there is none."""
    try:
        return gettempdir()
    except OSError:
        return "a folder for temporary files"


def _reason(error: Exception) -> str:
    """Return the line that says why there are no kernels."""
    if isinstance(error, subprocess.TimeoutExpired):  # what it said until then is not why
        return f"compiling took more than {PATIENCE} seconds"
    lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
    return next((line for line in lines if "error" in line), lines[0] if lines else "")


def _loaded(path: Path) -> Compiled:
    """Load a library.

    Raises:
        OSError: if it cannot be loaded.
        ValueError: if it is another.
    """
    library = ctypes.CDLL(str(path))
    names = ("lanes", "most_taps", "most_squares", "most_channels")
    numbers = [ctypes.c_int.in_dll(library, name).value for name in names]
    lanes, most_taps, most_squares, most_channels = numbers
    library.winograd_scratch.restype = ctypes.c_int64
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return Compiled(library, lanes, most_taps, most_squares, most_channels, sha256)


def functions() -> ctypes.CDLL:
    """Return the kernels' functions, where `compiled` has them."""
    library = compiled()
    assert library is not None, "no kernels are compiled: ask `compiled` first"
    return library.functions


def is_channels_last(images: Tensor) -> bool:
    """Return whether images [m, c, h, w] are float32, on a CPU and each laid out [h, w, c].

    How far apart they are does not count, so that no image's kernel depends on the others;
    `side_by_side` makes them dense. False for images of one position or channel, which have both
    layouts at once.
    """
    if images.device.type != "cpu" or images.dtype != torch.float32 or images.numel() == 0:
        return False
    if images.is_neg():  # torch may negate a view lazily, without changing its memory
        return False
    (channels, height, width), strides = images.shape[1:], images.stride()[1:]
    wanted = zip(images.shape[1:], strides, (1, width * channels, channels), strict=True)
    return channels > 1 and height * width > 1 and all(n == 1 or has == at for n, has, at in wanted)


def side_by_side(images: Tensor) -> Tensor:
    """Return images [m, c, h, w] that are `is_channels_last`, one after the other in memory."""
    return images.contiguous(memory_format=torch.channels_last)


def would_take(images: Tensor) -> bool:
    """Return whether the kernels support images [m, c, h, w] once these are channels last."""
    return images.device.type == "cpu" and images.dtype == torch.float32 and compiled() is not None


def address(tensor: Tensor) -> ctypes.c_void_p:
    """Return a tensor's address for C, which must not keep it."""
    return ctypes.c_void_p(tensor.data_ptr())


def struct(*numbers: int) -> ctypes.Array:
    """Return numbers as a C struct of int64_t."""
    return (ctypes.c_int64 * len(numbers))(*numbers)
