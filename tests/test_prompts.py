"""A classifier that begins with the features of texts."""

import copy

import pyarrow.parquet
import pytest
import torch

from dpexp import cli
from dpexp.data.public_texts import film_reviews
from dpexp.data.task import assemble
from dpexp.data.text import Encoded, Texts, Tokenizer
from dpexp.models.language import pretrained
from dpexp.training.judging import evaluate
from dpexp.training.prompts import begin_with
from dpexp.training.warm_start import fit
from dpexp.types import ConfigError
from tests.texts import LONGEST, real_model, tiny

TEXTS = [["bad film", "dull"], ["the plot is very good", "a fine film"]]


def begun(tiny_models, texts=TEXTS, kind="minilm", **changes):
    model = tiny(kind, num_classes=2, **changes)
    begin_with(
        model, 2, name="here", texts=texts, scale=3.0, tokenizer="tiny/bert", model_root=tiny_models
    )
    return model


def test_the_classifier_is_the_texts_mean_features_centred_between_the_classes(tiny_models):
    model = begun(str(tiny_models))
    words = Tokenizer.load("tiny/bert", str(tiny_models), LONGEST, "here")

    def features(text):  # one at a time, by the way that a task's texts take
        one = Texts(Encoded(*words.encode([text])), torch.tensor([0]), LONGEST)
        return model.features(one.batch(torch.tensor([0])).inputs)[0]

    with torch.no_grad():
        means = torch.stack([sum(map(features, some)) / len(some) for some in TEXTS])
        middle = means.mean(0)
        torch.testing.assert_close(model.head.out.weight, 3.0 * (means - middle))
        assert model.head.out(middle).abs().max() < 1e-6
        assert model.head.out(means).argmax(1).tolist() == [0, 1]


def test_dropout_does_not_touch_it_and_the_model_goes_on_training(tiny_models):
    once, again = (begun(str(tiny_models), dropout=0.5) for _ in range(2))
    assert once.training
    torch.testing.assert_close(once.head.out.weight, again.head.out.weight)


@pytest.mark.parametrize(
    ("kind", "texts", "line"),
    [
        ("bert", TEXTS, "one layer for prompts=here"),
        ("minilm", TEXTS[:1], r"each of 2 classes.*\[2\]"),
        ("minilm", [["bad"], []], r"each of 2 classes.*\[1, 0\]"),
    ],
)
def test_what_cannot_be_begun_with_is_said_in_a_line(kind, texts, line, tiny_models):
    with pytest.raises(ConfigError, match=line):
        begun(str(tiny_models), texts, kind)


def test_a_model_without_a_tokenizer_is_said_in_a_line(tmp_path):
    words = ["method=dpsgd", "task=sentiment", "eps=8", "prompts=film_reviews"]
    with pytest.raises(ConfigError, match="a model with a tokenizer of its own, .*Set model"):
        cli.execute(cli.compose([*words, f"results={tmp_path}"]))


@pytest.fixture(scope="module")
def reviews(real_data_root):
    """MiniLM, begun with film reviews, and a task of real ones."""
    root = real_model("sentence-transformers/all-MiniLM-L6-v2")
    words = ["method=bitfit", "task=sst2", "profile=quick", "prompts=film_reviews"]
    config = cli.compose([*words, f"model_root={root}"])
    model, prompts = (
        {key: value for key, value in config[group].items() if key not in named}
        for group, named in (("model", ("_target_", "name", "tokenizer", "head")), ("prompts", ()))
    )
    prompts.pop("_target_")
    model = pretrained(**model, num_classes=2, task="sst2", max_length=128)
    begin_with(model, 2, **prompts)
    path = real_data_root / "nyu-mll" / "glue" / "sst2" / "validation-00000-of-00001.parquet"
    rows = pyarrow.parquet.ParquetFile(path).read().slice(0, 200).to_pydict()
    tokens = Tokenizer.load(config["model"]["tokenizer"], root, 128, "sst2")
    some = Texts(Encoded(*tokens.encode(rows["sentence"])), torch.tensor(rows["label"]), 128)
    task = assemble(
        "sst2", some, some, num_classes=2, delta=1e-3, dataset_size=200, input_shape=(3, 128)
    )
    return model, task, {"tokenizer": config["model"]["tokenizer"], "model_root": root}


@pytest.mark.long
def test_film_reviews_classify_before_anything_is_learnt(reviews):
    model, task, _ = reviews
    # Half of them are of either class; a random classifier gets 50.
    assert evaluate(model, task.test, torch.device("cpu")) > 65


@pytest.mark.long
def test_a_model_that_has_learnt_our_phrases_alone_tells_real_reviews_apart(reviews):
    model, task, where = reviews
    model = copy.deepcopy(model)
    with torch.no_grad():
        model.head.out.weight.zero_()
        model.head.out.bias.zero_()
    task = film_reviews(task, name="film_reviews", size=320, data_seed=0, **where)
    fit(model, task, name="public", examples=320, batch_size=32, lr=5e-5, head_lr=0.3, head="head")
    # Were the labels the other way round it would get 30 at most.
    assert evaluate(model, task.test, torch.device("cpu")) > 70
