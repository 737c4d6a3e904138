"""Hash what a model computes, so that a finished run is looked up for the same model alone."""

from __future__ import annotations

import hashlib
import uuid
from collections import deque
from collections.abc import Iterable
from types import CodeType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from dpexp.imported import is_own
from dpexp.models.naming_code import constants
from dpexp.models.pieces import Opaque, State, is_of_the_user, pieces
from dpexp.warned import warn_caller

LONGEST = 200
"""Characters of a place in a message, its last ones."""

BY_REPR = (torch.dtype, torch.device, torch.Size, np.dtype)
"""The same of libraries, whose values cannot change, and which copies may share or not."""

EXACT = (bool, float, complex, str, type(None), type(...), type(NotImplemented))
"""Types whose values are told apart by what they look like in Python."""


def code_digest(model: nn.Module) -> str:
    """Return a hash of what a model's modules are: their classes' code, and all that they hold.

    Whatever is reached counts: attributes, hooks, tensors outside of the state, and of the user's
    own code bytecode, defaults, closures, base classes, decorators and whatever it names, in other
    modules of theirs too. Code of torch, numpy and Python is named; of other libraries, bytecode
    counts without what it names. Values in the model's state are left out, and so is
    which mode modules are in. One object held twice is another model than two equal ones. The order
    of a dictionary counts, that of a set and of attributes does not. Not seen is what code finds by
    a name made as it runs. Another version of Python may give another hash.

    Where something cannot be compared, such as an open file, the hash is one that no other call
    gives, with a warning that names it.

    Returns:
        SHA-256 in 64 hexadecimal digits.
    """
    digest, unknown = _digested(model)
    if unknown:
        warn_caller(
            f"{unknown[0]} cannot be compared with another time's: this run will not be looked"
            " up or gone on with. Keep it out of what the model's code uses."
        )
        digest = hashlib.sha256(f"{digest} {uuid.uuid4()}".encode()).hexdigest()
    return digest


def code_of(model: nn.Module) -> str | None:
    """Return what `code_digest` does; None where something cannot be compared."""
    digest, unknown = _digested(model)
    return None if unknown else digest


def _digested(model: nn.Module) -> tuple[str, list[str]]:
    """Return a hash, and where something is that cannot be hashed."""
    walk = _Walk(State(model))
    return walk.digest("model", model), walk.unknown


class _Walk:
    """Numbers objects in the order in which they are reached, and hashes each one's pieces.

    What cannot change (tuples, code) counts by what it is; everything else by its number.

    Attributes:
        unknown: where and what cannot be hashed.
    """

    def __init__(self, state: State, is_shallow: bool = False) -> None:
        """Begin.

        Args:
            state: of the model.
            is_shallow: whether the objects in sets are left out.
        """
        self.unknown: list[str] = []
        self._state, self._is_shallow = state, is_shallow
        self._hash, self._count = hashlib.sha256(), 0
        self._words: dict[int, tuple[Any, bytes]] = {}
        """By id, which is not used anew while the object is held here."""
        self._waiting: deque[tuple[str, Any, bool]] = deque()
        self._sets: deque[tuple[str, Iterable[Any]]] = deque()
        self._modules: dict[int, tuple[ModuleType, set[str]]] = {}
        self._names: set[str] = set()

    def digest(self, where: str, root: Any) -> str:
        """Return the hash of an object and all that is reached from it."""
        self._hash.update(self._word(where, root, False))
        while self._waiting or self._open_module() or self._open_set():
            if self._waiting:
                self._open(*self._waiting.popleft())
        return self._hash.hexdigest()

    def _open(self, where: str, value: Any, is_library: bool) -> None:
        """Hash an object's pieces."""
        found = pieces(value, self._state)
        if isinstance(found, Opaque):
            self._say("opaque", type(value).__qualname__.encode())
            if not is_library and not found.is_harmless:
                self.unknown.append(f"{where} ({type(value).__qualname__})")
            return
        is_library = not is_of_the_user(value) and (is_library or found.is_library)
        self._say(found.kind, b"")
        self._names |= found.names
        for label, piece in found.of:
            self._say(label, self._word(f"{where}.{label}"[-LONGEST:], piece, is_library))
        if found.members is not None:
            if not self._is_shallow:
                self._sets.append((where, found.members))
        if isinstance(value, ModuleType) and is_own(value.__name__):
            self._modules[id(value)] = value, set()
            self._names.add("__getattr__")  # answers for names that the module lacks

    def _open_module(self) -> bool:
        """Hash one more of what code names in the user's modules; return whether there was any.

        A module that is held may be used under any name that occurs, wherever that is.
        """
        for module, done in self._modules.values():
            for name in sorted((self._names & vars(module).keys()) - done):
                done.add(name)
                where = f"{module.__name__}.{name}"
                self._say(where, self._word(where, vars(module)[name], False))
                return True
        return False

    def _open_set(self) -> bool:
        """Hash a set, once nothing else is left; return whether there was one.

        What was not reached by another way is ordered by what it is by itself.
        """
        if not self._sets:
            return False
        where, members = self._sets.popleft()
        alone = [(self._alone(where, each), index, each) for index, each in enumerate(members)]
        for _, _, each in sorted(alone, key=lambda one: one[:2]):
            self._say("member", self._word(where, each, False))
        return True

    def _alone(self, where: str, value: Any) -> str:
        known = self._words.get(id(value))
        if known is not None:
            return known[1].hex()
        return "later" + _Walk(self._state, is_shallow=True).digest(where, value)

    def _word(self, where: str, value: Any, is_library: bool) -> bytes:
        """Return what stands for a value: what it is, or its number."""
        stack = [(value, _fixed(value))]  # parts are kept here: code makes them anew when asked
        while stack:
            top, parts = stack[-1]
            if self._is_new(top):
                if parts is None:
                    self._words[id(top)] = top, b"#%d" % self._count
                    self._count += 1
                    self._waiting.append((where, top, is_library))
                elif later := [each for each in parts if self._is_new(each)]:
                    stack += [(each, _fixed(each)) for each in later]
                    continue
                else:
                    whole = hashlib.sha256(type(top).__name__.encode())
                    for each in _sorted_if_set(top, [self._known(each) for each in parts]):
                        whole.update(b"%d:" % len(each) + each)
                    self._words[id(top)] = top, whole.digest()
            stack.pop()
        return self._known(value)

    def _is_new(self, value: Any) -> bool:
        return _exact(value) is None and id(value) not in self._words

    def _known(self, value: Any) -> bytes:
        exact = _exact(value)
        return self._words[id(value)][1] if exact is None else exact

    def _say(self, label: str, word: bytes) -> None:
        for each in (label.encode(errors="surrogatepass"), word):
            self._hash.update(b"%d:" % len(each) + each)


def _exact(value: Any) -> bytes | None:
    """Return what a plain value looks like; None for any other."""
    kind = type(value)
    if kind is int:
        return b"int " + hex(value).encode()
    if kind is bytes:
        return b"bytes " + hashlib.sha256(value).digest()
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        return f"{value.dtype!r} ".encode() + hashlib.sha256(value.tobytes()).digest()
    if isinstance(value, BY_REPR):
        return f"{kind.__name__} {value!r}".encode()
    return f"{kind.__name__} {ascii(value)}".encode() if kind in EXACT else None


def _fixed(value: Any) -> list[Any] | None:
    """Return the parts of a value that cannot change, and so counts by them; None for others."""
    kind = type(value)
    if kind is tuple or (kind is frozenset and _is_plain(value)):
        return [*value]
    if kind is MethodType:
        return [value.__func__, value.__self__]
    return constants(value) if isinstance(value, CodeType) else None


def _is_plain(value: Any) -> bool:
    if type(value) in (tuple, frozenset):
        return all(map(_is_plain, value))
    return _exact(value) is not None


def _sorted_if_set(value: Any, words: list[bytes]) -> list[bytes]:
    return sorted(words) if isinstance(value, frozenset) else words
