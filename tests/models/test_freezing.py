"""method.freeze: parameters by pattern, whatever the method; the certificate lists them."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from dpexp import cli, records
from dpexp.cli.parameter_names import compare
from dpexp.models.classifier import freeze
from dpexp.models.matrices import TABLE
from dpexp.privacy.verification.record import verify_record
from dpexp.training.train import named_parameters, train
from dpexp.types import ConfigError
from tests.contract.cases import METHODS, case
from tests.marks import few, some_long
from tests.runs import of
from tests.steps import ALONE, CPU, composed

CNN = ["model=cnn", "model.channels=[8,16]"]
EMBEDDINGS, NONE = "method.embeddings=true", "method.embeddings=false"


def built(method, *words):
    few = () if case(method).few[:1] == ("model=cnn",) else case(method).few
    config = composed(method, *few, *CNN, *words)
    return config, cli.build_parts(config, CPU)


FREEZING = [method for method in METHODS if method not in ("linear", "compressive")]


@pytest.mark.parametrize("method", some_long(FREEZING, ["dpsgd", "rgp", "gep", "dp_lora", "dp_zo"]))
def test_every_method_leaves_frozen_what_a_pattern_names(method):
    rank = ["method.rank=4"] if "rank" in composed(method, *CNN)["method"] else []
    _, parts = built(method, *rank, "method.freeze=conv1")
    before = named_parameters(built(method, *rank)[1].model, parts.method)[0]
    trainable, frozen = named_parameters(parts.model, parts.method)
    assert trainable.keys() == {name for name in before if not name.startswith("conv1.")}
    assert trainable.keys() < before.keys() and {"conv1.weight", "conv1.bias"} <= frozen.keys()
    parts.method.start(parts.model)


@pytest.mark.parametrize("method", ["dpsgd", "rgp"])
def test_the_weights_stay_and_the_record_says_so(method, tmp_path):
    rank = ["method.rank=4"] if method == "rgp" else []
    config, parts = built(method, *rank, "method.freeze=['conv?.bias','*2.weight']")
    config = {**config, "results": str(tmp_path), "epochs": 0.1}
    names = {"conv1.bias", "conv2.bias", "conv2.weight"}
    before = {name: parts.model.get_parameter(name).clone() for name in names}
    train(config, parts, ALONE)
    _, result, privacy = of(records.locate(tmp_path, config))
    assert names <= set(privacy["frozen"]) and not names & set(privacy["trainable"])
    assert all(torch.equal(parts.model.get_parameter(name), before[name]) for name in names)
    assert set(result["model_as_run"]["frozen_by_pattern"]) == names
    assert verify_record(records.read(records.locate(tmp_path, config))).findings == ()


def test_verification_finds_another_list_of_what_was_frozen(tmp_path):
    """It builds a model of ours from the record, and freezes there what the config says."""
    config, parts = built("dpsgd", "method.freeze=conv1")
    config = {**config, "results": str(tmp_path), "epochs": 0.1}
    train(config, parts, ALONE)
    record = records.read(records.locate(tmp_path, config))
    assert compare(record) == []
    record.config["method"]["freeze"] = "conv2"
    assert any("trainable" in found for found in compare(record))


@pytest.mark.parametrize(
    "pattern", ["conv1", "conv1.*", "conv[1]*", "[conv1]", "['conv1.*',conv1]"]
)
def test_a_pattern_may_name_a_module_or_parameters(pattern):
    _, parts = built("dpsgd", f"method.freeze={pattern}")
    frozen = named_parameters(parts.model, parts.method)[1]
    assert frozen.keys() == {"conv1.weight", "conv1.bias"}


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("conv3*", "'conv3[*]' matches none. Did you mean conv2"),
        ("[conv1,hed]", "'hed' matches none. Did you mean head"),
        ("CONV1", "'CONV1' matches none"),
        ("größe", "'größe' matches none"),
        ("3", "a pattern of parameters' names, or a list of them.*got 3"),
        ("true", "or a list of them.*got True"),
        ("''", "or a list of them"),
        ("[conv1,3]", "or a list of them"),
        ("{a: b}", "or a list of them"),
        ("*", "with parameters to train; all have requires_grad=False. Set model or method.freeze"),
    ],
)
def test_a_pattern_that_freezes_nothing_or_everything_is_refused(pattern, said):
    with pytest.raises(ConfigError, match=said) as raised:
        _, parts = built("dpsgd", f"method.freeze={pattern}")
        parts.method.trainable(parts.model)
    assert "\n" not in str(raised.value)


def test_a_module_without_parameters_is_not_advised():
    norm = nn.GroupNorm(1, 2, affine=False)
    model = nn.Sequential(OrderedDict(norm=norm, head=nn.Linear(2, 2)))
    with pytest.raises(ConfigError, match="'norm[*]' matches none. Did you mean head"):
        freeze(model, ["norm*"])


@pytest.mark.parametrize("method", ["rgp", "linear"])
def test_a_classifier_that_is_frozen_is_refused_where_a_method_needs_it(method):
    _, parts = built(method, "method.freeze=head")
    with pytest.raises(ConfigError, match="classifier 'head' to train.*method.freeze"):
        parts.method.trainable(parts.model)


SMALL = ["task=sentiment", "task.dataset_size=200", "task.test_size=20", "model.layers=1"]
SMALL += ["task.delta=1e-3", "method.rank=4"]


@pytest.mark.parametrize("method", few(["rgp", "dp_lora"], ["rgp"]))
def test_tables_train_where_that_is_said_and_elsewhere_the_record_says_why_not(method, tmp_path):
    words = [f"method={method}", "profile=embedded", "eps=8", "epochs=0.1", "batch_size=32"]
    plain = cli.compose([*words, *SMALL, "device=cpu", f"results={tmp_path}"])
    told = cli.compose([*words, *SMALL, "device=cpu", f"results={tmp_path}", EMBEDDINGS])
    assert cli.compose([*words, *SMALL, "device=cpu", f"results={tmp_path}", NONE]) == plain
    assert records.run_id(plain) != records.run_id(told)
    for config in (plain, told):
        record = records.read(cli.execute(config))
        assert verify_record(record).findings == () and compare(record) in (None, [])
        tables = {name for name in record.privacy["trainable"] if "word_embeddings" in name}
        why = record.privacy["why_frozen"]
        assert bool(tables) == (config is told) == (TABLE not in why)
        assert sorted(sum(why.values(), [])) == sorted(record.privacy["frozen"])


def test_it_is_part_of_a_runs_id_and_of_no_others():
    plain, frozen = composed("rgp", *CNN), composed("rgp", *CNN, "method.freeze=conv1")
    assert "freeze" not in plain["method"] and records.run_id(plain) != records.run_id(frozen)
