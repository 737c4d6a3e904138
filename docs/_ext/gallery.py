"""All tables and figures under all profiles, with their verdicts; found by words and choices."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape, unescape

from docs._ext import records

ARTICLE = re.compile(r'<article id="(?P<key>[^"]*)" data-papers="(?P<papers>[^"]*)" '
                     r'data-methods="(?P<methods>[^"]*)" data-tasks="(?P<tasks>[^"]*)" '
                     r'data-text="(?P<text>[^"]*)">(?P<body>.*?)</article>', re.S)  # fmt: skip
VERDICT = re.compile(r'<p class="verdict">(.*?)</p>', re.S)
PICTURE = re.compile(r'<img loading="lazy" src="([^"]+)"')
WORDS = {
    "holds": r"\d holds?\b",
    "does not hold": r"\d do(?:es)? not\b",
    "unclear": r"\d unclear\b",
}
"""What a verdict may say of one of its claims at least."""

FILTERS = ("paper", "profile", "method", "task", "verdict")


def page() -> str:
    """Return a form to search by and a card for each artifact, as HTML in Markdown."""
    cards = [_card(artifact) for artifact in records.artifacts()]
    choices = {name: sorted({word for card in cards for word in card[1][name]}) for name in FILTERS}
    selects = "".join(
        f'<label>{name}<select data-by="{name}"><option value="">all</option>'
        + "".join(f"<option>{escape(word)}</option>" for word in words)
        + "</select></label>"
        for name, words in choices.items()
    )
    form = (
        '<form class="gallery-form" role="search" hidden><label class="wide">search'
        '<input type="search" placeholder="words of a title, row, column or claim"></label>'
        f'{selects}<output aria-live="polite"></output></form>'
    )
    none = '<p class="gallery-none" role="status" hidden>Nothing found. Take a word away.</p>'
    pages = ", ".join(
        f"[`{profile}`](../results/{profile}/index.html)" for profile in records.profiles()
    )
    html = f'<div class="gallery">{"".join(card for card, _ in cards)}</div>'
    return (
        f"Each profile has a page with all numbers, claims and runs: {pages}.\n\n"
        f"{form}\n\n{none}\n\n{html}\n"
    )


def _card(artifact: records.spec.Artifact) -> tuple[str, dict[str, set[str]]]:
    """Return an artifact's card, and what it is found by."""
    key = f"{artifact.paper}-{artifact.name}"
    found: dict[str, set[str]] = {name: set() for name in FILTERS}
    found["paper"] = {artifact.paper}
    text, picture, lines = artifact.title.lower(), "", []
    for profile in artifact.profiles:
        article = _articles(profile).get(key)
        if article is None:
            command = f"make {artifact.name} PAPER={artifact.paper} PROFILE={profile}"
            lines.append(f"<li><b>{profile}</b> not run here: <code>{escape(command)}</code></li>")
            continue
        address = f"../results/{profile}/index.html"
        verdict = unescape(_first(VERDICT, article["body"]))
        lines.append(
            f'<li><a href="{address}#{key}">{profile}</a> {_badges(verdict)}{escape(verdict)}</li>'
        )
        found["profile"].add(profile)
        found["method"] |= {*article["methods"].split()}
        found["task"] |= {*article["tasks"].split()}
        found["verdict"] |= _words(verdict)
        text += " " + unescape(article["text"])
        shown = _first(PICTURE, article["body"])
        if shown and not picture:
            picture = (
                f'<a href="{address}#{key}"><img loading="lazy" alt="" '
                f'src="../results/{profile}/{shown}"></a>'
            )
    data = "".join(f' data-{n}="{escape("|".join(sorted(w)))}"' for n, w in found.items())
    stem = artifact.name.rstrip("0123456789")
    name = f"{artifact.paper} {stem.capitalize()} {artifact.name.removeprefix(stem)}"
    card = (
        f'<section class="card" id="{key}"{data} data-text="{escape(text)}">{picture}'
        f"<h3><small>{escape(name)}</small> {escape(artifact.title)}</h3>"
        f'<p class="place">{escape(artifact.place)}</p><ul>{"".join(lines)}</ul></section>'
    )
    return card.replace("\n", " "), found


def _articles(profile: str) -> dict[str, re.Match[str]]:
    """Return the articles of a profile's page by their anchors."""
    path = records.RESULTS / profile / "index.html"
    if not path.is_file():
        return {}
    return {m["key"]: m for m in ARTICLE.finditer(path.read_text(encoding="utf-8"))}


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1] if found else ""


def _words(verdict: str) -> set[str]:
    return {word for word, pattern in WORDS.items() if re.search(pattern, verdict)}


def _badges(verdict: str) -> str:
    return "".join(_badge(word) for word in WORDS if word in _words(verdict))


def _badge(word: str) -> str:
    sign, kind = {"holds": ("✓", "holds"), "does not hold": ("✗", "fails")}.get(
        word, ("?", "unclear")
    )
    return f'<span class="badge {kind}" aria-hidden="true">{sign}</span> '


def anchors(profiles: Iterable[str]) -> set[tuple[str, str]]:
    """Return which artifacts the profiles' pages show, as profile and anchor."""
    return {(profile, key) for profile in profiles for key in _articles(profile)}
