"""Which functions a forward pass calls: a library's network may call what a user gave it.

Attention of transformers is looked up by name, for one, and any name of a module can be set anew.
"""

from __future__ import annotations

import gc
import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn

from dpexp.training.probing.stage import chance_kept, state_kept

LIBRARIES = frozenset({"dpexp", "torch", "torchvision", "timm", "transformers", "numpy"})
"""Packages whose functions a network may call, beside Python's own, and is still known."""


def code_called(
    model: nn.Module, inputs: Tensor, loss: Callable[[Any], object] | None = None
) -> str | None:
    """Return a hash of the libraries' code that a forward pass calls; None if it calls any other.

    Python's own code is not in the hash, as it also does what is not the model's.

    Args:
        model: that is not changed.
        inputs: of few examples.
        loss: of what the model makes of them; None: it is not called.
    """
    called: set[tuple[str, Any]] = set()
    try:
        _call(model, inputs, loss)  # a process's first pass imports and compiles, too
        with _noting(called):
            _call(model, inputs, loss)
    except Exception:  # anyone's model, of which its trial says more
        return None
    roots = {place.partition(".")[0] for place, _ in called} - sys.stdlib_module_names
    if not roots <= LIBRARIES:
        return None
    words = sorted(
        f"{place} {_words(what)}" for place, what in called if place.partition(".")[0] in roots
    )
    return hashlib.sha256("\0".join(words).encode()).hexdigest()


def _call(model: nn.Module, inputs: Tensor, loss: Callable[[Any], object] | None) -> None:
    """Call a model and its loss, and put back all that it changes."""
    with chance_kept(), state_kept(model), torch.enable_grad():
        outputs = model(inputs)
        if loss is not None:
            loss(outputs)


@contextmanager
def _noting(called: set[tuple[str, Any]]) -> Iterator[None]:
    """Note all functions that are called: a module's name, and its code or what it calls of C."""

    def note(frame: FrameType, event: str, what: Any) -> None:
        if event == "call":
            called.add((str(frame.f_globals.get("__name__")), frame.f_code))
        elif event == "c_call":
            called.add((str(frame.f_globals.get("__name__")), what.__qualname__))

    before, is_collecting = sys.getprofile(), gc.isenabled()
    gc.disable()  # what it calls is nobody's
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(before)
        if is_collecting:
            gc.enable()


def _words(what: Any) -> str:
    """Return a name, or what code does but for code within it, which is noted when called."""
    if not isinstance(what, CodeType):
        return str(what)
    plain = [each for each in what.co_consts if not isinstance(each, CodeType | frozenset)]
    return f"{what.co_qualname} {what.co_code.hex()} {what.co_names} {plain}"
