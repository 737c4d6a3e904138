"""The page of all settings, from conf and its comments."""

from __future__ import annotations

from collections.abc import Iterable

from docs._ext.markdown import code, escaped
from docs._ext.options import Choice, Option, choices_of, groups, top_level

RECIPES = "experiment"
"""The group whose choices are whole recipes: what they set is told by their own words."""


def page() -> str:
    """Return all settings as Markdown: those of every run, then each group's."""
    parts = ["## Every run", defined(top_level())]
    parts += [part for group, says in groups().items() for part in _group(group, says)]
    return "\n\n".join(parts)


def _group(group: str, says: str) -> Iterable[str]:
    choices = choices_of(group)
    yield f"## {group}"
    if says:
        yield escaped(says[0].upper() + says[1:].rstrip(".") + ".")
    if group == "method":
        yield "[Methods](methods/index.md) tells how each of them works."
    for choice in choices:
        yield f"### {code(f'{group}={choice.name}')}"
        yield from said(choice)
        if group != RECIPES:
            yield defined(choice.options)


def said(choice: Choice) -> Iterable[str]:
    """Yield what a choice says of itself, and what it chooses beside."""
    if choice.says:
        yield escaped(choice.says)
    if choice.chooses:
        yield f"It also chooses {', '.join(map(code, choice.chooses))}."


def defined(options: Iterable[Option]) -> str:
    """Return settings as a list of definitions."""
    return "\n\n".join(
        f"{code(option.name)} = {code(option.value)}\n: {escaped(option.says) or '–'}"
        for option in options
    )
