"""Report user errors on one line, exit code 2."""

from __future__ import annotations

import argparse
import errno
import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationKeyError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)

from dpexp.cli import folders, own_data
from dpexp.cli.command_line import SINGLE, in_one_piece, require_once
from dpexp.cli.groups import CONF, options_of, settings_of
from dpexp.cli.prefixes import of_prefix, taken_out, to_add
from dpexp.cli.quoting import readable
from dpexp.cli.signals import restore_signals
from dpexp.cli.streams import safe_output

INTERRUPTED = 128 + signal.SIGINT
SWEEP = {"-m", "--multirun"}
HELP, GROUPS = CONF / "hydra/help/dpexp.yaml", re.compile(r"\$\{options:(\w+)\}")
NAMELESS = "Config group override must be"
"""Start of Hydra's message for a group option that is not a name; it has no error type for that."""

EXTRAS = {
    "joblib": "joblib",
    "submitit_slurm": "slurm",
    "submitit_local": "slurm",
    "ray": "ray",
    "optuna": "optuna",
}
"""Launcher or sweeper -> the extra of this package that installs its plugin."""


class JobFailed(Exception):
    """A job of a sweep failed, and its process has already printed the error.

    Its arguments: the line printed, the process id, and the exit code.
    """


NONE = ("none", "flat")
"""Options that are as no choice at all, without settings."""

TYPED = {"correlation=banded": "noise=correlated"}
"""What a person types for a choice."""

OF_MODELS = {"repo": ("hf",), "name": ("timm", "torchvision"), "target": ("python",)}
"""Words that name a library's model or one's own, and the choices of `model` that take them."""


def job_failed(words: str, line: str | None) -> JobFailed:
    """Print the error of a sweep's job as soon as it fails; return the exception to raise.

    Args:
        words: the job's overrides.
        line: from `mistake`; None for an error of dpexp's own, whose traceback is printed.
    """
    if line is None:
        traceback.print_exc()
        line = str(sys.exception())
        code = 1
    else:
        code = 2
    line = f"{words}: {line}"
    fail(line)
    return JobFailed(line, os.getpid(), code)


MERGING = "Error merging override "
"""What Hydra says of a list in the place of keys or of keys in that of a list, and of no place."""

NO_PLACE = (
    "Expected a place that the list has, a number from 0; got {}. Set the whole list, {}=[...]."
)


def explain(error: Exception) -> str:
    """Return one line for a composition error, with the nearest valid name."""
    from dpexp.types import one_line

    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.partition("/")
        if group == "hydra" and "/" in name:
            folder, _, name = name.partition("/")
            group = f"hydra/{folder}"
        theirs = [option for option in error.options or () if not option.startswith("auto")]
        options = sorted({*options_of(group), *theirs})
        if group.startswith("hydra/") and name in EXTRAS:
            kind, extra = group.removeprefix("hydra/"), EXTRAS[name]
            return f"The {kind} {name} is not installed. It needs: pip install -e '.[{extra}]'."
        if not group or not options:
            return one_line(error)
        near = nearest(name, options)
        if "." in name and "_target_" in settings_of(group, options[0]):  # another class
            near = f" For a class set {group}._target_={name}."
        return f"Expected {group} to be one of {', '.join(options)}; got {group}={name}.{near}"
    if (text := one_line(error)).startswith(MERGING):
        place, _, value = text.removeprefix(MERGING).lstrip("+~").partition("=")
        if not str(error.__cause__).startswith("Cannot merge"):
            return NO_PLACE.format(place.rpartition(".")[2], place.rpartition(".")[0])
        return (
            f"Expected {place} to stay what it is, a list in brackets or keys in braces; got "
            f"{value}. Set {place}."
        )
    cause = error.__cause__ or error
    if isinstance(cause, MissingMandatoryValue) and cause.full_key:
        return f"Expected a value for {cause.full_key}; it has none. Set {cause.full_key}."
    if isinstance(cause, InterpolationKeyError) and cause.full_key:
        reason = str(cause).partition("\n")[0]
        group = cause.full_key.partition(".")[0]
        parts = [part for part in ("task", "model", "method") if part != group]
        # A tokenizer given to a set of texts does not make it fit a task of images.
        own = f", or set {cause.full_key}" if group == "method" else ""
        return taken_out(reason, str(cause.full_key)) or (
            f"Expected a run that {group} fits: {cause.full_key} takes its value from another "
            f"setting, which this run lacks ({reason}). Choose another "
            f"{', '.join([group, *parts[:-1]])} or {parts[-1]}{own}."
        )
    if isinstance(cause, ConfigKeyError | ConfigAttributeError) and cause.parent_node is not None:
        place = str(cause.full_key)
        if place in own_data.WORDS:
            return own_data.misplaced(place, cause.parent_node.get("task", {}).get("name"))
        if place in OF_MODELS:
            return _of_models(place, cause.parent_node.get("model"))
        if place in ("method", "task"):
            return (
                f"No {place} is chosen, so its keys are not known. Set {place} to one of "
                f"{', '.join(options_of(place))}; in a sweep over {place} write "
                f"++{place}.KEY=VALUE."
            )
        if "." not in place and (options := options_of(place)):
            asked = re.search(rf"'{place}\.(\w+)", str(error))
            having = [each for each in options if asked and asked[1] in settings_of(place, each)]
            words = (f"{place}={option}" for option in having or options if option not in NONE)
            choices = " or ".join(TYPED.get(word, word) for word in words)
            return f"No {place} is chosen, so it has no settings. Add {choices}."
        return unknown_key(place, cause.parent_node)
    line = str(error).partition("\n")[0]
    if said := of_prefix(line):
        return said
    if line.startswith("Config group override must be"):
        return unnamed(sys.argv[1:]) or line
    if line.startswith("Could not override"):
        place = line.split("'")[1]
        if options := options_of(place):
            return f"No run has a {place} of its own. Add +{place}=, one of {', '.join(options)}."
    if line.startswith("Ambiguous value"):
        if (place := line.split("'")[1].partition("=")[0].lstrip("+")) in SINGLE:
            return f"{line}. For a sweep add -m; a run has one {place}."
        return f"{line}. For a sweep add -m; for a list write KEY=[VALUE,VALUE]."
    if line.startswith("Error resolving interpolation"):
        return (
            "Expected method, task, model and profile to be chosen: other settings depend on them. "
            "Leave out ~method, ~task, ~model and ~profile."
        )
    if isinstance(error, OverrideParseException):
        key, equals, _ = error.override.partition("=")
        if equals:
            return (
                f"Error parsing override '{error.override}': {key} is no key. Expected KEY=VALUE."
            )
        return f"Error parsing override '{error.override}'. Expected KEY=VALUE."
    return line


def _of_models(word: str, node: Any) -> str:
    """Return the error for a word that names a library's model or one's own, beside another."""
    said: Any = OmegaConf.to_container(node) if isinstance(node, DictConfig) else {}
    model = str(said.get("name", "")).partition(":")[0]  # python, of python:${target}
    got = f"model={model}" if model else "no model"
    own = next((each for each, models in OF_MODELS.items() if model in models), "")
    other = f", which takes {own}=" if own else ""
    doors = " or ".join(f"model={each}" for each in OF_MODELS[word])
    return f"Expected {doors} beside {word}=; got {got}{other}. Set model."


own_words: list[str] = []
"""Words of the program that is running, which are no settings of a run."""


def unknown_key(place: str, node: Mapping[Any, Any]) -> str:
    """Return the error for an unknown key, with valid keys and deeper ones of the same name."""
    tree: Any = OmegaConf.to_container(node) if isinstance(node, DictConfig) else node
    valid = [str(key) for key in tree if key != "hydra"]
    if "." not in place:  # groups without a choice are not in the config, but are valid
        valid = [*own_words, *valid]
        valid += [group for group in GROUPS.findall(HELP.read_text()) if group not in valid]
    leaf = place.rpartition(".")[2]
    deeper = [f"{k}.{leaf}" for k, v in tree.items() if isinstance(v, dict) and leaf in v]
    near = f" Did you mean {' or '.join(deeper)}?" if deeper else nearest(leaf, valid)
    if not near and isinstance(tree.get("args"), dict):
        near = f" An argument of what it builds is {place.rpartition('.')[0]}.args.{leaf}."
    elif not near:
        near = to_add(place, tree.get("_target_"))
    return f"Unknown key {place}; valid here: {', '.join(valid)}.{near}"


def nearest(name: str, options: Sequence[str]) -> str:
    """Return a sentence that suggests the option closest to a name, ignoring case, or ""."""
    known = {option.casefold(): option for option in options}
    near = get_close_matches(name.casefold(), known, 1, 0.5)
    return f" Did you mean {known[near[0]]}?" if near else ""


def unnamed(words: Sequence[str]) -> str:
    """Return the error for the first group not set to an option's name (e.g. null), or ""."""
    # Scripts also pass their own words, which Hydra's parser may reject.
    for word in words:
        key, equals, _ = word.partition("=")
        options = options_of(key.lstrip("+"))
        if not equals or not options:
            continue
        (override,) = OverridesParser.create().parse_overrides([word])
        value: Any = override.value()
        values = [] if override.is_sweep_override() else [value]
        if override.is_choice_sweep():
            values = value.list
        if not all(isinstance(value, str | QuotedString) for value in values):
            group = override.key_or_group
            choice = "" if group in ("method", "task") else ", or leave it out for its default"
            without = next((each for each in NONE if each in options), "")
            if override.is_sweep_override() and choice:
                choice = ", or several"
            if without:
                choice += f"; {group}={without} is a run without"
            return (
                f"Expected {group} to be one of {', '.join(options)}; got {word}. Name one{choice}."
            )
    return ""


REPORTED = {
    "dpexp.types": "ConfigError",
    "dpexp.records": "RecordError",
    "dpexp.privacy.certificate": "PrivacyError",
    "dpexp.distributed.pool": "Died",
    "dpexp.distributed.ranks": "RankLost",
}
"""By module, the errors that are the user's, or that say what they have to."""

WARNED: set[str] = set()
"""Warnings that this process has said."""


@safe_output()
def guarded(program: Any) -> None:
    """Run a program; report a user error on one line and exit with code 2."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing
    restore_signals()
    argparse.ArgumentParser.error = _unknown_option  # type: ignore[method-assign, assignment]
    warnings.showwarning = show_warning  # type: ignore[assignment]
    try:
        require_once(sys.argv[1:])
        sys.argv[1:] = folders.taken(sys.argv[1:])
        if {"--help", "-h"} & set(sys.argv):
            sys.argv[1:] = for_help(sys.argv[1:])
            _list_no_groups(sys.argv[1:])
        sys.argv[1:] = readable(sys.argv[1:], is_sweep=bool(SWEEP & set(sys.argv)))
        sys.argv[1:] = in_one_piece(sys.argv[1:])
        program()
    except KeyboardInterrupt:
        line = "Interrupted. The same command goes on from the last checkpoint, where there is one."
        sys.exit(fail(line, INTERRUPTED))
    except JobFailed as error:
        line, process, code = error.args
        if process != os.getpid():  # its output is in a launcher's log file
            fail(line)
        sys.exit(code)
    except Exception as error:
        said = mistake(error)
        if said is None:
            raise
        sys.exit(fail(said))


def show_warning(message: Warning | str, *_: Any) -> None:
    """Say a warning in a line, above a progress bar where there is one, and each only once.

    Python says it again wherever filters were changed meanwhile, which libraries do.
    """
    from dpexp.training.progress import say

    line = f"warning: {message}"
    if line not in WARNED:
        WARNED.add(line)
        say(line)


def _unknown_option(_: argparse.ArgumentParser, message: str) -> NoReturn:
    """Report an unknown option on one line; argparse would print all options with it."""
    from dpexp.types import ConfigError

    raise ConfigError(f"{message}. Settings are words such as method=rgp; --help lists options.")


def for_help(words: Sequence[str]) -> list[str]:
    """Return a command line with --help, completed with the choices that Hydra needs.

    Hydra composes the config before it prints help. Overrides go first, because Hydra's parser
    takes only one group of them after an option.
    """
    overrides = [word for word in words if "=" in word and not word.startswith("-")]
    chosen = {word.partition("=")[0] for word in overrides}
    needed = {} if "experiment" in chosen else {"method": "rgp", "task": "cifar10"}
    missing = [f"{key}={option}" for key, option in needed.items() if key not in chosen]
    return [*overrides, *missing, *(word for word in words if word not in overrides)]


def _list_no_groups(words: Sequence[str]) -> None:
    """Keep Hydra from listing all groups for its help, four seconds; our template has its own list.

    Args:
        words: of the command line; where they choose another template it is left alone.
    """
    if not any(word.lstrip("+~").startswith(("hydra/help", "hydra.help")) for word in words):
        from hydra._internal.hydra import Hydra

        Hydra.format_config_groups = lambda *_, **__: ""  # type: ignore[method-assign]


def mistake(error: Exception) -> str | None:
    """Return the line for a user error; None for an error of dpexp's own."""
    if isinstance(error, HydraException | OmegaConfBaseException):
        return explain(error)
    if isinstance(error, AssertionError) and _is_hydras(error):
        # Raised by Hydra where a method's settings (its public data) depend on the task.
        choices = ", ".join(options_of("task"))
        return f"Expected a task: none was chosen. Set task, one of {choices}."
    if isinstance(error, ValueError) and str(error).startswith(NAMELESS):
        return unnamed(sys.argv[1:]) or str(error)
    if str(error).startswith("invalid literal for int()") and _is_of("omegaconf.", error):
        word = str(error).rpartition(": ")[2].strip("'")
        places = (w.partition("=")[0].lstrip("+~") for w in sys.argv[1:])
        lists = [place.removesuffix(f".{word}") for place in places if place.endswith(f".{word}")]
        return NO_PLACE.format(word, lists[0] if lists else "as in task.mean")
    # Raised by Hydra for its own options, or where a group's name is missing.
    if isinstance(error, ValueError | TypeError) and _is_hydras(error):
        from dpexp.types import one_line

        return (isinstance(error, TypeError) and unnamed(sys.argv[1:])) or one_line(error)
    if isinstance(error, RuntimeError) and str(error).startswith("Unknown plugin class"):
        chosen = [w.partition("=")[2] for w in sys.argv if w.startswith("hydra/launcher=")]
        return unstarted(chosen[-1] if chosen else "of Hydra", error)
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:  # any path that was typed
        return f"Expected a path that can be one; got {error.filename} (too long). Shorten it."
    return str(error) if isinstance(error, tuple(_reported())) else None


def _reported() -> Iterator[type[Exception]]:
    """Yield the errors that are told in one line, but for those whose module is not imported.

    Importing it takes seconds, and none of its errors can have been raised.
    """
    for module, name in REPORTED.items():
        if module in sys.modules:
            yield getattr(sys.modules[module], name)


def _is_hydras(error: Exception) -> bool:
    return _is_of("hydra.", error)


def _is_of(package: str, error: Exception) -> bool:
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals["__name__"].startswith(package)


def fail(message: str, code: int = 2) -> int:
    """Print an error on stderr; return its exit code."""
    print(f"error: {message}", file=sys.stderr)
    return code


def unstarted(name: str, error: RuntimeError) -> str:
    """Return the error for a launcher that does not start, with the extra it needs."""
    from dpexp.types import one_line

    line = one_line(error)
    extra = f" It needs: pip install -e '.[{EXTRAS[name]}]'." if name in EXTRAS else ""
    return f"Launcher {name} does not start: {line}.{extra}"
