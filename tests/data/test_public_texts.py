"""Public texts, and the model that learns from them first."""

import inspect

import hydra
import pytest
import torch

from dpexp import cli, records
from dpexp.data.grammar import GRAMMARS, SIDES, phrases, words_of
from dpexp.data.public_texts import film_reviews, generated
from dpexp.training.judging import evaluate
from dpexp.training.warm_start import fit
from dpexp.types import ConfigError

CPU = torch.device("cpu")
SENTIMENT = ["task=sentiment", "profile=embedded", "device=cpu"]
FEW = ["task.dataset_size=600", "task.test_size=200", "batch_size=50", "privacy.delta=1e-3"]
BRIEF = ["method=dpsgd", *SENTIMENT, *FEW, "warm_start=public", "warm_start.examples=640"]

WORD_LEVEL = {"tokenizer": None, "model_root": "models"}
COLD = BRIEF[:-2]
ADJECTIVES = [words_of("film_reviews")[side]["adjectives"] for side in SIDES]


def made(words):
    config = cli.compose(words)
    return cli.build_parts(config, CPU)


def text_task(conf_name, **changes):
    node = cli.compose([*SENTIMENT, "method=dpsgd", f"task={conf_name}"])["task"]
    return hydra.utils.instantiate({**node, "dataset_size": 60, "test_size": 20, **changes})


# The phrases


def test_no_word_speaks_for_both_labels():
    bad, good = (words_of("film_reviews")[side] for side in SIDES)
    assert len(bad) == 5 and bad.keys() == good.keys()
    for kind in bad:
        negative, positive = bad[kind], good[kind]
        assert len(negative) == len(set(negative)) and len(positive) == len(set(positive))
        assert not set(negative) & set(positive)


def test_phrases_come_from_the_seed_alone_and_are_of_either_label():
    texts, labels = phrases(2000, 0)
    assert (texts, labels) == phrases(2000, 0)
    assert texts[:300] != phrases(300, 1)[0]
    assert 900 < sum(labels) < 1100
    assert len(set(texts)) > 1500
    assert max(len(text.split()) for text in texts) < 40


@pytest.mark.parametrize("label", [0, 1])
def test_an_adjective_alone_has_the_label_of_its_list(label):
    texts, labels = phrases(4000, 2)
    adjectives = ADJECTIVES[label]
    alone = [given for text, given in zip(texts, labels, strict=True) if text in adjectives]
    assert len(alone) > 20
    assert set(alone) == {label}


@pytest.mark.parametrize("turns", [(" but ", " yet "), ("despite ", "although ", "for all ")])
def test_of_two_unlike_clauses_the_last_has_the_label(turns):
    """Negated words speak for the other side, but they are few."""
    agree = against = 0
    for text, label in zip(*phrases(20_000, 3), strict=True):
        if any(turn in text for turn in turns):
            last = text.replace(" yet ", " but ").rpartition(
                " , " if turns[0] != " but " else " but "
            )[2]
            words = set(last.split())
            agree += len(words & set(ADJECTIVES[label]))
            against += len(words & set(ADJECTIVES[1 - label]))
    assert agree > 300
    assert agree > 5 * against


def test_texts_of_a_pretrained_models_words_are_encoded_by_its_tokenizer(tiny_models):
    task = text_task("sentiment")
    where = {"tokenizer": "tiny/bert", "model_root": str(tiny_models)}
    found = generated(task, name="texts", size=10, data_seed=0, **where).public
    by_words = generated(task, name="texts", size=10, data_seed=0, **WORD_LEVEL).public
    assert found.targets.tolist() == by_words.targets.tolist()
    assert found.encoded.ids.tolist() != by_words.encoded.ids.tolist()


# Sets


@pytest.mark.parametrize("name", ["sentiment", "entailment"])
def test_texts_like_the_tasks_own_have_its_labels(name):
    task = text_task(name)
    found = generated(task, name="texts", size=40, data_seed=0, **WORD_LEVEL)
    grammar, public = GRAMMARS[name], found.public
    for ids, length, label in zip(*public.encoded[:2], public.targets.tolist(), strict=True):
        words = [grammar.words[i] for i in ids[1 : length - 1]]
        texts = " ".join(words).split(" [sep] ")
        assert grammar.read(*texts) == label
    assert found.fingerprint != task.fingerprint
    assert (
        found.fingerprint
        != generated(task, name="texts", size=40, data_seed=1, **WORD_LEVEL).fingerprint
    )


@pytest.mark.parametrize("name", ["texts", "film_reviews"])
def test_settings_are_exactly_what_the_set_takes(name):
    words = ["method=rgp_public", "task=sst2", "profile=quick", f"public={name}"]
    node = cli.compose(words)["public"]
    assert node["name"] == name
    takes = inspect.signature(hydra.utils.get_object(node["_target_"])).parameters
    assert set(node) - {"_target_"} == set(takes) - {"task"}


@pytest.mark.parametrize(
    ("task", "model", "name"),
    [("sst2", "minilm", "film_reviews"), ("sentiment", "bert_tiny", "texts")],
)
def test_methods_and_warm_starts_that_take_public_texts_ask_for_the_tasks_own(task, model, name):
    for words in (["method=rgp_public"], ["method=dpsgd", "warm_start=public"]):
        config = cli.compose([*words, f"task={task}", f"model={model}"])
        assert config["public"]["name"] == name
    both = cli.compose(["method=rgp_public", "warm_start=public", f"task={task}", f"model={model}"])
    assert both["public"]["name"] == name


@pytest.mark.parametrize(
    ("make", "task", "changes", "line"),
    [
        (film_reviews, "sentiment", {}, "one of sst2 .*; got sentiment. Leave public out"),
        (generated, "sentiment", {"size": 0}, r"public\.size >= 1; got 0"),
    ],
)
def test_what_there_are_no_texts_for_is_one_line(make, task, changes, line):
    settings = {"name": "here", "size": 5, "data_seed": 0, **WORD_LEVEL, **changes}
    with pytest.raises(ConfigError, match=line):
        make(text_task(task), **settings)


# The warm start


def test_a_warm_model_knows_the_task_before_the_first_private_step():
    steps = ["warm_start.examples=1920", "warm_start.batch_size=16"]
    rates = ["warm_start.lr=2e-3", "warm_start.head_lr=2e-3"]
    cold, warm = made(COLD), made([*BRIEF, *steps, *rates])
    assert evaluate(cold.model, cold.task.test, CPU) < 60
    assert evaluate(warm.model, warm.task.test, CPU) > 80
    assert warm.model.training
    assert all(weight.grad is None for weight in warm.model.parameters())


def test_a_warm_start_is_drawn_from_the_seed_alone():
    once, again, other = (made([*BRIEF, f"seed={seed}", "model.dropout=0.1"]) for seed in (0, 0, 1))
    for name, weight in once.model.state_dict().items():
        assert torch.equal(weight, again.model.state_dict()[name])
    assert not torch.equal(once.model.head.out.weight, other.model.head.out.weight)


def test_learning_rates_fall_to_a_last_step_above_zero():
    """One step of Adam moves every weight by its learning rate; two by 1 and 1/2 of it."""
    parts = made(COLD)
    public = generated(parts.task, name="texts", size=64, data_seed=0, **WORD_LEVEL)
    before = parts.model.head.out.bias.detach().clone()
    settings = {"name": "here", "batch_size": 32, "lr": 1e-9, "head_lr": 1e-3, "head": "head"}
    fit(parts.model, public, examples=33, **settings)
    moved = (parts.model.head.out.bias.detach() - before).abs()
    torch.testing.assert_close(moved, torch.full((2,), 1e-3), rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["warm_start.examples=3000"], "at least 3000 public examples; got 2000"),
        (["warm_start.batch_size=641"], r"warm_start\.examples >= warm_start\.batch_size"),
        (["warm_start.lr=0.0"], r"got 640, .* Set .*warm_start\.lr .* above 0"),
        (["public=none"], "Expected public data for sentiment"),
    ],
)
def test_a_warm_start_that_cannot_be_is_one_line(words, line):
    with pytest.raises(ConfigError, match=line):
        made([*BRIEF, *words])


def test_images_without_the_tasks_labels_cannot_warm_a_model():
    words = ["method=dpsgd", "task=digits", "profile=embedded", "warm_start=public"]
    with pytest.raises(ConfigError, match="no such labels"):
        made([*words, "warm_start.examples=64"])


def test_the_certificate_names_what_was_learnt_from(tmp_path):
    words = [*BRIEF, "epochs=0.1", f"results={tmp_path}"]
    record = records.read(cli.execute(cli.compose(words)))
    assert record.privacy["public"]["name"] == "texts"
    assert record.privacy["public"]["examples"] == 2000
