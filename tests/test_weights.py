"""Weights and tokenizers that do not belong together: each is one line before any training."""

import json
import warnings
from types import SimpleNamespace

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from dpexp import cli
from dpexp.data.text import Tokenizer
from dpexp.models.vocabulary import require_vocabulary
from dpexp.types import ConfigError
from tests.texts import (
    VOCABULARY,
    WORDS,
    from_hub,
    save_glue,
    save_model,
    save_tokenizer,
    texts,
    tiny,
)

KINDS = ("bert", "roberta")


@pytest.fixture(params=KINDS)
def saved(request, tmp_path):
    """A model's folder, the root above it, and its kind."""
    save_model(tmp_path, request.param)
    return tmp_path / "tiny" / request.param, tmp_path, request.param


def change(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def renamed(folder, rename):
    path = folder / "model.safetensors"
    save_file({rename(k): v for k, v in load_file(path).items()}, path, metadata={"format": "pt"})


def refused(kind, root, **changes):
    with pytest.raises(ConfigError) as raised:
        from_hub(kind, root, **changes)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("is_prefixed", [False, True])
def test_a_config_with_fewer_layers_drops_no_weight_in_silence(saved, is_prefixed):
    folder, root, kind = saved
    if is_prefixed:  # as a model with a head on top has them
        renamed(folder, lambda name: f"{kind}.{name}")
    from_hub(kind, root)
    change(folder / "config.json", num_hidden_layers=1)
    said = refused(kind, root)
    assert "16 more are there" in said and "encoder.layer.1.attention" in said
    assert "num_hidden_layers" in said and str(folder) in said


@pytest.mark.parametrize(
    "extra", ["encoder.layer.0.adapter.weight", "embeddings.token_names.weight"]
)
def test_weights_between_the_encoders_own_are_not_dropped(saved, extra):
    folder, root, kind = saved
    path = folder / "model.safetensors"
    save_file({**load_file(path), extra: torch.zeros(2)}, path, metadata={"format": "pt"})
    assert f"1 more are there, {extra} among them" in refused(kind, root)


def test_a_head_on_top_and_old_position_numbers_are_not_missed(saved):
    folder, root, kind = saved
    path = folder / "model.safetensors"
    more = {"lm_head.bias": torch.zeros(2), "cls.predictions.bias": torch.zeros(2)}
    more["embeddings.position_ids"] = torch.arange(9)[None]
    save_file({**load_file(path), **more}, path, metadata={"format": "pt"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_hub(kind, root)


@pytest.mark.parametrize(
    ("setting", "value", "name"),
    [
        ("intermediate_size", 20, "encoder.layer.0.intermediate.dense.bias"),
        ("vocab_size", VOCABULARY + 9, "embeddings.word_embeddings.weight"),
        ("vocab_size", VOCABULARY - 9, "embeddings.word_embeddings.weight"),
        ("max_position_embeddings", 30, "embeddings.position_embeddings.weight"),
    ],
)
def test_weights_of_another_shape_are_named_with_both_shapes(saved, setting, value, name):
    folder, root, kind = saved
    shape = tuple(load_file(folder / "model.safetensors")[name].shape)
    change(folder / "config.json", **{setting: value})
    said = refused(kind, root)
    assert name in said and str(value) in said and str(shape) in said


def test_a_classifier_that_lacks_berts_pooler_says_that_it_begins_with_random_numbers(tmp_path):
    save_model(tmp_path, "bert")
    path = tmp_path / "tiny" / "bert" / "model.safetensors"
    weights = {k: v for k, v in load_file(path).items() if not k.startswith("pooler.")}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_hub("bert", tmp_path, head_layers=2)
        save_file(weights, path, metadata={"format": "pt"})
        from_hub("bert", tmp_path, head_layers=1)  # which has no use for one
    with pytest.warns(UserWarning, match="lack BERT's pooler: the classifier's first layer"):
        from_hub("bert", tmp_path, head_layers=2)


# Tokenizers


def test_a_tokenizer_with_more_ids_than_the_embedding_has_rows_is_one_line(tmp_path):
    """It is the tokenizer's ids that count: whether a text holds one is not looked at."""
    save_model(tmp_path, "bert", longest=24)
    save_glue(tmp_path, "sst2", {"train": 40, "validation": 12})
    words = ["task=sst2", "model=bert", "model.repo=tiny/bert", "method=dpsgd", "eps=8"]
    words += [f"data_root={tmp_path}", f"model_root={tmp_path}", "task.dataset_size=40"]
    words += ["task.max_length=16", "profile=embedded", "device=cpu"]
    config = cli.compose(words)
    cli.build_parts(config, torch.device("cpu"))
    more = [f"word{k}" for k in range(VOCABULARY)]
    save_tokenizer(tmp_path / "tiny" / "bert", "bert", [*WORDS, *more])
    with pytest.raises(ConfigError) as raised:
        cli.build_parts(config, torch.device("cpu"))
    wanted = len(WORDS) + len(more) + 4
    said = f"at least {wanted} tokens, as many as the tokenizer has; the model's has {VOCABULARY}"
    assert said in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("more", [-1, 0, 1, 100])
def test_an_embedding_may_have_rows_to_spare(more):
    model, some = tiny("bert"), texts("bert", (4, 9))
    held = SimpleNamespace(vocabulary=VOCABULARY + more)
    require_vocabulary(model, some)  # of whom nobody knows
    if more <= 0:
        require_vocabulary(model, held)
        return
    with pytest.raises(ConfigError, match=f"at least {VOCABULARY + more} tokens"):
        require_vocabulary(model, held)


@pytest.mark.parametrize("added", [[], ["<new>"], [f"<new{k}>" for k in range(50)]])
def test_added_tokens_count(tmp_path, added):
    save_model(tmp_path, "bert")
    folder = tmp_path / "tiny" / "bert"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(added)
    tokenizer.save_pretrained(folder)
    loaded = Tokenizer.load("tiny/bert", str(tmp_path), 16, "sst2")
    assert loaded.vocabulary == len(WORDS) + 4 + len(added)


def test_a_tokenizer_without_a_padding_token_is_one_line_with_the_remedy(saved):
    folder, root, kind = saved
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        path = folder / name
        if path.is_file():
            settings = json.loads(path.read_text())
            path.write_text(json.dumps({k: v for k, v in settings.items() if k != "pad_token"}))
    change(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    with pytest.raises(ConfigError) as raised:
        Tokenizer.load(f"tiny/{kind}", str(root), 16, "sst2")
    assert "a padding token" in str(raised.value) and "pad_token in its" in str(raised.value)
    assert "\n" not in str(raised.value)
