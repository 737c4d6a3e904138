"""What a function's bytecode is, and what it names: globals, parts of modules, imports."""

from __future__ import annotations

import dis
import importlib.util
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
LOOKED_UP = ("LOAD_GLOBAL", "LOAD_NAME")
BY_WORD = {"globals", "eval", "exec", "vars", "locals"}
"""Functions that find a global by a word."""


class Named(NamedTuple):
    """What a code names.

    Attributes:
        chains: globals, each with the attributes that are taken from it at once.
        words: attributes of anything, and words that may become such.
        imports: dotted names that are imported as it runs, each with its level and what is taken
            from it.
    """

    chains: frozenset[tuple[str, ...]]
    words: frozenset[str]
    imports: frozenset[tuple[str, int, tuple[str, ...]]]


def constants(code: CodeType) -> list[Any]:
    """Return what a code does: neither its file's name nor its lines, nor names of its own."""
    return [
        code.co_code,
        code.co_exceptiontable,
        code.co_flags,
        code.co_name,
        (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount),
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        code.co_consts,
    ]


@lru_cache(maxsize=4096)
def named(code: CodeType) -> Named:
    """Return what a code names, and functions within it."""
    chains, words, imports = set[tuple[str, ...]](), set[str](), set[tuple[Any, ...]]()
    for each in _within(code):
        steps = [step for step in dis.get_instructions(each) if step.opname != "EXTENDED_ARG"]
        for index, step in enumerate(steps):
            if step.opname in LOOKED_UP:
                chain = [str(step.argval)]
                for after in steps[index + 1 :]:
                    if after.opname not in ATTRIBUTES:
                        break
                    chain.append(str(after.argval))
                chains.add(tuple(chain))
            elif step.opname == "IMPORT_NAME":
                level, taken = (before.argval for before in steps[index - 2 : index])
                imports.add((str(step.argval), level, tuple(taken or ())))
            if step.opname in (*ATTRIBUTES, "IMPORT_FROM"):
                words.add(str(step.argval))
        words |= {word for word in _words(each.co_consts) if word.isidentifier()}
    if BY_WORD & {chain[0] for chain in chains}:
        chains |= {(word,) for word in words}
    return Named(frozenset(chains), frozenset(words), frozenset(imports))


def resolved(
    chain: tuple[str, ...], scope: Mapping[str, Any]
) -> tuple[str, str | None, Any] | None:
    """Return what a chain of names leads to, as far as it goes through modules; None: nowhere.

    Returns:
        The names gone through, the module that holds the last one (None: the scope) and its value.
    """
    if chain[0] not in scope:
        return None
    value, length, holder = scope[chain[0]], 1, None
    for name in chain[1:]:
        if not isinstance(value, ModuleType) or name not in vars(value):
            break
        value, length, holder = vars(value)[name], length + 1, value.__name__
    return ".".join(chain[:length]), holder, value


def imported(function: FunctionType) -> Iterator[list[str]]:
    """Yield the dotted names, as parts, of what a function imports as it runs."""
    package = function.__globals__.get("__package__") or ""
    for name, level, taken in named(function.__code__).imports:
        try:
            base = importlib.util.resolve_name("." * level + name, package) if level else name
        except ImportError:
            continue
        for each in taken or ("",):
            yield [*base.split("."), *([each] if each else [])]


def _within(code: CodeType) -> Iterator[CodeType]:
    waiting = [code]
    while waiting:
        yield (each := waiting.pop())
        waiting += [constant for constant in each.co_consts if isinstance(constant, CodeType)]


def _words(values: tuple[Any, ...] | frozenset[Any]) -> Iterator[str]:
    """Yield the words among constants, also within tuples."""
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, tuple | frozenset):
            yield from _words(value)
