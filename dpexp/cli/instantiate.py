"""What a config's `_target_`s name: found, called with their settings, and held to their kind.

Whatever is wrong with one is a mistake in what was asked, told in one line; but an error that is no
refusal of settings, in what dpexp itself brings, is ours, and keeps its trace.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import hydra
from hydra.errors import InstantiationException

from dpexp.cli.errors import nearest
from dpexp.cli.prefixes import to_take_out
from dpexp.cli.signatures import require_signatures
from dpexp.cli.unimported import named_reason, of_a_model, reason, remedy

WITHOUT = re.compile(r"__init__\(\) missing \d+ required [a-z-]+ arguments?: (.+)$")
"""What Python says of a call that lacks what it needs."""


ACCEPTED: Mapping[Any, tuple[type, ...]] = {
    bool: (bool,),
    int: (int,),
    float: (int, float),
    str: (str,),
    NoneType: (NoneType,),
}
"""What stands for a kind of plain values in a config; `true` is no number."""


class Kind(NamedTuple):
    """What a group's `_target_` must give.

    Attributes:
        words: for the user.
        has: attributes without which it is something else.
    """

    words: str
    has: tuple[str, ...]


ATTACK = Kind("an attack (dpexp.training.parts.Attack)", ("stage", "report", "deviation"))
STEPS = (
    "trainable",
    "start",
    "prepare",
    "per_example_grads",
    "release_shapes",
    "compress",
    "releases",
    "reconstruct",
)
DATA = ("train", "test", "public", "input_shape", "num_classes", "fingerprint", "loss", "metric")
TASK = Kind("a task (dpexp.data.Task)", DATA)
KINDS = {
    "task": TASK,
    "public": TASK,
    "features": TASK,
    "holdout": TASK,
    "model": Kind("a torch.nn.Module", ("forward", "named_parameters", "named_modules")),
    "method": Kind("a method (dpexp.types.Method)", ("public_size", *STEPS)),
    "method of a loop": Kind("a method that says what it needs", ("public_size",)),
    "optimizer": Kind("a torch.optim.Optimizer", ("param_groups", "step", "state_dict")),
    "schedule": Kind("a schedule (dpexp.training.schedules)", ("__call__",)),
    "attack": ATTACK,
    "audit": ATTACK,
    "averaging": Kind("an averaging of weights (dpexp.training.averaging)", ("keeps",)),
    "denoise": Kind("a method around a method (dpexp.methods.wrapped)", ("public_size", *STEPS)),
    "clipping": Kind("a clipping rule (dpexp.privacy.clipping)", ("group", "weights")),
    "correlation": Kind("a correlation of noise (dpexp.privacy.correlation)", ("bands",)),
    "augmentation": Kind(
        "an augmentation (dpexp.data.augmentation)", ("draws", "views", "multiplicity")
    ),
    "analysis": Kind(
        "an analysis (dpexp.training.observation.Analysis)", ("observe", "public_size")
    ),
}


def make(
    place: str,
    node: Any,
    without: Sequence[str] = (),
    *,
    kind: str = "",
    given: Sequence[Any] = (),
    **more: Any,
) -> Any:
    """Call what a node of the config names, with its settings.

    Args:
        place: of the node, e.g. "analysis.cost".
        node: settings, with a `_target_`.
        without: settings that are not for it.
        kind: one of `KINDS`; "": the group's, or none where it gives nothing.
        given: what it takes before its settings.
        more: further settings.

    Raises:
        ConfigError: for what cannot be found or called, refuses its settings, fails, or gives
            something of another kind.
    """
    from dpexp.types import ConfigError

    if not isinstance(node, dict) or "_target_" not in node:
        raise ConfigError(f"Expected {place} to have a _target_; got {node}. Set {place}._target_.")
    arguments = {key: value for key, value in node.items() if key not in without}
    target = find_all(place, arguments)
    given_by_name = [*inspect.signature(target).parameters][: len(given)] if given else []
    check_known(place, target, arguments, [*without, *more, *given_by_name])
    _check_kinds(place, target, arguments)
    with _in_one_line(place, str(node["_target_"])):
        plain = {} if node.get("_partial_") else _plain(arguments)
        rest = {key: value for key, value in arguments.items() if key not in plain}
        if given or plain:
            called = hydra.utils.instantiate({**rest, "_partial_": True})
            made = called(*given, **copy.deepcopy(plain) | more)
        else:
            made = hydra.utils.instantiate(rest, **more)
    kind = kind or place.partition(".")[0]
    wanted = KINDS.get(kind)
    if wanted and not all(hasattr(made, name) for name in wanted.has):
        raise ConfigError(
            f"Expected {place}._target_ to give {wanted.words}; {node['_target_']} gives one of "
            f"type {type(made).__name__}. Set {place}._target_."
        )
    require_signatures(kind, made)
    return made


def _plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in which Hydra has nothing to call; it takes milliseconds for each."""

    def is_plain(value: Any) -> bool:
        if isinstance(value, Mapping):
            return "_target_" not in value and all(map(is_plain, value.values()))
        return all(map(is_plain, value)) if isinstance(value, list | tuple) else True

    words = {key: value for key, value in arguments.items() if not key.startswith("_")}
    return {key: value for key, value in words.items() if is_plain(value)}


def find(place: str, target: Any) -> Callable[..., Any]:
    """Return what a `_target_` names.

    Args:
        place: of the node that it is in.
        target: a dotted name.

    Raises:
        ConfigError: if it cannot be imported or called, or Hydra refuses to call it for a config.
    """
    from dpexp.types import ConfigError

    module, _, name = str(target).rpartition(".")
    try:  # Hydra's own way prints before it raises
        found = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # a module of the user's may fail in any way
        known = isinstance(error, ImportError | AttributeError | ValueError | TypeError)
        if _is_ours(target) and not known:
            raise
        why = reason(error) if known else named_reason(error)
        if not module:
            why = "it names no module. Write module.Name"
        raise ConfigError(
            f"Expected a _target_ that can be imported; got {target} ({why}). "
            f"{remedy(place, str(target), error)}"
        ) from error
    if not callable(found):
        raise ConfigError(
            f"Expected a _target_ that can be called; got {target}. Set {place}._target_."
        )
    if wrong := of_a_model(place, str(target), found):
        raise ConfigError(wrong)
    with _in_one_line(place, str(target)):  # asked for now, while none of its settings matter yet
        hydra.utils.instantiate({"_target_": str(target), "_partial_": True})
    return found


def find_all(place: str, node: Mapping[str, Any]) -> Callable[..., Any]:
    """Return what a node's `_target_` names, once all that stand within its settings are found.

    Raises:
        ConfigError: as `find` does, of any of them.
    """
    found = {where: find(where, target) for where, target in _named(place, node)}
    return found[place]


def admit(target: str) -> None:
    """Import the module of a method that the user names, and no record, to know what it states.

    What cannot be imported states nothing: verification takes it on trust.
    """
    with suppress(Exception, SystemExit):  # a module of the user's may fail in any way
        if not _is_ours(target):  # which verification imports by itself
            importlib.import_module(target.rpartition(".")[0])


def parameters(place: str, node: Mapping[str, Any]) -> Mapping[str, inspect.Parameter]:
    """Name what a node's `_target_` takes.

    Raises:
        ConfigError: if that cannot be told.
    """
    from dpexp.types import ConfigError

    found = find_all(place, node)
    try:
        return inspect.signature(found).parameters
    except ValueError as error:
        raise ConfigError(
            f"Expected a _target_ that says what it takes; got {node['_target_']} "
            f"({reason(error)}). Set {place}._target_."
        ) from error


def loop_of(config: Mapping[str, Any]) -> Any:
    """Import the module whose `train` does the work; a method names its own.

    Raises:
        ConfigError: if it cannot be imported, or has no `train`.
    """
    from dpexp.types import ConfigError

    name = config.get("loop", "dpexp.training.train")
    why = ""
    try:
        loop = importlib.import_module(str(name))
        if hasattr(loop, "train"):
            return loop
    except (Exception, SystemExit) as error:
        if _is_ours(name) and not isinstance(error, ImportError):
            raise
        why = f" ({named_reason(error)})"
    raise ConfigError(f"Expected loop to be a module with train; got loop={name}{why}.")


def said(node: Any) -> Any:
    """Leave out what is null: it stands for what was chosen of itself takes."""
    return {k: v for k, v in node.items() if v is not None} if isinstance(node, dict) else node


def _named(place: str, node: Any) -> Iterator[tuple[str, Any]]:
    """Yield every `_target_` within a node, its own included, with its place."""
    children = node.items() if isinstance(node, Mapping) else enumerate(node)
    for key, value in children:
        if key == "_target_":
            yield place, value
        elif isinstance(value, Mapping | list):
            yield from _named(f"{place}.{key}", value)


@contextmanager
def _in_one_line(place: str, target: str) -> Iterator[None]:
    """Tell of what Hydra refuses to call, and of what the call fails with."""
    from dpexp.types import ConfigError

    try:
        yield
    except (Exception, SystemExit) as error:
        cause: BaseException = error
        while isinstance(cause, InstantiationException) and cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, InstantiationException):
            why = reason(cause).partition(". ")[0].rstrip(".")
            raise ConfigError(
                f"Expected {place} to name what a config may have called; Hydra refuses it "
                f"({why}). Set what is below {place}."
            ) from error
        raise _told(place, target, cause) from cause.__cause__


def _told(place: str, target: str, error: BaseException) -> BaseException:
    """Return what a call's error is to be told as: itself where it is told already, or ours."""
    from dpexp.distributed.memory import ran_out
    from dpexp.models.adapting import nearest_argument
    from dpexp.records import RecordError
    from dpexp.types import ConfigError

    if isinstance(error, ConfigError | RecordError) or ran_out(error):
        return error
    hint = nearest_argument(error)
    # What a constructor refuses came from the config: a learning rate below zero, a word for a
    # number.
    if isinstance(error, TypeError) and (missing := WITHOUT.search(str(error))):
        return ConfigError(
            f"Expected a value of {missing.group(1)}, which {target} needs; null is none. Set it."
        )
    if isinstance(error, TypeError | ValueError):
        return ConfigError(
            f"Expected what is below {place} as {target} takes it; it refuses its settings: "
            f"{reason(error).rstrip('.')}.{hint} Set what is below {place}."
        )
    if _is_ours(target):
        return error
    *_, last = traceback.extract_tb(error.__traceback__)
    where = f"{Path(last.filename).name}, line {last.lineno}"
    return ConfigError(
        f"{target} fails when it is called with its settings ({named_reason(error)}; {where})."
    )


def _is_ours(target: Any) -> bool:
    return str(target).startswith("dpexp.")


def check_known(
    place: str, target: Any, settings: Mapping[str, Any], others: Sequence[str] = ()
) -> None:
    """Refuse a setting that a target does not take, with the nearest that it does.

    Args:
        place: of the settings.
        target: what is called with them.
        settings: by name.
        others: what it takes that is no setting there.

    Raises:
        ConfigError: naming the setting.
    """
    from dpexp.types import ConfigError

    try:
        takes = inspect.signature(target).parameters
    except ValueError:  # what is written in C may not say
        return
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in takes.values()):
        return
    valid = [name for name in takes if name not in others]
    for key in map(str, settings):
        if not key.startswith("_") and key not in takes:
            what = f"takes {', '.join(valid)}" if valid else "takes no settings"
            raise ConfigError(
                f"Unknown key {place}.{key}: {getattr(target, '__name__', target)} {what}."
                f"{nearest(key, [*valid, *others]) or to_take_out(f'{place}.{key}')}"
            )


def _check_kinds(place: str, target: Any, arguments: Mapping[str, Any]) -> None:
    """Refuse values that are not what a target and those within its settings say they take."""
    from dpexp.types import ConfigError

    hints: dict[str, Any] = {}
    with suppress(Exception):  # names that a user's module imports for a type checker alone
        hints = get_type_hints(vars(target)["__init__"] if isinstance(target, type) else target)
    for name, value in arguments.items():
        kind = hints.get(name)
        if isinstance(value, Mapping) and "_target_" in value:
            within = f"{place}.{name}"
            _check_kinds(within, find(within, value["_target_"]), value)
        if (part := _part_of_lists(kind)) and not _may_be_listed(value, kind):
            raise ConfigError(
                f"Expected {name} of {target.__name__} to be a list of {part.__name__}; got "
                f"{name}={value}. Set {place}.{name}, with brackets."
            )
        known = _plain_kinds(kind)
        if known and not any(type(value) in ACCEPTED[each] for each in known):
            words = " or ".join("null" if each is NoneType else each.__name__ for each in known)
            raise ConfigError(
                f"Expected {name} of {target.__name__} to be {words}; got {name}={value}. "
                f"Set {place}.{name}."
            )


def _plain_kinds(kind: Any) -> list[type]:
    """Return which plain values a setting takes by its annotation; none where it may take others.

    A tensor is none that a config can hold.
    """
    kinds = get_args(kind) if isinstance(kind, UnionType) or get_origin(kind) is Union else (kind,)
    plain = [each for each in kinds if getattr(each, "__module__", "") != "torch"]
    return plain if all(each in ACCEPTED for each in plain) else []


def _part_of_lists(kind: Any) -> type | None:
    """Return of what a setting is a list by its annotation; None where it may be no list."""
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    lists = [each for each in kinds if get_origin(each) is Sequence]
    if not lists or str in kinds:
        return None
    part = get_args(lists[0])[0]
    return part if isinstance(part, type) else None


def _may_be_listed(value: Any, kind: Any) -> bool:
    """Return whether a value is a list, or null where that is taken; words and keys are none."""
    if value is None:
        return NoneType in get_args(kind)
    return isinstance(value, Iterable) and not isinstance(value, str | Mapping)
