"""One grammar of generated texts, whose labels follow from what the texts say.

Ours. It writes from a fixed seed in about a second, so that language models run with no data at
hand. Its words lie in `dpexp/data/words`, a file a language: sentences of film reviews (task
sentiment), premises and hypotheses about scenes (task entailment), and phrases of film reviews
(public=film_reviews). Much of a label shows in single words, as in real reviews and inferences
(Gururangan et al. 2018); the rest takes composition: negation, contrast, and what a word of one
text says of a word of the other.

All draws come from `random.Random(string).random()`, the one sequence that Python promises to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from random import Random
from typing import Any

import torch
import yaml

from dpexp.data.task import Task, assemble
from dpexp.data.text import SPECIALS, Texts, Tokenizer, WordLevel
from dpexp.types import ConfigError, require_word

Text = tuple[str, ...]
"""A sentence, or premise and hypothesis."""


@cache
def words_of(language: str) -> dict[str, Any]:
    """Read the words of a language: sentiment, entailment or film_reviews."""
    text = (files("dpexp.data") / "words" / f"{language}.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)


REVIEWS, SCENES = words_of("sentiment"), words_of("entailment")

ENTAILMENT, NEUTRAL, CONTRADICTION = range(3)
"""Labels of scenes, in GLUE's order."""


def _words(phrases: Any) -> set[str]:
    """Collect the words of phrases, which lie in lists of any depth."""
    if isinstance(phrases, str):
        return set(phrases.split())
    return set().union(*map(_words, phrases))


@dataclass(frozen=True)
class Grammar:
    """A language of texts, and what they say.

    Attributes:
        write: writes a text of whatever label.
        read: gives a text's label, or None where it has none.
        classes: labels are below it.
        words: what their ids stand for, special ones first.
    """

    write: Callable[[Random], Text]
    read: Callable[..., int | None]
    classes: int
    words: tuple[str, ...]


def generated(
    *,
    name: str,
    data_seed: int,
    test_size: int,
    vocabulary: int,
    max_length: int,
    dataset_size: int,
    delta: float,
    tokenizer: str | None,
    model_root: str,
) -> Task:
    """Write a task's texts, as many of each class.

    Args:
        name: as in conf/task: "sentiment", sentences of film reviews, negative (0) or positive (1);
            "entailment", premises and hypotheses about scenes, with GLUE's three labels.
        data_seed: what everything is drawn from; apart from a run's seed.
        test_size: how many test examples, >= 1.
        vocabulary: how many ids the task's own words take, special ones included.
        max_length: tokens of the longest text, special ones included.
        dataset_size: how many training examples, >= 1.
        delta: of the (eps, delta) guarantee.
        tokenizer: owner/name of the model whose tokenizer encodes the texts; None: a word an id.
        model_root: a folder laid out like hub snapshots, looked at before the hub.

    Raises:
        ConfigError: the vocabulary has another size; a text is longer than max_length; a set is
            empty; there is no such task or tokenizer.
    """
    require_word("task.name", name, tuple(GRAMMARS))
    grammar = GRAMMARS[name]
    if vocabulary != len(grammar.words):
        raise ConfigError(
            f"Expected task.vocabulary={len(grammar.words)}, the ids of the words of {name}; got "
            f"{vocabulary}. Set task.vocabulary={len(grammar.words)}."
        )
    if min(test_size, dataset_size) < 1:
        raise ConfigError(
            f"Expected task.test_size and task.dataset_size >= 1; got {test_size} and "
            f"{dataset_size}. Set both."
        )
    words = WordLevel(grammar.words)
    if tokenizer is not None:
        words = Tokenizer.load(tokenizer, model_root, max_length, name)
    sets = []
    for texts, labels in draw(grammar, f"{name} {data_seed}", test_size, dataset_size):
        encoded = words.encode(*zip(*texts, strict=True))
        longest = encoded.ids.shape[1]
        if longest > max_length:
            raise ConfigError(
                f"Expected task.max_length >= {longest}, the longest text of {name}; got "
                f"{max_length}. Set task.max_length."
            )
        sets.append(Texts(encoded, torch.tensor(labels), max_length, words.vocabulary))
    test, train = sets
    return assemble(
        name,
        train,
        test,
        num_classes=grammar.classes,
        delta=delta,
        dataset_size=dataset_size,
        input_shape=(3, max_length),
    )


def draw(grammar: Grammar, seed: str, *sizes: int) -> list[tuple[list[Text], list[int]]]:
    """Write sets of texts; in each, labels take turns, and none has a text of an earlier one.

    Args:
        grammar: what writes and reads them.
        seed: the texts are the same wherever this is.
        sizes: texts of each set, >= 1.
    """
    sets = []
    used: set[Text] = set()
    for part, size in enumerate(sizes):
        rng, texts = Random(f"{seed} {part}"), []
        labels = [index % grammar.classes for index in range(size)]
        for label in labels:
            text = grammar.write(rng)
            while text in used or grammar.read(*text) != label:
                text = grammar.write(rng)
            texts.append(text)
        used.update(texts)
        sets.append((texts, labels))
    return sets


def opinion(sentence: str) -> int | None:
    """Read a review's sentence: 1 where it praises, 0 where it blames, None where it does neither.

    What follows the last "but" decides. There the words of opinion vote, and each negator turns the
    next one around.
    """
    (bad, good), praise, is_negated = REVIEWS["opinions"], 0, False
    for word in sentence.split():
        if word == "but":
            praise, is_negated = 0, False
        elif word in REVIEWS["negators"]:
            is_negated = not is_negated
        elif word in bad or word in good:
            praise += 1 if (word in good) != is_negated else -1
            is_negated = False
    return int(praise > 0) if praise else None


def relation(premise: str, hypothesis: str) -> int:
    """Read what a premise, as all there is to see, says of a hypothesis.

    A word is true where the premise has it or a narrower one, open where the premise has a wider
    one or none, and false else; a negator turns what follows around. One false word makes a
    contradiction; else one open word, or one that nobody can see, makes it neutral.
    """
    seen = {path[-1]: path for path in map(_path, premise.split()) if path}
    verdicts, is_negated = {ENTAILMENT}, False
    for word in hypothesis.split():
        path = _path(word)
        if word in SCENES["negators"]:
            is_negated = not is_negated
        elif word in _UNSEEN:
            verdicts.add(NEUTRAL)
        elif path:
            verdict = _compare(path, seen.get(path[-1], path[-1:]))
            # CONTRADICTION - ENTAILMENT = 2: negation swaps the two and leaves what is open.
            verdicts.add(2 - verdict if is_negated else verdict)
    return max(verdicts)


_UNSEEN = _words(SCENES["reasons"]) - {"are", "the"}


def _path(word: str) -> list[str]:
    """List a word, all wider ones and the question; nothing for a word that shows nothing."""
    path = [word]
    while path[-1] in SCENES["wider"]:
        path.append(SCENES["wider"][path[-1]])
    return path[:-1] and path


def _compare(asked: list[str], seen: list[str]) -> int:
    if asked[0] in seen:
        return ENTAILMENT
    return NEUTRAL if seen[0] in asked else CONTRADICTION


def _review(rng: Random) -> Text:
    """Write a sentence of one or two clauses; "and" joins like ones, "but" unlike ones."""
    first = _clause(rng)
    joint = pick(rng, (None, None, "and", "but"))
    sentence = [pick(rng, REVIEWS["openers"])] if chance(rng, 0.2) else []
    sentence.append(first)
    if joint:
        second = _clause(rng)
        while (opinion(second) == opinion(first)) != (joint == "and"):
            second = _clause(rng)
        sentence += [joint, second]
    if chance(rng, 0.3):
        sentence.append(pick(rng, REVIEWS["closers"]))
    return (" ".join(sentence),)


def _clause(rng: Random) -> str:
    label = int(rng.random() * 2)
    said = [pick(rng, REVIEWS["opinions"][label])]
    if chance(rng, 0.4):
        said.insert(0, pick(rng, REVIEWS["intensifiers"]))
    # "not funny" is said more often than "not dull".
    is_negated = chance(rng, 0.3 if label else 0.1)
    negator = [pick(rng, REVIEWS["negators"])] if is_negated else []
    verb = pick(rng, ("is", "was"))
    form = int(rng.random() * 3)
    if form == 0:
        kind = pick(rng, REVIEWS["kinds"])
        return " ".join(["this", verb, *negator, article(said[0]), *said, kind])
    part = ["the", pick(rng, REVIEWS["parts"])]
    if form == 1:
        return " ".join([*part, verb, *negator, *said])
    return " ".join(["i", "found", *part, *negator, *said])


_NARROWER = {
    wide: [word for word in SCENES["wider"] if wide in _path(word)[1:]]
    for wide in ("who", "moving", "resting", "outside", "inside")
}


def _scene(rng: Random) -> Text:
    """Write a premise and a hypothesis that asks of one or two things in it."""
    who = pick(rng, _NARROWER["who"])
    does = pick(rng, _NARROWER[pick(rng, ("moving", "resting"))])
    place = pick(rng, _NARROWER[pick(rng, ("outside", "inside"))])
    look = [pick(rng, SCENES["looks"])] if chance(rng, 0.3) else []
    premise = [pick(rng, SCENES["counts"]), *look, who, does, "in the", place]
    asked = SCENES["wider"][pick(rng, (does, place))]
    if chance(rng, 0.5):
        asked = pick(rng, ("moving", "resting", "outside", "inside"))
    if chance(rng, 0.15):
        return " ".join(premise), f"nobody is {asked}"
    subject = pick(rng, _path(who)[:-1])
    if chance(rng, 0.1):
        subject = pick(rng, _NARROWER["who"])
    hypothesis = [pick(rng, ("the", "some")), subject]
    form = int(rng.random() * 3)
    if form == 0:
        verb = does if chance(rng, 0.7) else pick(rng, _NARROWER[SCENES["wider"][does]])
        hypothesis.append(verb)
    else:
        hypothesis += ["are", *(["not"] if chance(rng, 0.15) else []), asked]
    if chance(rng, 0.3):
        hypothesis.append(pick(rng, SCENES["reasons"]))
    return " ".join(premise), " ".join(hypothesis)


SIDES = ("bad", "good")
"""Which words of film_reviews blame and praise, by label."""


def phrases(size: int, seed: int) -> tuple[list[str], list[int]]:
    """Write phrases of film reviews and say of each whether it praises (1) or blames (0).

    Args:
        size: how many, >= 1.
        seed: the phrases are the same wherever this is.
    """
    rng = Random(f"film reviews {seed}")
    labels = [int(chance(rng, 0.5)) for _ in range(size)]
    return [_phrase(rng, label) for label in labels], labels


def _phrase(rng: Random, label: int) -> str:
    """Write one or two clauses; of two unlike ones the last speaks for the whole."""
    clause, form = _part(rng, label), rng.random()
    if form < 0.5:
        return clause
    if form < 0.62:
        return f"{clause} {pick(rng, (',', 'and', ';'))} {_part(rng, label)}"
    if form < 0.68:
        return f"{_part(rng, 1 - label)} {pick(rng, ('but', ', but', 'yet', ', yet'))} {clause}"
    if form < 0.74:
        opener = pick(rng, ("despite", "for all", "in spite of", "although", "though", "even if"))
        return f"{opener} {_part(rng, 1 - label)} , {clause}"
    aside = pick(rng, words_of("film_reviews")["asides"])
    return f"{clause} {aside}" if form < 0.9 else f"{aside} , {clause}"


def _part(rng: Random, label: int) -> str:
    film = words_of("film_reviews")
    own, others = film[SIDES[label]], film[SIDES[1 - label]]

    def one(kind: str, words: dict[str, Any] = film) -> str:
        return pick(rng, words[kind])

    def said(negated: float = 0.0) -> str:
        if chance(rng, negated):
            degree = [one("degrees")] if chance(rng, 0.3) else []
            return " ".join([one("negators"), *degree, one("adjectives", others)])
        adjective, form = one("adjectives", own), rng.random()
        if form < 0.25:
            return f"{one('degrees')} {adjective}"
        return f"too {adjective}" if form < 0.3 and not label else adjective

    # "not funny" is said more often than "not dull".
    negated = 0.06 if label else 0.12
    form = int(rng.random() * 15)
    if form == 0:
        return said(negated)
    if form in (1, 2):
        first = said()
        more = f" , {one('adjectives', own)}" if form == 2 else ""
        return f"{article(first)} {first}{more} {one('kinds')}"
    if form == 3:
        return f"{said()} and {said()}"
    if form == 4:
        verb = pick(rng, ("is", "are", "feels", "seems", "was"))
        return f"the {one('parts')} {verb} {said(negated)}"
    if form == 5:
        return f"{one('subjects')} {one('verbs', own)}"
    if form == 6:
        return one("verbs", own)
    if form == 7:
        verb = pick(rng, ("is", "was", "'s", "amounts to", "turns out to be", "proves"))
        return f"{one('subjects')} {verb} {one('names', own)}"
    if form == 8:
        return one("names", own)
    if form == 9:
        return one("exclamations", own)
    if form == 10:
        if chance(rng, 0.2 if label else 0.45):
            return f"{one('spared' if label else 'without')} {one('nouns', others)}"
        return f"{one('with')} {one('nouns', own)}"
    if form == 11:
        return f"{said()} {one('parts')}"
    if form == 12:
        return f"{one('nouns', own)} and {one('nouns', own)}"
    if form == 13:
        return f"{one('adjectives', own)} {one('many')}"
    return f"{one('exclamations', own)} , {one('names', own)}"


def pick(rng: Random, options: Sequence[Any]) -> Any:
    """Draw one of some things."""
    return options[int(rng.random() * len(options))]


def chance(rng: Random, probability: float) -> bool:
    """Toss a coin that says yes with a probability in [0, 1]."""
    return rng.random() < probability


def article(word: str) -> str:
    """Return "an" before a vowel, "a" before another letter."""
    return "an" if word[0] in "aeiou" else "a"


GRAMMARS = {
    "sentiment": Grammar(_review, opinion, 2, (*SPECIALS, *sorted(_words(REVIEWS.values())))),
    "entailment": Grammar(_scene, relation, 3, (*SPECIALS, *sorted(_words(SCENES.values())))),
}
