"""What a person sees who made a mistake on the command line: one line, and exit code 2."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationKeyError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)

from dpexp.cli.groups import CONF, options_of
from dpexp.cli.quoting import readable
from dpexp.cli.signals import restore_signals
from dpexp.cli.streams import patience

INTERRUPTED = 128 + signal.SIGINT
SWEEP = {"-m", "--multirun"}
HELP, GROUPS = CONF / "hydra/help/dpexp.yaml", re.compile(r"\$\{options:(\w+)\}")
NAMELESS = "Config group override must be"
"""How Hydra begins where a group's option is no name; it has no error of its own for that."""

EXTRAS = {"joblib": "joblib", "submitit_slurm": "slurm", "submitit_local": "slurm", "ray": "ray"}
"""Launcher -> the extra of this package that brings its plugin."""


class Told(Exception):
    """A job of a sweep failed, and was told of by the process that did it.

    Its arguments: what was told, in which process, and the exit code.
    """


def told(words: str, line: str | None) -> Told:
    """Tell of a job of a sweep that failed, as it fails.

    Args:
        words: the job's own, of the command line.
        line: of `mistake`; None for an error that is ours, whose trace is printed.
    """
    if line is None:
        traceback.print_exc()
        line = str(sys.exception())
        code = 1
    else:
        code = 2
    line = f"{words}: {line}"
    fail(line)
    return Told(line, os.getpid(), code)


def explain(error: Exception) -> str:
    """Turn a composition error into one line with the nearest valid name."""
    from dpexp.types import one_line

    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.partition("/")
        options = options_of(group)
        if not group or not options:
            return one_line(error)
        return f"Expected {group} to be one of {', '.join(options)}; got {group}={name}." + nearest(
            name, options
        )
    cause = error.__cause__ or error
    if isinstance(cause, MissingMandatoryValue) and cause.full_key:
        return f"Expected a value for {cause.full_key}; it has none. Set {cause.full_key}."
    if isinstance(cause, InterpolationKeyError) and cause.full_key:
        reason = str(cause).partition("\n")[0]
        group = cause.full_key.partition(".")[0]
        return (
            f"Expected a run that {group} goes with: {cause.full_key} takes its value from another "
            f"setting, which this one lacks ({reason}). Choose another {group}, task, model or "
            f"method, or set {cause.full_key}."
        )
    if isinstance(cause, ConfigKeyError | ConfigAttributeError) and cause.parent_node is not None:
        place = str(cause.full_key)
        if place in ("method", "task"):
            return (
                f"No {place} is chosen, so its keys are not known. Set {place} to one of "
                f"{', '.join(options_of(place))}; in a sweep over {place} write "
                f"++{place}.KEY=VALUE."
            )
        if "." not in place and (options := options_of(place)):
            choices = " or ".join(f"{place}={option}" for option in options)
            return f"No {place} is chosen, so it has no settings. Add {choices}."
        return unknown_key(place, cause.parent_node)
    line = str(error).partition("\n")[0]
    if line.startswith("Ambiguous value"):
        return f"{line}. For a sweep add -m; for a list write KEY=[VALUE,VALUE]."
    if line.startswith("Error resolving interpolation"):
        return (
            "Expected method, task, model and profile to be chosen: other settings hang on them. "
            "Leave out ~method, ~task, ~model and ~profile."
        )
    if type(error).__name__ == "OverrideParseException":
        key, equals, _ = error.override.partition("=")
        if equals:
            return (
                f"Error parsing override '{error.override}': {key} is no key. Expected KEY=VALUE."
            )
        return f"Error parsing override '{error.override}'. Expected KEY=VALUE."
    return line


def unknown_key(place: str, node: Mapping[Any, Any]) -> str:
    """Tell of a key that is not there: another beside it, or those of its name further down."""
    tree = OmegaConf.to_container(node) if isinstance(node, DictConfig) else node
    valid = [str(key) for key in tree if key != "hydra"]
    if "." not in place:  # groups of which nothing is chosen are no keys, and can be
        valid += [group for group in GROUPS.findall(HELP.read_text()) if group not in valid]
    leaf = place.rpartition(".")[2]
    deeper = [f"{k}.{leaf}" for k, v in tree.items() if isinstance(v, dict) and leaf in v]
    near = f" Did you mean {' or '.join(deeper)}?" if deeper else nearest(leaf, valid)
    return f"Unknown key {place}; valid here: {', '.join(valid)}.{near}"


def nearest(name: str, options: Sequence[str]) -> str:
    """Suggest the option most like a name, in any case; "" if none is, else a sentence."""
    known = {option.casefold(): option for option in options}
    near = get_close_matches(name.casefold(), known, 1, 0.5)
    return f" Did you mean {known[near[0]]}?" if near else ""


def unnamed(words: Sequence[str]) -> str:
    """Tell of the first word that gives a group something else than an option's name, as null."""
    # Programs that share this have words of their own, which Hydra's grammar need not know.
    for word in words:
        key, equals, _ = word.partition("=")
        options = options_of(key.lstrip("+"))
        if not equals or not options:
            continue
        (override,) = OverridesParser.create().parse_overrides([word])
        if not override.is_sweep_override() and not isinstance(override.value(), str):
            group = override.key_or_group
            choice = "" if group in ("method", "task") else ", or leave it out for its default"
            return (
                f"Expected {group} to be one of {', '.join(options)}; got {word}. Name one{choice}."
            )
    return ""


@patience()
def guarded(program: Any) -> None:
    """Run a program; a user's mistake becomes one line and exit code 2."""
    if {"--help", "-h"} & set(sys.argv):
        sys.argv[1:] = for_help(sys.argv[1:])
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing
    sys.argv[1:] = readable(sys.argv[1:], is_sweep=bool(SWEEP & set(sys.argv)))
    restore_signals()
    argparse.ArgumentParser.error = _unknown_option
    warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
    try:
        program()
    except KeyboardInterrupt:
        said = "Interrupted. The same command goes on from the last checkpoint, where there is one."
        sys.exit(fail(said, INTERRUPTED))
    except Told as error:
        line, process, code = error.args
        if process != os.getpid():  # its words are in a file of a launcher's
            fail(line)
        sys.exit(code)
    except Exception as error:
        line = mistake(error)
        if line is None:
            raise
        sys.exit(fail(line))


def _unknown_option(_: argparse.ArgumentParser, message: str) -> NoReturn:
    """Tell in one line what argparse would print with all of its options."""
    from dpexp.types import ConfigError

    raise ConfigError(f"{message}. Settings are words such as method=rgp; --help tells of options.")


def for_help(words: Sequence[str]) -> list[str]:
    """Complete a command line that asks for help, which Hydra shows of a composed config only.

    Overrides go first: after an option Hydra's parser takes no more than one row of them.
    """
    overrides = [word for word in words if "=" in word and not word.startswith("-")]
    chosen = {word.partition("=")[0] for word in overrides}
    needed = {} if "experiment" in chosen else {"method": "rgp", "task": "cifar10"}
    missing = [f"{key}={option}" for key, option in needed.items() if key not in chosen]
    return [*overrides, *missing, *(word for word in words if word not in overrides)]


def mistake(error: Exception) -> str | None:
    """Return the line for an error that the user can mend; None for one that is ours."""
    if isinstance(error, HydraException | OmegaConfBaseException):
        return explain(error)
    if isinstance(error, AssertionError) and _is_hydras(error):
        # Hydra, where what a method takes (its public data) depends on the task.
        choices = ", ".join(options_of("task"))
        return f"Expected a task: none was chosen. Set task, one of {choices}."
    if isinstance(error, ValueError) and str(error).startswith(NAMELESS):
        return unnamed(sys.argv[1:]) or str(error)
    # Of its own options, or for want of a group's name where it puts one together.
    if isinstance(error, ValueError | TypeError) and _is_hydras(error):
        from dpexp.types import one_line

        return (isinstance(error, TypeError) and unnamed(sys.argv[1:])) or one_line(error)
    if isinstance(error, RuntimeError) and str(error).startswith("Unknown plugin class"):
        chosen = [w.partition("=")[2] for w in sys.argv if w.startswith("hydra/launcher=")]
        return unstarted(chosen[-1] if chosen else "of Hydra", error)
    from dpexp.distributed.ranks import RankLost
    from dpexp.privacy import PrivacyError
    from dpexp.records import RecordError
    from dpexp.types import ConfigError

    told = ConfigError | RecordError | PrivacyError | RankLost
    return str(error) if isinstance(error, told) else None


def _is_hydras(error: Exception) -> bool:
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals["__name__"].startswith("hydra.")


def fail(message: str, code: int = 2) -> int:
    """Print an error's line and give the exit code that goes with it."""
    print(f"error: {message}", file=sys.stderr)
    return code


def unstarted(name: str, error: RuntimeError) -> str:
    """Word why a launcher does not start, and what it needs."""
    from dpexp.types import one_line

    line = one_line(error)
    extra = f" It needs: pip install -e '.[{EXTRAS[name]}]'." if name in EXTRAS else ""
    return f"Launcher {name} does not start: {line}.{extra}"
