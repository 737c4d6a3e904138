"""Two generated sets of texts, whose labels follow from what the texts say.

Ours. Written by small grammars from a fixed seed in about a second, so that language models run
with no data at hand. Much of a label shows in single words, as in real reviews and inferences
(Gururangan et al. 2018); the rest takes composition: negation, contrast, and what a word of one
text says of a word of the other.

All draws come from `random.Random(string).random()`, the one sequence that Python promises to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from dpexp.data.sayings import (
    ADDITION,
    CLOSERS,
    CONTRADICTION,
    CONTRAST,
    COUNTS,
    ENTAILMENT,
    FILM_KINDS,
    FILM_NEGATORS,
    FILM_PARTS,
    INTENSIFIERS,
    LOOKS,
    NEUTRAL,
    OPENERS,
    OPINIONS,
    REASONS,
    SCENE_NEGATORS,
    WIDER,
)
from dpexp.data.task import Task, assemble
from dpexp.data.text import Encoded, Texts, Tokenizer, pack
from dpexp.types import ConfigError, require_word

SPECIALS = ("[pad]", "[cls]", "[sep]")
"""Ids 0, 1 and 2 of the vocabularies; words follow in alphabetical order."""

Text = tuple[str, ...]
"""A sentence, or premise and hypothesis."""


def _words(*phrases: str) -> set[str]:
    return {word for phrase in phrases for word in phrase.split()}


def _vocabulary(*phrases: str) -> tuple[str, ...]:
    return (*SPECIALS, *sorted(_words(*phrases)))


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


@dataclass(frozen=True)
class WordLevel:
    """A word an id: [cls] a [sep], or [cls] a [sep] b [sep].

    Attributes:
        words: what the ids stand for, special ones first.
    """

    words: tuple[str, ...]

    @property
    def vocabulary(self) -> int:
        """Give the number that all ids are below."""
        return len(self.words)

    def encode(self, *columns: Sequence[str]) -> Encoded:
        """Turn texts, or pairs of texts, into ids."""
        ids = {word: index for index, word in enumerate(self.words)}
        pad, cls, sep = (ids[special] for special in SPECIALS)
        rows, seconds = [], []
        for texts in zip(*columns, strict=True):
            row, begins = [cls], []
            for text in texts:
                begins.append(len(row))
                row += [*(ids[word] for word in text.split()), sep]
            rows.append(row)
            seconds.append(begins[1] if len(begins) == 2 else len(row))
        return pack(rows, seconds, pad)


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
    praise, is_negated = 0, False
    for word in sentence.split():
        if word == CONTRAST:
            praise, is_negated = 0, False
        elif word in FILM_NEGATORS:
            is_negated = not is_negated
        elif word in OPINIONS[0] or word in OPINIONS[1]:
            praise += 1 if (word in OPINIONS[1]) != is_negated else -1
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
        if word in SCENE_NEGATORS:
            is_negated = not is_negated
        elif word in _UNSEEN:
            verdicts.add(NEUTRAL)
        elif path:
            verdict = _compare(path, seen.get(path[-1], path[-1:]))
            # CONTRADICTION - ENTAILMENT = 2: negation swaps the two and leaves what is open.
            verdicts.add(2 - verdict if is_negated else verdict)
    return max(verdicts)


_UNSEEN = _words(*REASONS) - {"are", "the"}


def _path(word: str) -> list[str]:
    """List a word, all wider ones and the question; nothing for a word that shows nothing."""
    path = [word]
    while path[-1] in WIDER:
        path.append(WIDER[path[-1]])
    return path[:-1] and path


def _compare(asked: list[str], seen: list[str]) -> int:
    if asked[0] in seen:
        return ENTAILMENT
    return NEUTRAL if seen[0] in asked else CONTRADICTION


def _review(rng: Random) -> Text:
    """Write a sentence of one or two clauses; "and" joins like ones, "but" unlike ones."""
    first = _clause(rng)
    joint = pick(rng, (None, None, ADDITION, CONTRAST))
    sentence = [pick(rng, OPENERS)] if chance(rng, 0.2) else []
    sentence.append(first)
    if joint:
        second = _clause(rng)
        while (opinion(second) == opinion(first)) != (joint == ADDITION):
            second = _clause(rng)
        sentence += [joint, second]
    if chance(rng, 0.3):
        sentence.append(pick(rng, CLOSERS))
    return (" ".join(sentence),)


def _clause(rng: Random) -> str:
    label = int(rng.random() * 2)
    said = [pick(rng, OPINIONS[label])]
    if chance(rng, 0.4):
        said.insert(0, pick(rng, INTENSIFIERS))
    # "not funny" is said more often than "not dull".
    is_negated = chance(rng, 0.3 if label else 0.1)
    negator = [pick(rng, FILM_NEGATORS)] if is_negated else []
    verb = pick(rng, ("is", "was"))
    form = int(rng.random() * 3)
    if form == 0:
        article = "an" if said[0][0] in "aeiou" else "a"
        return " ".join(["this", verb, *negator, article, *said, pick(rng, FILM_KINDS)])
    part = ["the", pick(rng, FILM_PARTS)]
    if form == 1:
        return " ".join([*part, verb, *negator, *said])
    return " ".join(["i", "found", *part, *negator, *said])


_NARROWER = {
    wide: [word for word in WIDER if wide in _path(word)[1:]]
    for wide in ("who", "moving", "resting", "outside", "inside")
}


def _scene(rng: Random) -> Text:
    """Write a premise and a hypothesis that asks of one or two things in it."""
    who = pick(rng, _NARROWER["who"])
    does = pick(rng, _NARROWER[pick(rng, ("moving", "resting"))])
    place = pick(rng, _NARROWER[pick(rng, ("outside", "inside"))])
    look = [pick(rng, LOOKS)] if chance(rng, 0.3) else []
    premise = [pick(rng, COUNTS), *look, who, does, "in the", place]
    asked = WIDER[pick(rng, (does, place))]
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
        verb = does if chance(rng, 0.7) else pick(rng, _NARROWER[WIDER[does]])
        hypothesis.append(verb)
    else:
        hypothesis += ["are", *(["not"] if chance(rng, 0.15) else []), asked]
    if chance(rng, 0.3):
        hypothesis.append(pick(rng, REASONS))
    return " ".join(premise), " ".join(hypothesis)


def pick(rng: Random, options: Sequence[Any]) -> Any:
    """Draw one of some things."""
    return options[int(rng.random() * len(options))]


def chance(rng: Random, probability: float) -> bool:
    """Toss a coin that says yes with a probability in [0, 1]."""
    return rng.random() < probability


GRAMMARS = {
    "sentiment": Grammar(
        _review,
        opinion,
        2,
        _vocabulary(
            *OPINIONS[0],
            *OPINIONS[1],
            *FILM_PARTS,
            *FILM_KINDS,
            *INTENSIFIERS,
            *FILM_NEGATORS,
            *OPENERS,
            *CLOSERS,
            "the this is was a an i found but and",
        ),
    ),
    "entailment": Grammar(
        _scene,
        relation,
        3,
        _vocabulary(
            *WIDER,
            *COUNTS,
            *LOOKS,
            *REASONS,
            *SCENE_NEGATORS,
            "some the are is in",
        ),
    ),
}
