"""From C to functions that can be called."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import shlex
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

import torch
from torch import Tensor

SOURCES = sorted(Path(__file__).parent.glob("*.c"))
FLAGS = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")
PATIENCE = 60  # seconds, ours; it takes half of one

log = logging.getLogger("dpexp")


@dataclass(frozen=True)
class Compiled:
    """The sources as a library.

    Attributes:
        functions: by their names in C.
        lanes: numbers in a vector; `kernel_gradients` takes multiples of so many channels,
        most_taps: and kernels of at most so many positions.
        most_channels: that `norm_relu` takes.
        sha256: of the library: its rounding hangs on compiler and processor.
    """

    functions: ctypes.CDLL
    lanes: int
    most_taps: int
    most_channels: int
    sha256: str


@cache
def compiled() -> Compiled | None:
    """Compile and load the kernels, once a process; None, with a warning, where that fails."""
    try:
        with TemporaryDirectory() as folder:  # what is loaded stays when the file is gone
            target = Path(folder, "kernels.so")
            command = [*shlex.split(os.environ.get("CC", "cc")), *FLAGS, *map(str, SOURCES)]
            command += ["-o", str(target), "-lm"]
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE)
            library = ctypes.CDLL(str(target))
            names = ("lanes", "most_taps", "most_channels")
            sizes = [ctypes.c_int.in_dll(library, name).value for name in names]
            sha256 = hashlib.sha256(target.read_bytes()).hexdigest()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        said = next((line for line in lines if "error" in line), lines[0] if lines else "")
        log.warning(
            "Channels-last images take torch's slower operations. Ours want a C compiler with "
            "OpenMP (CC names another), a processor with AVX, and to run what lies in %s (TMPDIR "
            "names another folder): %s",
            gettempdir(),
            said,
        )
        return None
    return Compiled(library, *sizes, sha256)


def is_channels_last(images: Tensor) -> bool:
    """Return whether images [m, c, h, w] are float32, on a CPU and laid out [m, h, w, c].

    Images of one position or channel are laid out either way; libraries take them as they are.
    """
    return (
        images.device.type == "cpu"
        and images.dtype == torch.float32
        and images.numel() > 0
        and not images.is_neg()  # as torch may say of a view, without a change to its numbers
        and images.is_contiguous(memory_format=torch.channels_last)
        and not images.is_contiguous()
    )


def would_take(images: Tensor) -> bool:
    """Return whether there are kernels for such images [m, c, h, w] once they are channels last."""
    return images.device.type == "cpu" and images.dtype == torch.float32 and compiled() is not None


def address(tensor: Tensor) -> ctypes.c_void_p:
    """Return a tensor to C, which must not keep it."""
    return ctypes.c_void_p(tensor.data_ptr())


def struct(*numbers: int) -> ctypes.Array:
    """Return numbers to C as a struct of int64_t."""
    return (ctypes.c_int64 * len(numbers))(*numbers)
