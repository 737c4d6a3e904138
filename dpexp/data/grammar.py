"""A grammar that generates texts whose labels follow from their meaning.

Ours. It writes from a fixed seed in about a second, so that language models run without any data.
Its vocabularies are in `dpexp/data/words`: sentences of film reviews (task sentiment), premises and
hypotheses about scenes (task entailment), and phrases of film reviews (public=film_reviews). As in
real reviews and inferences, single words give much of a label away (Gururangan et al. 2018). The
rest takes composition: negation, contrast, and relations between words of the two texts.

All draws come from `random.Random(string).random()`, the only sequence that Python keeps stable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from random import Random
from typing import Any

import torch
import yaml

from dpexp.data.labels import TEXTS
from dpexp.data.preprocessing import Sentences
from dpexp.data.task import Task, assemble
from dpexp.data.text import SPECIALS, Texts, Tokenizer, WordLevel
from dpexp.types import ConfigError, require_word

Text = tuple[str, ...]
"""A sentence, or premise and hypothesis."""


@cache
def words_of(language: str) -> dict[str, Any]:
    """Return the vocabulary of a language: sentiment, entailment or film_reviews."""
    text = (files("dpexp.data") / "words" / f"{language}.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)


REVIEWS, SCENES = words_of("sentiment"), words_of("entailment")

ENTAILMENT, NEUTRAL, CONTRADICTION = range(3)
"""Labels of scenes, in GLUE's order."""


def _words(phrases: Any) -> set[str]:
    """Return the words of phrases in lists of any depth."""
    if isinstance(phrases, str):
        return set(phrases.split())
    return set().union(*map(_words, phrases))


@dataclass(frozen=True)
class Grammar:
    """A language of labelled texts.

    Attributes:
        write: generates a text of any label.
        read: returns a text's label, or None if it has none.
        classes: names of the labels.
        columns: texts of an example, 1 or 2.
        words: by token id, special ones first.
    """

    write: Callable[[Random], Text]
    read: Callable[..., int | None]
    classes: tuple[str, ...]
    columns: int
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
    """Generate a task's texts, balanced over classes.

    Args:
        name: as in conf/task: "sentiment", sentences of film reviews, negative (0) or positive (1);
            "entailment", premises and hypotheses about scenes, with GLUE's three labels.
        data_seed: seed of all draws, separate from a run's seed.
        test_size: number of test examples, >= 1.
        vocabulary: number of ids of the task's own words, special ones included.
        max_length: tokens of the longest text, special ones included.
        dataset_size: number of training examples, >= 1.
        delta: of the (eps, delta) guarantee.
        tokenizer: owner/name of the model whose tokenizer encodes the texts; None: one id per word.
        model_root: a folder laid out like hub snapshots, searched before the hub.

    Raises:
        ConfigError: the vocabulary has another size, a text is longer than max_length, a set is
            empty, or there is no such task or tokenizer.
    """
    require_word("task.name", name, tuple(GRAMMARS))
    grammar = GRAMMARS[name]
    if vocabulary != len(grammar.words):
        raise ConfigError(
            f"Expected task.vocabulary={len(grammar.words)}, the word ids of {name}; got "
            f"{vocabulary}. Set task.vocabulary={len(grammar.words)}."
        )
    if min(test_size, dataset_size) < 1:
        raise ConfigError(
            f"Expected task.test_size and task.dataset_size >= 1; got {test_size} and "
            f"{dataset_size}. Set both."
        )
    words: WordLevel | Tokenizer = WordLevel(grammar.words)
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
        num_classes=len(grammar.classes),
        delta=delta,
        dataset_size=dataset_size,
        input_shape=(3, max_length),
        preprocessing=Sentences(words, max_length, grammar.columns, grammar.classes),
    )


@lru_cache(maxsize=4)  # of the next run's in this process
def draw(
    grammar: Grammar, seed: str, *sizes: int
) -> tuple[tuple[tuple[Text, ...], tuple[int, ...]], ...]:
    """Generate sets of texts with alternating labels; no text is in two sets.

    Args:
        grammar: writes and reads the texts.
        seed: decides the texts.
        sizes: texts of each set, >= 1.
    """
    sets = []
    used: set[Text] = set()
    for part, size in enumerate(sizes):
        rng, texts = Random(f"{seed} {part}"), []
        labels = [index % len(grammar.classes) for index in range(size)]
        for label in labels:
            text = grammar.write(rng)
            while text in used or grammar.read(*text) != label:
                text = grammar.write(rng)
            texts.append(text)
        used.update(texts)
        sets.append((tuple(texts), tuple(labels)))
    return tuple(sets)


def opinion(sentence: str) -> int | None:
    """Return a review's label: 1 if it praises, 0 if it blames, None if it does neither.

    The words of opinion after the last "but" vote. A negator flips the next one.
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
    """Return the label of a hypothesis, given that the premise describes all that can be seen.

    A word is true if the premise has it or a narrower one, open if the premise has a wider one or
    none, and false otherwise. A negator flips the words after it. One false word makes a
    contradiction. Otherwise one open word, or one about something invisible, makes it neutral.
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
            # CONTRADICTION - ENTAILMENT = 2: negation swaps the two and keeps NEUTRAL.
            verdicts.add(2 - verdict if is_negated else verdict)
    return max(verdicts)


_UNSEEN = _words(SCENES["reasons"]) - {"are", "the"}


def _path(word: str) -> list[str]:
    """Return a word, all wider ones and the question they answer; nothing for other words."""
    path = [word]
    while path[-1] in SCENES["wider"]:
        path.append(SCENES["wider"][path[-1]])
    return path[:-1] and path


def _compare(asked: list[str], seen: list[str]) -> int:
    if asked[0] in seen:
        return ENTAILMENT
    return NEUTRAL if seen[0] in asked else CONTRADICTION


def _review(rng: Random) -> Text:
    """Write one clause, or two: "and" joins clauses of one opinion, "but" of opposite opinions."""
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
    opinion_words = [pick(rng, REVIEWS["opinions"][label])]
    if chance(rng, 0.4):
        opinion_words.insert(0, pick(rng, REVIEWS["intensifiers"]))
    # "not funny" is more common than "not dull".
    is_negated = chance(rng, 0.3 if label else 0.1)
    negator = [pick(rng, REVIEWS["negators"])] if is_negated else []
    verb = pick(rng, ("is", "was"))
    form = int(rng.random() * 3)
    if form == 0:
        kind = pick(rng, REVIEWS["kinds"])
        return " ".join(["this", verb, *negator, article(opinion_words[0]), *opinion_words, kind])
    part = ["the", pick(rng, REVIEWS["parts"])]
    if form == 1:
        return " ".join([*part, verb, *negator, *opinion_words])
    return " ".join(["i", "found", *part, *negator, *opinion_words])


_NARROWER = {
    wide: [word for word in SCENES["wider"] if wide in _path(word)[1:]]
    for wide in ("who", "moving", "resting", "outside", "inside")
}


def _scene(rng: Random) -> Text:
    """Write a premise and a hypothesis about one or two of its words."""
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
"""Keys of film_reviews whose words blame and praise, by label."""


def phrases(size: int, seed: int) -> tuple[list[str], list[int]]:
    """Generate phrases of film reviews and their labels, praise (1) or blame (0).

    Args:
        size: number of phrases, >= 1.
        seed: decides the phrases.
    """
    rng = Random(f"film reviews {seed}")
    labels = [int(chance(rng, 0.5)) for _ in range(size)]
    return [_phrase(rng, label) for label in labels], labels


def _phrase(rng: Random, label: int) -> str:
    """Write one or two clauses; of two opposite ones, the main clause carries the label."""
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
    own, opposite = film[SIDES[label]], film[SIDES[1 - label]]

    def word(kind: str, words: dict[str, Any] = film) -> str:
        return pick(rng, words[kind])

    def describe(negated: float = 0.0) -> str:
        if chance(rng, negated):
            degree = [word("degrees")] if chance(rng, 0.3) else []
            return " ".join([word("negators"), *degree, word("adjectives", opposite)])
        adjective, form = word("adjectives", own), rng.random()
        if form < 0.25:
            return f"{word('degrees')} {adjective}"
        return f"too {adjective}" if form < 0.3 and not label else adjective

    # "not funny" is more common than "not dull".
    negated = 0.06 if label else 0.12
    form = int(rng.random() * 15)
    if form == 0:
        return describe(negated)
    if form in (1, 2):
        first = describe()
        more = f" , {word('adjectives', own)}" if form == 2 else ""
        return f"{article(first)} {first}{more} {word('kinds')}"
    if form == 3:
        return f"{describe()} and {describe()}"
    if form == 4:
        verb = pick(rng, ("is", "are", "feels", "seems", "was"))
        return f"the {word('parts')} {verb} {describe(negated)}"
    if form == 5:
        return f"{word('subjects')} {word('verbs', own)}"
    if form == 6:
        return word("verbs", own)
    if form == 7:
        verb = pick(rng, ("is", "was", "'s", "amounts to", "turns out to be", "proves"))
        return f"{word('subjects')} {verb} {word('names', own)}"
    if form == 8:
        return word("names", own)
    if form == 9:
        return word("exclamations", own)
    if form == 10:
        if chance(rng, 0.2 if label else 0.45):
            return f"{word('spared' if label else 'without')} {word('nouns', opposite)}"
        return f"{word('with')} {word('nouns', own)}"
    if form == 11:
        return f"{describe()} {word('parts')}"
    if form == 12:
        return f"{word('nouns', own)} and {word('nouns', own)}"
    if form == 13:
        return f"{word('adjectives', own)} {word('many')}"
    return f"{word('exclamations', own)} , {word('names', own)}"


def pick(rng: Random, options: Sequence[Any]) -> Any:
    """Draw one of the options."""
    return options[int(rng.random() * len(options))]


def chance(rng: Random, probability: float) -> bool:
    """Return True with a probability in [0, 1]."""
    return rng.random() < probability


def article(word: str) -> str:
    """Return "an" before a vowel, "a" before another letter."""
    return "an" if word[0] in "aeiou" else "a"


GRAMMARS = {
    "sentiment": Grammar(
        _review, opinion, TEXTS["sst2"], 1, (*SPECIALS, *sorted(_words(REVIEWS.values())))
    ),
    "entailment": Grammar(
        _scene, relation, TEXTS["mnli"], 2, (*SPECIALS, *sorted(_words(SCENES.values())))
    ),
}
