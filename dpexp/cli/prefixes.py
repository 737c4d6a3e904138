"""Tell what is wrong with a word's prefix: + adds a setting, ++ adds or sets it, ~ removes it."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Any

from dpexp.cli.groups import options_of, settings_of

MISSING = re.compile(r"Could not delete from config\. '(.+)' does not exist")
OTHER = re.compile(r"Could not delete from config\. The value of '(.+)' is (.*) and not (.*)\.$")
UNCHOSEN = re.compile(r"Could not delete '(.+)'\. No match in the defaults list")
PRESENT = re.compile(r"Could not append to config\. An item is already at '(.+)'")
CHOSEN = re.compile(r"Multiple values for (.+)\. To override a value use 'override .+: (.+)'")
FORCED = re.compile(r"force-add of config groups is not supported: '\+\+(.+)'")
"""What Hydra says of a prefix; it has no error types for that."""


def of_prefix(line: str) -> str:
    """Return the error for a word whose prefix does not fit, or "".

    Args:
        line: the first one of Hydra's message.
    """
    if found := MISSING.match(line):
        place = found[1]
        return f"Expected ~{place} to take out a setting that the run has; it has no {place}." + (
            _near(place) or f" Leave ~{place} out."
        )
    if found := OTHER.match(line):
        place, value, asked = found.groups()
        return (
            f"Expected ~{place}={asked} to take out the value that the run has; it has "
            f"{place}={value}. Write ~{place}."
        )
    if found := UNCHOSEN.match(line):
        group, _, option = found[1].partition("=")
        what = f"no {group}={option}" if option else f"no {group}"
        return f"Expected ~{found[1]} to take out what is chosen; {what} is. Leave ~{found[1]} out."
    if found := PRESENT.match(line):
        return f"Expected + before a setting that is new; {found[1]} has a value. Leave the + out."
    if found := CHOSEN.match(line):
        group, option = found.groups()
        return f"Expected one choice of {group}; a run has one already. Write {group}={option}."
    if found := FORCED.match(line):
        return f"Expected no ++ before the choice of a group. Write {found[1]}."
    return ""


def taken_out(line: str, place: str) -> str:
    """Return the error for a setting of every run that was taken out while another reads it, or "".

    Args:
        line: OmegaConf's, which has the missing setting.
        place: of the one that takes its value.
    """
    _, _, key = line.partition("Interpolation key '")
    key = key.partition("'")[0]
    if key not in settings_of("", "config"):
        return ""
    return f"Expected {key} to have a value, which {place} takes; it was taken out. Set {key}."


def to_add(place: str, target: Any) -> str:
    """Return how a setting is added that a class may take beyond those a choice names, or "".

    A choice names all settings of a class of dpexp's.
    """
    is_others = isinstance(target, str) and not target.startswith("dpexp.")
    return f" If {target} takes it, add it: +{place}=VALUE." if is_others else ""


def to_take_out(place: str) -> str:
    """Return how a setting is taken out that another target does not take."""
    return f" Leave it out; what a choice has brought is taken out by ~{place}."


def _near(place: str) -> str:
    """Return a sentence that suggests the nearest setting of a group's options, or ""."""
    group, _, key = place.rpartition(".")
    options = options_of(group) if group else ["config"]
    known = {name for each in options for name in settings_of(group, each)} - {key}
    near = get_close_matches(key, sorted(known), 1, 0.6)
    return f" Did you mean ~{place.removesuffix(key)}{near[0]}?" if near else ""
