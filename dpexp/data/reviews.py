"""Phrases of film reviews with their labels, written by a grammar: public, and as many as asked.

Ours. A private set of reviews is about words that everybody knows; these phrases say what those
words mean before the private set is looked at. They come from `dpexp.data.lexicon` and a seed.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from dpexp.data import lexicon
from dpexp.data.grammar import chance, pick


class Words(NamedTuple):
    """What speaks for one label.

    Attributes:
        adjectives: of a film or a part of it.
        nouns: what it has.
        names: what it is as a whole.
        verbs: what it does.
        exclamations: phrases without a subject.
    """

    adjectives: list[str]
    nouns: list[str]
    names: list[str]
    verbs: list[str]
    exclamations: list[str]


WORDS = (
    Words(lexicon.BAD, lexicon.FAULTS, lexicon.FLOPS, lexicon.FAILS, lexicon.PANS),
    Words(lexicon.GOOD, lexicon.MERITS, lexicon.HITS, lexicon.WORKS, lexicon.RAVES),
)
"""By label: negative, positive."""


def write(size: int, seed: int) -> tuple[list[str], list[int]]:
    """Write phrases and say of each whether it praises (1) or blames (0).

    Args:
        size: how many, >= 1.
        seed: the phrases are the same wherever this is.
    """
    rng = Random(f"film reviews {seed}")
    labels = [int(chance(rng, 0.5)) for _ in range(size)]
    return [_review(rng, label) for label in labels], labels


def _review(rng: Random, label: int) -> str:
    """Write one or two clauses; of two unlike ones the last speaks for the whole."""
    clause, form = _clause(rng, label), rng.random()
    if form < 0.5:
        return clause
    if form < 0.62:
        return f"{clause} {pick(rng, (',', 'and', ';'))} {_clause(rng, label)}"
    if form < 0.68:
        return f"{_clause(rng, 1 - label)} {pick(rng, ('but', ', but', 'yet', ', yet'))} {clause}"
    if form < 0.74:
        opener = pick(rng, ("despite", "for all", "in spite of", "although", "though", "even if"))
        return f"{opener} {_clause(rng, 1 - label)} , {clause}"
    if form < 0.9:
        return f"{clause} {pick(rng, lexicon.ASIDES)}"
    return f"{pick(rng, lexicon.ASIDES)} , {clause}"


def _clause(rng: Random, label: int) -> str:
    words, others = WORDS[label], WORDS[1 - label]

    def said(negated: float = 0.0) -> str:
        if chance(rng, negated):
            degree = [pick(rng, lexicon.DEGREES)] if chance(rng, 0.3) else []
            return " ".join([pick(rng, lexicon.NEGATORS), *degree, pick(rng, others.adjectives)])
        adjective, form = pick(rng, words.adjectives), rng.random()
        if form < 0.25:
            return f"{pick(rng, lexicon.DEGREES)} {adjective}"
        return f"too {adjective}" if form < 0.3 and not label else adjective

    # "not funny" is said more often than "not dull".
    negated = 0.06 if label else 0.12
    form = int(rng.random() * 15)
    if form == 0:
        return said(negated)
    if form in (1, 2):
        first = said()
        more = f" , {pick(rng, words.adjectives)}" if form == 2 else ""
        article = "an" if first[0] in "aeiou" else "a"
        return f"{article} {first}{more} {pick(rng, lexicon.KINDS)}"
    if form == 3:
        return f"{said()} and {said()}"
    if form == 4:
        verb = pick(rng, ("is", "are", "feels", "seems", "was"))
        return f"the {pick(rng, lexicon.PARTS)} {verb} {said(negated)}"
    if form == 5:
        return f"{pick(rng, lexicon.SUBJECTS)} {pick(rng, words.verbs)}"
    if form == 6:
        return pick(rng, words.verbs)
    if form == 7:
        verb = pick(rng, ("is", "was", "'s", "amounts to", "turns out to be", "proves"))
        return f"{pick(rng, lexicon.SUBJECTS)} {verb} {pick(rng, words.names)}"
    if form == 8:
        return pick(rng, words.names)
    if form == 9:
        return pick(rng, words.exclamations)
    if form == 10:
        if chance(rng, 0.2 if label else 0.45):
            free_of = lexicon.SPARED if label else lexicon.WITHOUT
            return f"{pick(rng, free_of)} {pick(rng, others.nouns)}"
        return f"{pick(rng, lexicon.WITH)} {pick(rng, words.nouns)}"
    if form == 11:
        return f"{said()} {pick(rng, lexicon.PARTS)}"
    if form == 12:
        return f"{pick(rng, words.nouns)} and {pick(rng, words.nouns)}"
    if form == 13:
        return f"{pick(rng, words.adjectives)} {pick(rng, lexicon.MANY)}"
    return f"{pick(rng, words.exclamations)} , {pick(rng, words.names)}"
