"""Operators of torch whose CPU kernels are ours within a context."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

import torch

Kernels = Mapping[str, Any]


class Replaced:
    """Kernels of torch's operators that others take the place of while one of them is in use.

    It is done by torch's dispatcher, in the whole process: layers of any model take part, and
    autograd's backward passes. The replacements are put in place before the first use and stay,
    for a thread that has looked one up may be about to call it. So after the first context every
    such call on a CPU goes through Python, for some microseconds.

    Attributes:
        uses: contexts that have been entered and not left; where there is none, a replacement has
            to call torch's kernel.
    """

    def __init__(self, names: tuple[str, ...], made: Callable[[Kernels], Kernels]) -> None:
        """Take operators' names in aten, and what returns replacements for their kernels.

        A replacement takes the dispatcher's keys, then the operator's arguments.
        """
        self._names, self._made = names, made
        self._lock = Lock()
        self._library: torch.library.Library | None = None
        self.uses = 0

    def enter(self) -> None:
        """Count a context; before the first one of the process, put the kernels in place."""
        with self._lock:
            if self._library is None:
                self._library = self._put_in_place()
            self.uses += 1

    def leave(self) -> None:
        """Count a context less."""
        with self._lock:
            self.uses -= 1

    def _put_in_place(self) -> torch.library.Library:
        kernels = {name: torch.library.get_kernel(f"aten::{name}", "CPU") for name in self._names}
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*other operators may also be overr")
            for name, function in self._made(kernels).items():
                library.impl(name, function, "CPU", with_keyset=True)
        return library
