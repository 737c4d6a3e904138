"""The two generated tasks of texts."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dpexp import cli
from dpexp.data.grammar import (
    CONTRADICTION,
    ENTAILMENT,
    GRAMMARS,
    NEUTRAL,
    draw,
    generated,
    opinion,
    phrases,
    relation,
)
from dpexp.types import ConfigError
from tests.marks import few
from tests.runs import execute, of
from tests.texts import real_model

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("sentiment", "entailment")
FINGERPRINTS = {
    "sentiment": "c364c0fef56dffe28bc4a52b8aa0bd7079d0332dcb402352675a498095b7e2fd",
    "entailment": "4c55e68478cea8bff0ffad5bc2ecc39dcd206465ece65aa72127e8b30cb4f87a",
}


WRITTEN = {
    "sentiment": "042f8bdfc252a06167fd7ba0c5f2e1efaee07a6f6aa0047e0d027c502cb836b1",
    "entailment": "dd1e13107f136d6d74cb45a262552845ee1ee0648d71b044051eb071731b6389",
    "public sentiment": "fec56d65901c90888450a04f34ca0d63d1312a65d3987273c52b0482c1ed0f2a",
    "public entailment": "c9e0efdff0260f56cae63b292e0ed97b0e0e81516c9f5ab9c220782e3694f30b",
    "film_reviews": "3dc7c9e1ffa43130cab418aa182986970d27ddb9951516da814eaa93935f0a5c",
}
"""sha256 of what each language writes with the settings of conf/, as JSON."""


@pytest.fixture
def made(conf):
    """Gives a task of few texts, in its own words unless told otherwise."""

    def make(task, **changes):
        few = {"dataset_size": 300, "test_size": 90, "tokenizer": None}
        return generated(**{**conf(task), **few, **changes})

    return make


def spoken(task, row):
    """Read a training example back, as its texts between the special words."""
    words, length = GRAMMARS[task.name].words, int(task.train.encoded.lengths[row])
    return " ".join(words[i] for i in task.train.encoded.ids[row, :length])


@pytest.mark.parametrize("name", few(NAMES, [*NAMES][:1]))
def test_texts_are_the_same_everywhere_and_of_all_classes_alike(conf, name):
    task = generated(**conf(name, tokenizer=None))
    assert task.fingerprint == FINGERPRINTS[name]
    for part in (task.train, task.test):
        counts = part.targets.bincount(minlength=task.num_classes)
        assert counts.max() - counts.min() <= 1
    assert task.delta < 1 / task.dataset_size == 1 / len(task.train)
    small = {"tokenizer": None, "dataset_size": 60, "test_size": 30}
    first, other = (generated(**conf(name, **small, data_seed=seed)) for seed in (0, 1))
    assert first.fingerprint != other.fingerprint


def written(name):
    if name == "film_reviews":
        return phrases(20_000, 0)
    is_public, task = name.startswith("public"), name.split()[-1]
    return draw(GRAMMARS[task], f"{name} 0", *([2000] if is_public else [1000, 16_000]))


@pytest.mark.parametrize("name", WRITTEN)
def test_every_text_is_the_one_that_records_of_runs_are_of(name):
    text = json.dumps(written(name))
    assert hashlib.sha256(text.encode()).hexdigest() == WRITTEN[name]


@pytest.mark.long
def test_texts_do_not_depend_on_how_a_process_orders_its_sets():
    code = (
        "from dpexp.data.grammar import GRAMMARS, draw\n"
        "for grammar in GRAMMARS.values(): print(grammar.words, draw(grammar, 'any', 5, 20))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in "12"
    }
    assert len(said) == 1 and said.pop()


@pytest.mark.parametrize(
    ("sentence", "label"),
    [
        ("the story is funny", 1),
        ("the story is very dull", 0),
        ("the story is not funny", 0),
        ("this was hardly a dull film", 1),
        ("i found the cast never very charming", 0),
        ("the story is funny but the cast is dull", 0),
        ("the story is dull but the cast is not boring in every scene", 1),
        ("in short the story is not funny and the cast is dull", 0),
        ("the story is not dull and the cast is superb", 1),
        ("the story is funny and the cast is dull", None),
        ("the story is for two hours", None),
    ],
)
def test_an_opinion_follows_from_negation_and_contrast(sentence, label):
    assert opinion(sentence) == label


@pytest.mark.parametrize(
    ("hypothesis", "label"),
    [
        ("some children are outside", ENTAILMENT),
        ("the boys run", ENTAILMENT),
        ("some people are moving", ENTAILMENT),
        ("some people are not resting", ENTAILMENT),
        ("nobody is inside", ENTAILMENT),
        ("the boys are outside to win a prize", NEUTRAL),
        ("some people are moving for the first time", NEUTRAL),
        ("the boys are inside", CONTRADICTION),
        ("the boys dance", CONTRADICTION),
        ("the girls are outside", CONTRADICTION),
        ("some animals run", CONTRADICTION),
        ("nobody is moving", CONTRADICTION),
        ("the boys are not outside", CONTRADICTION),
        ("the boys are inside because they are happy", CONTRADICTION),
    ],
)
def test_a_relation_follows_from_what_words_include(hypothesis, label):
    assert relation("two young boys run in the park", hypothesis) == label


def test_what_is_narrower_than_the_premise_is_open():
    assert relation("two children run in the park", "the boys run") == NEUTRAL
    assert relation("two children run", "the children are outside") == NEUTRAL


@pytest.mark.parametrize("name", NAMES)
def test_labels_are_what_the_texts_say_and_no_test_text_is_trained_on(name):
    grammar = GRAMMARS[name]
    test, train = draw(grammar, "any", 200, 1000)
    for texts, labels in (test, train):
        assert tuple(grammar.read(*text) for text in texts) == labels
        assert all(3 <= len(text.split()) <= 24 for texts_ in texts for text in texts_)
    assert not set(test[0]) & set(train[0])
    assert draw(grammar, "any", 200, 500)[0] == test  # whatever the training set's size
    spoken = {
        word for texts, _ in (test, train) for text in texts for word in " ".join(text).split()
    }
    assert spoken == set(grammar.words[3:])


def test_a_sentence_lies_between_its_special_words(made):
    task = made("sentiment")
    ((sentence,), *_), _ = draw(GRAMMARS["sentiment"], "sentiment 0", 90, 300)[1]
    assert spoken(task, 0) == f"[cls] {sentence} [sep]"
    assert torch.equal(task.train.encoded.seconds, task.train.encoded.lengths)
    assert task.train.batch(torch.arange(300)).inputs[:, 2].sum() == 0
    assert task.input_shape == (3, 32) and task.train.longest == 32


def test_a_pair_says_where_its_second_text_begins(made):
    task = made("entailment")
    ((premise, hypothesis), *_), _ = draw(GRAMMARS["entailment"], "entailment 0", 90, 300)[1]
    assert spoken(task, 0) == f"[cls] {premise} [sep] {hypothesis} [sep]"
    for row in range(300):
        second = int(task.train.encoded.seconds[row])
        assert spoken(task, row).split().index("[sep]") + 1 == second
    ids, is_token, is_second = task.train.batch(torch.tensor([0])).inputs[0]
    words = GRAMMARS["entailment"].words
    assert [words[i] for i in ids[is_second == 1]] == [*hypothesis.split(), "[sep]"]
    assert is_token.all()


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"vocabulary": 40}, r"Expected task.vocabulary=57, .* of sentiment; got 40. Set"),
        ({"max_length": 12}, r"Expected task.max_length >= \d+, .* of sentiment; got 12. Set"),
        ({"test_size": 0}, "Expected task.test_size and .* >= 1; got 0 and 300. Set both."),
        ({"name": "sentimental"}, "Expected task.name .* Did you mean sentiment?"),
    ],
)
def test_settings_that_the_words_do_not_bear_out_are_one_line(made, changes, line):
    with pytest.raises(ConfigError, match=line) as caught:
        made("sentiment", **changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_pretrained_model_reads_the_texts_with_its_own_tokenizer(made, name):
    repo = cli.compose([f"task={name}", "method=rgp", "model=minilm"])["task"]["tokenizer"]
    task = made(name, tokenizer=repo, model_root=real_model(repo))
    own, (ids, lengths, seconds) = made(name), task.train.encoded
    assert torch.equal(task.train.targets, own.train.targets)
    # These words are common ones: a word is a wordpiece nearly always.
    assert (lengths - own.train.encoded.lengths).float().mean() < 2
    assert (lengths >= own.train.encoded.lengths).all()
    assert ids.max() > len(GRAMMARS[name].words)
    has_second = seconds < lengths
    assert has_second.all() if name == "entailment" else not has_second.any()


@pytest.mark.long
def test_a_run_learns_and_says_which_texts_it_saw(tmp_path):
    words = ["method=dpsgd", "task=sentiment", "profile=embedded", "device=cpu"]
    few = ["task.dataset_size=1000", "task.test_size=200", "batch_size=250", "epochs=2"]
    lines, result, privacy = of(execute(tmp_path, *words, *few))
    assert result["steps"] == privacy["noise_draws"] == 8 and result["model"] == "bert_tiny"
    assert privacy["dataset_size"] == 1000 and privacy["epsilon"]
    assert lines[-1]["step"] == 8 and 0 <= lines[-1]["test_accuracy"] <= 100


@pytest.mark.long
def test_the_tiny_model_learns_composition_without_privacy(tmp_path):
    """More than words alone give away: a linear model of words stays under 90%."""
    words = ["method=nonprivate", "task=sentiment", "profile=embedded", "device=cpu"]
    few = ["task.dataset_size=6000", "task.test_size=500", "optimizer.lr=5e-3", "epochs=4"]
    _, result, _ = of(execute(tmp_path, *words, *few))
    assert result["test_accuracy"] > 92
