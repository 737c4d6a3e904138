"""What `dpexp.train` and model=timm keep is loaded by the model's own library, and by dpexp."""

import pytest
import torch
import transformers

import dpexp
from dpexp.types import ConfigError
from tests.marks import few
from tests.runs import one_thread  # noqa: F401 (a fixture)

TEXTS, TOKENS = 40, 9
SAID = {"method": "dpsgd", "eps": 8, "epochs": 0.5, "batch_size": 20, "lr": 0.5, "device": "cpu"}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def classifier(kind="bert", **more):
    said = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 50}
    said |= {"intermediate_size": 32, "num_labels": 3, "pad_token_id": 0, **NO_DROPOUT}
    config = transformers.AutoConfig.for_model(kind, **said, **more)
    torch.manual_seed(0)
    return transformers.AutoModelForSequenceClassification.from_config(config)


def tokens(seed, count=TEXTS, **changed):
    gen = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, TOKENS + 1, (count, 1), generator=gen)
    lengths[0] = TOKENS
    mask = (torch.arange(TOKENS) < lengths).long()
    second = (torch.arange(TOKENS) >= lengths // 2) * mask
    ids = torch.randint(3, 50, (count, TOKENS), generator=gen) * mask
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": second} | changed


LABELS = torch.arange(TEXTS) % 3
TRAIN, TEST = tokens(0), tokens(1)


def trained(results, model, train, test, **settings):
    return dpexp.train(model, train, test, results=results, settings=settings, **SAID)


@pytest.mark.parametrize("kind", few(["bert", "roberta"], ["bert"]))
def test_a_model_of_transformers_takes_what_its_tokenizer_returns(kind, tmp_path):
    model, parts = classifier(kind), (TRAIN, TEST)
    if kind == "roberta":  # which knows no second text
        parts = tuple({k: v for k, v in each.items() if "type" not in k} for each in parts)
    pairs = [(each, LABELS) for each in parts]
    run = trained(tmp_path, model, *pairs)
    whole = transformers.AutoModelForSequenceClassification.from_pretrained(run.directory).eval()
    with torch.no_grad():
        expected = whole(**parts[1]).logits
    right = 100 * float((expected.argmax(1) == LABELS).float().mean())
    assert run.accuracy == pytest.approx(right)
    other = transformers.AutoModelForSequenceClassification.from_config(model.config)
    for kept in (dpexp.load(run.directory), dpexp.load(run.directory, other)):
        torch.testing.assert_close(kept.outputs(parts[1]), expected, atol=1e-6, rtol=1e-5)
    assert trained(tmp_path, model, *pairs).directory == run.directory


def test_a_model_of_transformers_takes_a_tensor_of_ids(tmp_path):
    ids = [torch.where(each["input_ids"] == 0, 3, each["input_ids"]) for each in (TRAIN, TEST)]
    run = trained(tmp_path, classifier(), *((each, LABELS) for each in ids))
    whole = transformers.AutoModelForSequenceClassification.from_pretrained(run.directory).eval()
    kept = dpexp.load(run.directory)
    with torch.no_grad():
        torch.testing.assert_close(kept.outputs(ids[1]), whole(ids[1]).logits)
        torch.testing.assert_close(run.model(ids[1]), whole(ids[1]).logits)
    again = trained(tmp_path, classifier(), *((each, LABELS) for each in ids))
    assert again.directory == run.directory


BAD = {
    "no ids": ({"attention_mask": TRAIN["attention_mask"]}, "a dict of input_ids"),
    "labels among them": ({**TRAIN, "labels": LABELS}, "got .*labels"),
    "padded on the left": (tokens(0, attention_mask=TRAIN["attention_mask"].flip(1)), "padding_s"),
    "an empty text": (tokens(0, attention_mask=TRAIN["attention_mask"] * 0), "at least one 1"),
    "a mask of floats": (tokens(0, attention_mask=TRAIN["attention_mask"] * 1.0), "whole numbers"),
    "three texts": (
        tokens(0, token_type_ids=(torch.arange(TOKENS) % 2).expand(TEXTS, -1)),
        "token_type_ids of zeros and then ones",
    ),
    "other shapes": (tokens(0, attention_mask=torch.ones(TEXTS, 2).long()), "of one shape"),
    "lists of other lengths": (tokens(0, input_ids=[[1, 2], [3]]), "input_ids as a tensor"),
}


@pytest.mark.parametrize(("inputs", "line"), BAD.values(), ids=BAD)
def test_a_dict_that_is_no_tokens_is_one_line(inputs, line, tmp_path):
    with pytest.raises(ConfigError, match=line) as refused:
        trained(tmp_path, classifier(), (inputs, LABELS), (TEST, LABELS))
    assert "\n" not in str(refused.value)


def test_tokens_and_models_that_do_not_fit_each_other_are_one_line(tmp_path):
    with pytest.raises(ConfigError, match="model of transformers .* got Linear"):
        trained(tmp_path, torch.nn.Linear(9, 3), (TRAIN, LABELS), (TEST, LABELS))
    with pytest.raises(ConfigError, match="both as a dict of tokens"):
        trained(tmp_path, classifier(), (TRAIN, LABELS), (TEST["input_ids"], LABELS))
    with pytest.raises(ConfigError, match=r"targets of shape \[40\]"):
        trained(tmp_path, classifier(), (TRAIN, LABELS[:5]), (TEST, LABELS))


@pytest.mark.long
@pytest.mark.parametrize("name", few(["test_efficientnet", "test_resnet"], ["test_efficientnet"]))
def test_timm_loads_a_model_whose_statistics_are_constants(name, tmp_path):
    """test_resnet has torch's BatchNorm, the other timm's own, which goes on with an activation."""
    timm = pytest.importorskip("timm", reason="timm is an extra")
    gen = torch.Generator().manual_seed(0)
    model, images = timm.create_model(name, num_classes=3), torch.rand(TEXTS, 3, 32, 32)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):  # as of a pretrained model
            module.running_mean.normal_(generator=gen)
            module.running_var.uniform_(0.5, 2, generator=gen)
    pairs = (images, LABELS), (images, LABELS)
    run = trained(tmp_path, model, *pairs, **{"+model.fix": "freeze"})
    whole = timm.create_model(f"local-dir:{run.directory}", pretrained=True).eval()
    kept = dpexp.load(run.directory)
    given = dpexp.load(run.directory, timm.create_model(name, num_classes=3))
    with torch.no_grad():
        expected = whole(images)
    assert expected.std() > 0.01
    for each in (kept, given):
        torch.testing.assert_close(each.outputs(images), expected, atol=1e-5, rtol=1e-4)
    assert "timm loads this folder too" in (run.directory / "README.md").read_text()


@pytest.mark.parametrize("fix", few(["freeze", "true"], ["freeze"]))
def test_a_run_of_model_timm_is_loaded_by_timm_or_says_why_not(fix, tmp_path):
    timm = pytest.importorskip("timm", reason="timm is an extra")
    run = dpexp.run(
        "task=digits method=dpsgd eps=8 profile=embedded epochs=0.1 batch_size=100 device=cpu",
        "model=timm name=test_efficientnet model.pretrained=false model.resize=32 weights=keep",
        f"model.fix={fix} results={tmp_path}",
    )
    card = (run.directory / "README.md").read_text()
    if fix == "true":
        assert "timm cannot load this folder: model.fix=true" in card
        assert not (run.directory / "config.json").exists()
        return
    whole = timm.create_model(f"local-dir:{run.directory}", pretrained=True).eval()
    assert whole.pretrained_cfg["input_size"] == (3, 32, 32)
    mean, std = (whole.pretrained_cfg[key][0] for key in ("mean", "std"))
    grey = torch.rand(5, 1, 8, 8)  # in [0, 1]
    sized = torch.nn.functional.interpolate(
        grey.expand(-1, 3, -1, -1), (32, 32), mode="bilinear", antialias=True
    )
    kept = dpexp.load(run.directory)
    with torch.no_grad():
        found = whole((sized - mean) / std)
    expected = kept.module((grey - kept.preprocessing.mean[0]) / kept.preprocessing.std[0])
    torch.testing.assert_close(found, expected.detach(), atol=1e-5, rtol=1e-4)
