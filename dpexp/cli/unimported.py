"""Why what a `_target_` names could not be imported or called, and what to do about it."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from typing import Any

from dpexp.cli.errors import nearest


def named_reason(error: BaseException) -> str:
    """Return the kind of an error, and what it says in one line."""
    name, said = type(error).__name__, reason(error)
    return name if said == name else f"{name}: {said}"


def reason(error: BaseException) -> str:
    """Return what an error says in one line; its kind where it says nothing."""
    from dpexp.types import one_line

    return one_line(error) or type(error).__name__


def remedy(place: str, target: str, error: BaseException) -> str:
    """Return the sentences that say what to change.

    Args:
        place: of the node that the `_target_` is in.
        target: as typed.
        error: what the import ended with.
    """
    module, _, name = target.rpartition(".")
    set_it = f"Set {place}._target_."
    if not module:
        return set_it
    if "/" in target or "\\" in target:
        return f"Write module.Name, and put the folder of the module on PYTHONPATH. {set_it}"
    if isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]:
        return f"{set_it[:-1]}, or put the folder that holds {error.name} on PYTHONPATH."
    if isinstance(error, AttributeError) and (there := sys.modules.get(module)) is not None:
        return f"{set_it}{nearest(name, [each for each in vars(there) if each[:1] != '_'])}"
    if where := _where(error, module):
        return f"Mend {where}."
    return set_it


def _where(error: BaseException, module: str) -> str:
    """Return the file and line at which a module of the user's failed as it was imported, or ""."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    # The deepest file below which nothing but the import of another, or a library, fails.
    parts = module.split(".")
    paths = ["/".join(parts[: place + 1]) for place in range(len(parts))]
    ends = tuple(f"/{path}{end}" for path in paths for end in (".py", "/__init__.py"))
    libraries = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
    lines = [
        frame for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.replace("\\", "/").endswith(ends)
        and not frame.filename.startswith(libraries)
    ]  # fmt: skip
    return f"{lines[-1].filename}, line {lines[-1].lineno}" if lines else ""


def of_a_model(place: str, target: str, found: Any) -> str:
    """Return what is wrong with a model that is named where its class is to be, or ""."""
    if place == "model" and hasattr(found, "named_parameters") and not isinstance(found, type):
        kind = type(found).__name__
        return (
            f"Expected a _target_ that builds the model; got {target}, a {kind} that is built. "
            f"Name its class, or a function that returns it. Set {place}._target_."
        )
    return ""
