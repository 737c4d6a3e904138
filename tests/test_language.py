"""Language models: what they compute, how they are loaded, what they refuse, and whole runs."""

import hashlib
import json
import shutil
import warnings
from pathlib import Path

import datasets
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from dpexp import cli
from dpexp.models.language import TextClassifier, from_scratch, pretrained
from dpexp.types import ConfigError, MissingData
from tests.marks import some_long
from tests.runs import execute, of
from tests.texts import (
    CLASSES,
    KINDS,
    LONGEST,
    SHAPE,
    VOCABULARY,
    from_hub,
    real_model,
    save_glue,
    save_model,
    texts,
    tiny,
)

LENGTHS = (9, 4, 7, 2, 5)
EVERY = torch.arange(len(LENGTHS))
SPLITS = {"train": 40, "validation": 12}
SHORT = ["profile=quick", "device=cpu", "batch_size=20", "epochs=1", "micro_batch=4"]


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """Models and GLUE's texts, laid out like hub snapshots below one folder."""
    root = tmp_path_factory.mktemp("hub")
    for architecture in ("bert", "roberta"):
        save_model(root, architecture, longest=24)
    for task in ("sst2", "qnli", "qqp"):
        save_glue(root, task, SPLITS)
    save_glue(root, "mnli", {"train": 40, "validation_matched": 12, "validation_mismatched": 16})
    return root


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path):
    """No test reads the hub, its cache, or what a real run has tokenised."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("DPEXP_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def words(hub):
    """Gives the words of a tiny run on a task: a model from disk on the texts beside it."""

    def of_task(task, *more, model="bert"):
        here = ["model.repo=tiny/bert"] if model in ("bert", "minilm") else []
        here += [f"data_root={hub}", f"model_root={hub}"]
        size = ["task.dataset_size=40", "task.max_length=16"]
        return [f"task={task}", f"model={model}", *here, *size, *SHORT, *more]

    return of_task


def the_line(*words):
    """Return the one line of a mistake, and whether it came before any training."""
    with pytest.raises(ConfigError) as raised:
        cli.build_parts(cli.compose(words), torch.device("cpu"))
    message = str(raised.value)
    assert "\n" not in message
    return message


# The model


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_do_not_depend_on_padding_or_on_other_texts(kind):
    model, examples = tiny(kind), texts(kind, LENGTHS)
    together = model(examples.batch(EVERY).inputs)
    assert together.shape == (len(LENGTHS), CLASSES)
    for index in range(len(LENGTHS)):
        alone = model(examples.batch(torch.tensor([index])).inputs)
        torch.testing.assert_close(alone[0], together[index], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_the_second_text_counts_where_the_model_has_segments(kind):
    model, inputs = tiny(kind), texts(kind, LENGTHS).batch(EVERY).inputs
    as_one = inputs.clone()
    as_one[:, 2] = 0
    assert torch.allclose(model(inputs), model(as_one)) == (kind == "roberta")


def test_the_mean_is_over_tokens_alone_and_of_one_length():
    model, inputs = tiny("minilm"), texts("minilm", LENGTHS).batch(EVERY).inputs
    ids, mask, segments = inputs.unbind(1)
    place = torch.arange(ids.shape[1]).expand_as(ids)
    states = model.encoder(
        input_ids=ids, attention_mask=mask, token_type_ids=segments, position_ids=place
    ).last_hidden_state
    means = [some[:length].mean(0) for some, length in zip(states, LENGTHS, strict=True)]
    features = torch.stack([mean / mean.norm() for mean in means])
    torch.testing.assert_close(model(inputs), model.head.out(features), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_a_loaded_model_is_what_transformers_makes_of_the_files(kind, tmp_path):
    encoder = save_model(tmp_path, kind).double().eval()
    model = from_hub(kind, tmp_path).eval()
    batch = texts(kind, LENGTHS).batch(EVERY)
    ids, mask, segments = batch.inputs.unbind(1)
    more = {"token_type_ids": segments} if kind == "bert" else {}
    out = encoder(input_ids=ids, attention_mask=mask, **more)
    if kind == "bert":  # its pooler is the classifier's first layer
        expected = model.head.out(out.pooler_output)
    else:
        expected = model.head.out(torch.tanh(model.head.dense(out.last_hidden_state[:, 0])))
        assert not torch.equal(model.head.dense.weight, encoder.pooler.dense.weight)
    torch.testing.assert_close(model(batch.inputs), expected, rtol=1e-10, atol=1e-12)
    assert not any("pooler" in name for name, _ in model.named_parameters())


@pytest.mark.parametrize("architecture", ["bert", "roberta"])
def test_loading_says_nothing_of_a_pretraining_head(architecture, hub, tmp_path, capfd, caplog):
    folder = tmp_path / "tiny" / architecture
    shutil.copytree(hub / "tiny" / architecture, folder)
    config = transformers.AutoConfig.from_pretrained(folder)
    whole = transformers.AutoModelForMaskedLM.from_config(config)
    whole.save_pretrained(folder)
    transformers.logging.set_verbosity_warning()  # its default, which a test before may have left
    transformers.logging.enable_progress_bar()
    transformers.logging.add_handler(caplog.handler)
    capfd.readouterr()
    model = from_hub(architecture, tmp_path)
    transformers.logging.remove_handler(caplog.handler)
    assert capfd.readouterr() == ("", "") and caplog.text == ""
    inner = whole.base_model.double()
    name = "embeddings.word_embeddings.weight"
    assert torch.equal(model.encoder.get_parameter(name), inner.get_parameter(name))


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_dropout_is_on_in_a_model_as_it_is_built_or_loaded(kind, tmp_path):
    save_model(tmp_path, kind)
    inputs = texts(kind, LENGTHS).batch(EVERY).inputs
    for model in (tiny(kind, dropout=0.3), from_hub(kind, tmp_path, dropout=0.3)):
        off = {name for name, module in model.named_modules() if not module.training}
        assert off == set()
        model.head.eval()  # what is random now is the encoder
        assert not torch.equal(model(inputs), model(inputs))
        model.eval()
        assert torch.equal(model(inputs), model(inputs))
    for model in (tiny(kind), from_hub(kind, tmp_path)):
        assert torch.equal(model(inputs), model(inputs))


def test_the_seed_decides_the_weights_that_are_not_loaded(words):
    heads = []
    for seed in (0, 0, 1):
        config = cli.compose(words("sst2", "method=rgp", f"seed={seed}"))
        heads.append(cli.build_parts(config, torch.device("cpu")).model.head.out.weight)
    assert torch.equal(heads[0], heads[1]) and not torch.equal(heads[0], heads[2])


def test_a_result_names_the_weights_that_it_began_with(words, hub, tmp_path):
    config = cli.compose(words("sst2", "method=linear", f"results={tmp_path}"))
    result = json.loads((cli.execute(config) / "result.json").read_text())
    weights = (Path(hub) / "tiny" / "bert" / "model.safetensors").read_bytes()
    named = result["pretrained_sha256"]["tiny/bert"]
    assert named["model.safetensors"] == hashlib.sha256(weights).hexdigest()


# What is refused


def test_linear_on_bert_trains_the_classification_layer_and_not_its_pooler(words):
    config = cli.compose(words("sst2", "method=linear"))
    parts = cli.build_parts(config, torch.device("cpu"))
    head = {name for name, _ in parts.model.head.named_parameters()}
    assert head == {"dense.weight", "dense.bias", "out.weight", "out.bias"}
    assert set(parts.method.trainable(parts.model)) == {"head.out.weight", "head.out.bias"}


def test_texts_longer_than_the_models_positions_are_refused(words):
    for model, repo, room in (("bert", "tiny/bert", 24), ("roberta", "tiny/roberta", 24)):
        more = (f"model.repo={repo}", "method=rgp")
        said = the_line(*words("sst2", *more, "task.max_length=25", model=model))
        assert f"task.max_length <= {room}" in said and "got 25" in said and repo in said
        config = cli.compose(words("sst2", *more, "task.max_length=24", model=model))
        parts = cli.build_parts(config, torch.device("cpu"))
        filled = torch.ones(1, 3, 24, dtype=torch.int64)
        filled[:, 0] = 5
        assert parts.model(filled).isfinite().all()  # and the longest there may be does fit


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_of_the_longest_length_fits_a_model_from_scratch(kind):
    assert tiny(kind)(texts(kind, [LONGEST]).batch(torch.tensor([0])).inputs).isfinite().all()


@pytest.mark.parametrize(
    ("task", "model", "said"),
    [
        ("sst2", "wrn28_4", "Set model to minilm, bert, roberta"),
        ("sst2", "linear", "Set model to minilm, bert, roberta"),
        ("mnli", "cnn", "Set model to minilm, bert, roberta"),
        ("digits", "minilm", "Expected another model for task digits"),
        ("digits", "roberta", "Expected another model for task digits"),
    ],
)
def test_a_model_that_does_not_fit_the_task_is_one_line(task, model, said, hub):
    roots = [f"data_root={hub}", f"model_root={hub}"]
    message = the_line("method=dpsgd", f"task={task}", f"model={model}", *roots, *SHORT)
    assert said in message and f"task {task}" in message


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pooling": "last"}, "model.pooling"),
        ({"precision": "float16"}, "model.precision"),
        ({"head_layers": 3}, "model.head_layers"),
        ({"feature_norm": 0.0}, "model.feature_norm above 0"),
        ({"head_std": -1.0}, "model.head_std above 0"),
        ({"architecture": "gpt2"}, "model.architecture"),
        ({"attention_heads": 3}, "model.attention_heads=3"),
    ],
)
def test_a_value_outside_its_range_is_refused_by_name(changes, said):
    with pytest.raises(ConfigError, match=said):
        tiny("bert", **changes)


def test_another_attention_is_refused_with_the_nearest_word(hub):
    with pytest.raises(ConfigError, match=r"model\.attention .* Did you mean eager\?"):
        from_hub("bert", hub, attention="eagre")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model_type": "electra"}, "model_type to be one of bert, roberta; got .*electra"),
        ({"is_decoder": True}, "an encoder; tiny/bert is a decoder"),
    ],
)
def test_an_encoder_of_another_kind_is_refused(changed, said, hub, tmp_path):
    shutil.copytree(hub / "tiny" / "bert", tmp_path / "tiny" / "bert")
    path = tmp_path / "tiny" / "bert" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    with pytest.raises(ConfigError, match=said):
        from_hub("bert", tmp_path)


def test_a_missing_model_is_one_line_that_says_where_to_put_it(tmp_path):
    with pytest.raises(MissingData, match="HF_HUB_OFFLINE is set") as raised:
        from_hub("bert", tmp_path)
    message = str(raised.value)
    assert str(tmp_path / "tiny" / "bert") in message and "model_root" in message
    assert "\n" not in message


def test_weights_that_are_damaged_are_one_line(hub, tmp_path):
    shutil.copytree(hub / "tiny" / "bert", tmp_path / "tiny" / "bert")
    path = tmp_path / "tiny" / "bert" / "model.safetensors"
    for content in (path.read_bytes()[:500], b"", None):
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises(ConfigError, match="Expected readable weights in") as raised:
            from_hub("bert", tmp_path)
        assert str(path.parent) in str(raised.value) and "\n" not in str(raised.value)


def test_a_weight_that_is_lacking_is_named_and_not_drawn(hub, tmp_path):
    shutil.copytree(hub / "tiny" / "bert", tmp_path / "tiny" / "bert")
    path = tmp_path / "tiny" / "bert" / "model.safetensors"
    weights = load_file(path)
    for name in [name for name in weights if name.startswith("pooler.")]:
        del weights[name]  # which many have none of
    save_file(weights, path, metadata={"format": "pt"})
    from_hub("bert", tmp_path)
    name = "encoder.layer.1.attention.output.dense.weight"
    del weights[name]
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match="it lacks 1, ") as raised:
        from_hub("bert", tmp_path)
    assert name in str(raised.value) and "\n" not in str(raised.value)


# What was seen in pretraining


@pytest.mark.parametrize("task", ["mnli", "qqp", "qnli", "sst2"])
def test_a_task_seen_in_pretraining_is_warned_of(task, words):
    config = cli.compose(words(task, "method=rgp", model="minilm"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cli.build_parts(config, torch.device("cpu"))
    told = [
        str(w.message) for w in caught if "is no evidence about private learning" in str(w.message)
    ]
    if task == "sst2":
        assert told == []
    else:
        (line,) = told
        assert f"its accuracy on {task}" in line and "tiny/bert was pretrained on" in line


# Whole runs


@pytest.mark.parametrize("method", some_long(["rgp", "lsg", "dpsgd"], ["rgp"]))
def test_mnlis_record_has_both_test_sets_and_their_mean(method, words, tmp_path):
    directory = execute(tmp_path, *words("mnli", f"method={method}", "eps=8", "seed=1"))
    lines, result, privacy = of(directory)
    matched, mismatched = result["test_accuracy"], result["test_accuracy_mm"]
    assert result["test_accuracy_mean"] == pytest.approx((matched + mismatched) / 2)
    for value, count in ((matched, 12), (mismatched, 16)):
        right = value * count / 100
        assert right == pytest.approx(round(right)) and 0 <= right <= count
    for name in ("test_accuracy", "test_accuracy_mm", "test_accuracy_mean"):
        assert lines[-1][name] == result[name]
    assert privacy["noise_draws"] == privacy["steps"] == result["steps"] == 2
    assert privacy["epsilon"]["prv"] <= 8
    assert ("encoder.embeddings.word_embeddings.weight" in privacy["frozen"]) == (method != "dpsgd")


@pytest.mark.long
def test_a_large_model_runs_in_bfloat16_and_with_checkpointing_to_the_same_bits(words, tmp_path):
    more = ["method=rgp", "eps=8", "model.repo=tiny/roberta", "model.precision=bfloat16"]
    lines = []
    for flag in ("true", "false"):
        said = words("sst2", *more, f"model.checkpointing={flag}", model="roberta_large")
        directory = execute(tmp_path / flag, *said)
        lines.append(of(directory)[0])
    assert lines[0] == lines[1]
    assert of(directory)[2]["epsilon"]["prv"] <= 8


def test_a_task_with_one_test_set_has_no_mean(words, tmp_path):
    _, result, _ = of(execute(tmp_path, *words("sst2", "method=rgp", "eps=8")))
    assert "test_accuracy" in result
    assert "test_accuracy_mm" not in result and "test_accuracy_mean" not in result


@pytest.mark.long
def test_a_model_learns_which_words_are_good(words, tmp_path, hub):
    """Labels that follow one word: what the tape says of attention and embeddings is of use."""
    rows = save_glue(tmp_path, "sst2", {"train": 60, "validation": 30})
    for split, some in rows.items():
        some["label"] = [int("good" in text.split()) for text in some["sentence"]]
        path = tmp_path / "nyu-mll" / "glue" / "sst2" / f"{split}-00000-of-00001.parquet"
        datasets.Dataset.from_dict(some).to_parquet(path)
    more = ["method=nonprivate", f"data_root={tmp_path}", "task.dataset_size=60", "epochs=15"]
    more += ["optimizer.lr=0.01", "model.dropout=0", "eval_every=15", "batch_size=20"]
    _, result, _ = of(execute(tmp_path, *words("sst2", *more)))
    labels = rows["validation"]["label"]
    assert 100 * max(sum(labels), 30 - sum(labels)) / 30 < 90 <= result["test_accuracy"]


# The real one


def test_the_real_minilm_gives_its_known_shape():
    settings = cli.compose(["method=bitfit", "task=sst2", "model=minilm"])["model"]
    for key in ("_target_", "name", "tokenizer", "head", "model_root"):
        settings.pop(key)
    model = pretrained(
        **settings,
        model_root=real_model(settings["repo"]),
        num_classes=2,
        task="sst2",
        max_length=128,
    )
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    assert sum(n for name, n in sizes.items() if name.startswith("encoder.")) == 22_565_376
    assert {n for n in sizes if not n.startswith("encoder.")} == {
        "head.out.weight",
        "head.out.bias",
    }
    assert isinstance(model, TextClassifier) and next(model.parameters()).dtype == torch.float32
    inputs = torch.tensor([[[101, 2023, 3185, 2003, 2307, 102], [1] * 6, [0] * 6]])
    assert model.eval()(inputs).isfinite().all()


def test_a_model_from_scratch_has_the_shape_asked_for():
    settings = {**SHAPE, **KINDS["bert"], "vocabulary": VOCABULARY, "dropout": 0.0}
    settings |= {"feature_norm": 1.0, "head_std": 0.02, "checkpointing": False}
    model = from_scratch(**settings, precision="float32", num_classes=5, max_length=LONGEST)
    table = model.encoder.embeddings.word_embeddings.weight
    assert table.shape == (VOCABULARY, SHAPE["width"])
    assert len(model.encoder.encoder.layer) == SHAPE["layers"]
    assert model.encoder.encoder.layer[0].intermediate.dense.out_features == SHAPE["feed_forward"]
    assert model.head.out.out_features == 5


@pytest.mark.parametrize("size", [0, -1])
@pytest.mark.parametrize(
    "name", ["layers", "width", "attention_heads", "feed_forward", "vocabulary"]
)
def test_a_size_below_one_is_refused_by_its_name(name, size):
    with pytest.raises(ConfigError, match=rf"model.{name} >= 1; got {size}. Set model.{name}"):
        tiny(**{name: size})
