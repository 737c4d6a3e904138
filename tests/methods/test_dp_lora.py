"""DP-LoRA: what its adapters compute, train and leave."""

import copy
import json
import re
from types import MethodType

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification
from transformers.pytorch_utils import Conv1D

import dpexp
from dpexp.methods.dp_lora import DPLoRA
from dpexp.models.adapter_files import save_adapters
from dpexp.models.adapters import Adapted, adapt, adapter_parameters, merged
from dpexp.training.kept import keep_adapters
from dpexp.types import ConfigError
from tests.marks import long
from tests.runs import one_thread  # noqa: F401 (a fixture)

RUN = "method=dp_lora profile=embedded eps=8 epochs=1 device=cpu"


def network():
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 8, 3, stride=2, padding=1, dilation=2), nn.ReLU(), nn.Conv2d(8, 8, 1)]
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(72, 12), nn.Linear(12, 4)).double()


def shaken(model):
    """Adapters as after training, when B is no longer zero."""
    for name in adapter_parameters(model):
        nn.init.normal_(model.get_parameter(name), std=0.2)
    return model


def test_an_adapted_model_is_what_it_was_until_it_trains():
    x = torch.randn(5, 3, 8, 8, dtype=torch.float64)
    expected = network()(x)
    assert torch.equal(adapt(network(), 2, 4.0, "*", "5")(x), expected)


@pytest.mark.parametrize(("rank", "alpha"), [(1, 1.0), (3, 6.0)])
def test_merged_weights_compute_the_same_and_have_their_first_names(rank, alpha):
    x = torch.randn(5, 3, 8, 8, dtype=torch.float64)
    model = shaken(adapt(network(), rank, alpha, "*", "5"))
    whole = merged(model)
    torch.testing.assert_close(whole(x), model(x))
    assert whole.state_dict().keys() == network().state_dict().keys()
    assert not torch.allclose(whole(x), network()(x))
    assert isinstance(model[0], Adapted)  # the model that trains stays as it is


def test_it_is_w_x_plus_alpha_over_rank_b_a_x():
    layer = nn.Linear(6, 5).double()
    adapted = shaken(adapt(nn.Sequential(layer, nn.Linear(5, 2).double()), 3, 6.0, "*", "1"))[0]
    x = torch.randn(4, 6, dtype=torch.float64)
    a, b = adapted.lora_A.weight, adapted.lora_B.weight
    torch.testing.assert_close(adapted(x), layer(x) + 2.0 * x @ a.T @ b.T)


def test_gpt2s_transposed_layer_has_an_adapter_that_peft_reads(tmp_path):
    """peft stores A and B as a linear layer's, and transposes their product."""
    layer = Conv1D(5, 6).double()  # six inputs
    model = nn.Sequential(layer, nn.Linear(5, 2).double())
    adapted = shaken(adapt(model, 3, 6.0, "*", "1"))[0]
    x = torch.randn(4, 7, 6, dtype=torch.float64)
    a, b = adapted.lora_A.weight, adapted.lora_B.weight
    assert a.shape == (3, 6) and b.shape == (5, 3)
    torch.testing.assert_close(adapted(x), layer(x) + 2.0 * x @ a.T @ b.T)
    save_adapters(model, tmp_path, None)
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert settings["fan_in_fan_out"] and settings["target_modules"] == ["0"]
    torch.testing.assert_close(merged(model)(x), model(x))
    assert type(merged(model)[0]) is Conv1D


def test_what_peft_has_no_place_for_is_said_and_is_in_the_weights(tmp_path, caplog):
    model = nn.ModuleDict({"rnn": nn.GRU(4, 4), "one": nn.Linear(4, 4), "head": nn.Linear(4, 2)})
    adapted = shaken(adapt(model, 2, 2.0, "*", "head"))
    save_adapters(adapted, tmp_path, None)
    (said,) = caplog.messages
    assert "leaves out" in said and "rnn.weight_ih_l0" in said
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert settings["target_modules"] == ["one"] and "fan_in_fan_out" not in settings
    assert not torch.equal(merged(adapted)["rnn"].weight_ih_l0, nn.GRU(4, 4).weight_ih_l0)


def test_an_attention_that_drops_out_keeps_its_own_and_says_so():
    """It would be run again for its gradients, and would draw anew."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True)
    model = nn.ModuleDict({"layer": layer, "head": nn.Linear(8, 2)})
    method = DPLoRA(2, 2.0, "*", "head")
    names = adapter_parameters(method.adapt(model))
    assert {name.partition(".lora")[0] for name in names} == {"layer.linear1", "layer.linear2"}
    assert "set its dropout to 0" in method.why_frozen(model, "layer.self_attn.in_proj_weight")


class Twice(nn.Module):
    """A layer that stands in two places, or a weight that two layers hold."""

    def __init__(self, is_one_layer):
        super().__init__()
        self.first, self.other = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second = self.first if is_one_layer else nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        for layer in (self.first, self.other, self.second):
            x = torch.tanh(layer(x))
        return self.head(x)


@pytest.mark.parametrize(("is_one_layer", "layers"), [(True, 2), (False, 1)])
def test_what_stands_twice_computes_the_same_where_it_is_merged(is_one_layer, layers):
    x, model = torch.randn(5, 6), Twice(is_one_layer)
    adapted = shaken(adapt(model, 2, 2.0, "*", "head"))
    assert len(adapter_parameters(adapted)) == 2 * layers
    assert (adapted.first is adapted.second) == is_one_layer
    whole = merged(adapted)
    torch.testing.assert_close(whole(x), adapted(x))
    assert whole.state_dict().keys() == Twice(is_one_layer).state_dict().keys()
    assert whole.first.weight is whole.second.weight


class Around(nn.Module):
    """Its own module named encoder, a layer that stands twice, and a block that does."""

    def __init__(self):
        super().__init__()
        self.encoder, self.other = nn.Sequential(nn.Linear(6, 6)), nn.Linear(6, 6)
        self.again, self.blocks = self.other, nn.Sequential(self.encoder, nn.Tanh(), self.encoder)
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.again(self.blocks(self.other(self.encoder(x))))))


def read_back(model, folder):
    """Put what was saved into a fresh model by peft's rules of which modules a name means."""
    settings = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    targets, names = settings["target_modules"], dict(model.named_modules(remove_duplicate=False))
    is_pattern = isinstance(targets, str)
    whole = settings.get("modules_to_save", [])
    for name, layer in names.items():
        if any(re.match(rf"(^|.*\.){each}($|\..*)", name) for each in whole):
            continue
        if (
            re.fullmatch(targets, name)
            if is_pattern
            else any(f".{name}".endswith(f".{each}") for each in targets)
        ):
            a, b = (tensors.pop(f"base_model.model.{name}.lora_{part}.weight") for part in "AB")
            adapted = Adapted(layer, settings["r"], settings["lora_alpha"])
            adapted.load_state_dict({"lora_A.weight": a, "lora_B.weight": b}, strict=False)
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, adapted)
    for name, module in names.items():
        if any(map(name.endswith, whole)):
            own = [key for key in tensors if key.startswith(f"base_model.model.{name}.")]
            module.load_state_dict({key.rpartition(".")[2]: tensors.pop(key) for key in own})
    assert not tensors
    return model


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Twice(True), "first and second"),
        (lambda: Twice(False), None),
        (Around, "other and again"),
    ],
)
def test_saved_adapters_read_back_give_the_same_model_whatever_stands_twice(
    make, said, tmp_path, caplog
):
    torch.manual_seed(0)
    model, x = make(), torch.randn(5, 6)
    fresh = copy.deepcopy(model)
    adapted = shaken(adapt(model, 2, 3.0, "*", "head"))
    save_adapters(adapted, tmp_path, None)
    again = read_back(fresh, tmp_path / "adapter")
    torch.testing.assert_close(again(x), adapted(x))
    # peft, which reads them too, adapts the first of a layer's places alone.
    assert [said in each for each in caplog.messages] == [True] * (said is not None)


SIZES = {"vocab_size": 30, "num_labels": 3, "pad_token_id": 0}
BERT = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12}
GPT2 = {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
DISTIL = {"dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 12}
BOUNDS = {"bos_token_id": 1, "eos_token_id": 1}


def of_transformers(kind, **sizes):
    config = AutoConfig.for_model(kind, **SIZES, **sizes)
    return AutoModelForSequenceClassification.from_config(config)


class InTurn(nn.Sequential):
    """Layers whose numbers stand on two levels, one of a layer without an adapter."""

    def __init__(self):
        inner = nn.Sequential(nn.ReLU(), nn.Conv2d(6, 8, 3))
        super().__init__(nn.Conv2d(1, 6, 3), inner, nn.Flatten(), nn.Linear(8, 5), nn.Linear(5, 3))


@pytest.mark.parametrize(
    ("make", "head", "whole"),
    [
        (lambda: of_transformers("bert", **BERT), "classifier", ["classifier"]),
        (
            lambda: of_transformers("roberta", **BERT),
            "classifier",
            ["classifier.dense", "classifier.out_proj"],
        ),
        (lambda: of_transformers("gpt2", **GPT2, **BOUNDS), "score", ["score"]),
        # Its other layer's name ends with the classifier's, which peft takes for a second one.
        (
            lambda: of_transformers("distilbert", **DISTIL),
            "classifier",
            ["classifier", "pre_classifier"],
        ),
        (InTurn, "4", ["4"]),
    ],
)
def test_a_model_with_saved_adapters_predicts_as_the_one_that_was_trained(
    make, head, whole, tmp_path, caplog
):
    """The classifier, which trains as a whole, is saved as well."""
    torch.manual_seed(0)
    model = make().eval()
    fresh, method = copy.deepcopy(model), DPLoRA(2, 3.0, "*", head)
    trained = method.trainable(method.adapt(model))
    for name in trained:
        nn.init.normal_(model.get_parameter(name), std=0.3)
    save_adapters(model, tmp_path, None, trained)
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert settings["modules_to_save"] == whole and not caplog.messages
    x = torch.randn(4, 1, 5, 5) if head == "4" else torch.randint(2, 30, (4, 7))
    expected, found = (each(x) for each in (model, read_back(fresh, tmp_path / "adapter").eval()))
    if head != "4":
        expected, found = expected.logits, found.logits
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_a_name_that_peft_would_take_for_a_blocks_too_is_left_out_and_that_is_said(
    tmp_path, caplog
):
    model = nn.ModuleDict({"out": nn.Linear(4, 4), "head": nn.Linear(4, 2)})
    model["read_head"] = nn.Sequential(nn.Linear(4, 4))
    save_adapters(adapt(model, 2, 2.0, "*", "head"), tmp_path, None, ["head.weight"])
    assert "leaves out head, trained as a whole" in caplog.messages[0]
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert settings["target_modules"] == ["out", "read_head.0"]
    assert "modules_to_save" not in settings


class AroundBert(nn.Module):
    """One's own model around an encoder of transformers, whose attribute has dpexp's name."""

    def __init__(self):
        super().__init__()
        self.encoder = AutoModel.from_config(AutoConfig.for_model("bert", **SIZES, **BERT))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.encoder(x).last_hidden_state[:, 0])


def test_a_model_of_ones_own_around_an_encoder_keeps_its_names_and_its_classifier(tmp_path):
    torch.manual_seed(0)
    model = AroundBert().eval()
    fresh, method = copy.deepcopy(model), DPLoRA(2, 3.0, "*", "head")
    trained = method.trainable(method.adapt(model))
    for name in trained:
        nn.init.normal_(model.get_parameter(name), std=0.3)
    save_adapters(model, tmp_path, None, trained)
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert settings["modules_to_save"] == ["head"]
    x = torch.randint(2, 30, (4, 7))
    again = read_back(fresh, tmp_path / "adapter").eval()
    torch.testing.assert_close(again(x), model(x), rtol=1e-5, atol=1e-6)


class Tied(nn.Module):
    """A classifier whose weight is a table's, too; or that stands in two places."""

    def __init__(self, is_table):
        super().__init__()
        self.head, self.body, self.table = nn.Linear(8, 30), nn.Linear(8, 8), nn.Embedding(30, 8)
        if is_table:
            self.table.weight = self.head.weight
        else:
            self.again = self.head


@pytest.mark.parametrize("is_table", [True, False])
def test_a_classifier_that_stands_elsewhere_too_is_left_out_and_that_is_said(
    is_table, tmp_path, caplog
):
    """peft would give one place a copy, and leave the other as it was."""
    save_adapters(adapt(Tied(is_table), 2, 2.0, "*", "head"), tmp_path, None, ["head.weight"])
    (said,) = caplog.messages
    assert "leaves out head" in said and "in other places too" in said
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert settings["target_modules"] == ["body"] and "modules_to_save" not in settings


@pytest.mark.parametrize(
    ("node", "notes", "warm", "why"),
    [
        ({}, {}, {"name": "public"}, "the warm start trained the weights beneath"),
        ({"fix": True}, {"model_as_run": {"fixed": ["1"]}}, None, "model.fix=true put other norms"),
        ({"fix": True}, {}, None, None),  # it had nothing to fix
    ],
)
def test_adapters_of_another_model_than_the_plain_one_are_not_written_and_that_is_said(
    node, notes, warm, why, tmp_path, caplog
):
    model = adapt(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 2)), 2, 2.0, "*", "1")
    config = {"model": {"repo": "me/plain", **node}, **({"warm_start": warm} if warm else {})}
    keep_adapters(tmp_path, model, config, notes, {"trainable": {"1.weight": 12}})
    assert (tmp_path / "adapter").exists() == (why is None)
    assert [why in said and "adapter/ is not written" in said for said in caplog.messages] == (
        [] if why is None else [True]
    )


def test_a_dilated_convolution_which_peft_cannot_adapt_is_left_out_and_that_is_said(
    tmp_path, caplog
):
    save_adapters(adapt(network(), 2, 2.0, "*", "5"), tmp_path, None)
    assert "convolutions with dilation (0 ...)" in caplog.messages[0]
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert settings["target_modules"] == ["2", "4"]


def test_a_module_that_reads_its_layers_weights_reads_the_adapters_too():
    """As torch's encoder layer does where it evaluates."""
    model = nn.ModuleDict({"body": nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)})
    body = shaken(adapt(model, 2, 2.0, "*", "head"))["body"]
    x = torch.randn(3, 4, 8)
    with_grad = body.eval()(x)
    with torch.no_grad():
        torch.testing.assert_close(body(x), with_grad, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(merged(body)(x), with_grad, atol=1e-5, rtol=1e-4)


def doubled(layer):
    """A layer that computes something else than its type does."""

    def forward(self, x):
        return 2 * nn.functional.linear(x, self.weight, self.bias)

    layer.forward = MethodType(forward, layer)


ALTERED = {
    "output": lambda layer: layer.register_forward_hook(lambda module, inputs, y: torch.relu(y)),
    "input": lambda layer: layer.register_forward_pre_hook(lambda module, x: (2 * x[0],)),
    "forward": doubled,
}


@pytest.mark.parametrize("altered", ALTERED)
def test_what_alters_a_layer_alters_its_adapter_too(altered):
    """Merged weights otherwise computed another model than the one that had been trained."""
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 2)).double()
    ALTERED[altered](model[0])
    x = torch.randn(9, 6, dtype=torch.float64)
    before = model(x)
    model = adapt(model, 2, 6.0, "*", "1")
    assert torch.equal(model(x), before)
    model = shaken(model)
    assert not torch.allclose(model(x), before)
    torch.testing.assert_close(merged(model)(x), model(x))


def test_a_run_with_an_altered_layer_keeps_the_model_that_it_evaluated(tmp_path):
    """And trains it as one that alters the same numbers itself."""
    torch.manual_seed(0)
    x, y = torch.randn(60, 8), torch.randint(3, (60,))
    layers, weights = (nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)), []
    for is_hooked in (True, False):
        first, relu, head = copy.deepcopy(layers)
        hook = relu if is_hooked else nn.Identity()
        first.register_forward_hook(lambda module, inputs, y, hook=hook: hook(y))
        model = nn.Sequential(first, nn.Identity() if is_hooked else relu, head)
        run = dpexp.train(
            model, (x, y), (x, y), method="dp_lora", eps=8, epochs=3, batch_size=12, lr=0.5,
            results=tmp_path / str(is_hooked), settings={"method.rank": 2},
        )  # fmt: skip
        right = (run.model(x).argmax(1) == y).double().mean()
        assert 100 * float(right) == pytest.approx(run.accuracy, abs=1e-4)
        weights.append(run.model[0].weight)
    assert torch.equal(*weights)


def test_a_model_may_read_what_its_layers_say_of_themselves():
    adapted = adapt(network(), 2, 4.0, "*", "5")
    convolution, linear = adapted[0], adapted[4]
    assert isinstance(convolution, Adapted) and isinstance(linear, Adapted)
    assert (linear.in_features, linear.out_features) == (72, 12)
    assert (convolution.kernel_size, convolution.dilation) == ((3, 3), (2, 2))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = linear.nothing
    assert copy.deepcopy(linear).out_features == 12


def test_layers_at_or_below_the_rank_and_the_classifier_get_none():
    names = adapter_parameters(adapt(network(), 8, 8.0, "*", "5"))
    assert {name.split(".")[0] for name in names} == {"4"}
    assert {name.split(".")[0] for name in adapter_parameters(adapt(network(), 2, 2.0, "2", "5"))}
    with pytest.raises(ConfigError, match="method.targets=nothing"):
        adapt(network(), 2, 2.0, "nothing", "5")
    with pytest.raises(ConfigError, match=r"method.rank in \[1, 11\]"):
        adapt(network(), 12, 2.0, "*", "5")


def test_a_model_of_a_classifier_alone_is_not_told_to_set_targets():
    linear = nn.Sequential(nn.Flatten(), nn.Linear(6, 2))
    with pytest.raises(ConfigError, match=r"it has none\. Set model, or method=dpsgd\.$"):
        adapt(linear, 2, 2.0, "*", "1")


def test_only_adapters_and_classifier_change(tmp_path):
    brief = RUN.replace("epochs=1", "epochs=0.1")
    run = dpexp.run(f"{brief} task=digits method.rank=4 results={tmp_path}")
    trainable = run.certificate["trainable"]
    assert all("lora_" in name or name.startswith("head.") for name in trainable)
    assert not any("lora_" in name for name in run.certificate["frozen"])
    before = dpexp.run(f"{brief} task=digits method.rank=4 optimizer.lr=1e-30 results={tmp_path}")
    changed = {
        name
        for name, value in run.model.state_dict().items()
        if not torch.equal(value, before.model.state_dict()[name])
    }
    adapted = {name.split(".lora_")[0] + ".weight" for name in trainable if "lora_" in name}
    assert changed == adapted | {"head.weight"}


@pytest.mark.parametrize(
    ("words", "begins", "whole"),
    [
        ("model.pooling=first model.head_layers=2", "bert.", ["bert.pooler.dense", "classifier"]),
        long("", "", None),  # transformers has no classifier of the mean
    ],
)
def test_the_adapters_stand_beside_the_merged_model_as_peft_reads_them(
    words, begins, whole, tmp_path, caplog
):
    said = f"{RUN} task=sentiment method.rank=8 {words}".replace("epochs=1", "epochs=0.01")
    run = dpexp.run(said, f"results={tmp_path}")
    without = [each for each in caplog.messages if "which the encoder alone has no place" in each]
    assert len(without) == (whole is None) and all("out head.out, trained" in w for w in without)
    folder = run.directory / "adapter"
    settings = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    assert settings["peft_type"] == "LORA" and settings["r"] == 8 and settings["lora_alpha"] == 16
    query = f"{begins}encoder.layer.0.attention.self.query"
    assert query in settings["target_modules"] and settings.get("modules_to_save") == whole
    assert tensors[f"base_model.model.{query}.lora_A.weight"].shape == (8, 64)
    assert len(tensors) == 2 * len(settings["target_modules"]) + 2 * len(whole or ())
    assert not any("lora" in name for name in run.model.state_dict())
    kept = load_file(run.directory / "model.safetensors")
    for name in whole or ():
        for own in ("weight", "bias"):
            assert torch.equal(tensors[f"base_model.model.{name}.{own}"], kept[f"{name}.{own}"])


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("method.rank=0", "method.rank in"),
        ("method.alpha=0", "method.alpha above 0"),
        ("method.targets='*.nothing'", "method.targets"),
    ],
)
def test_a_mistake_is_one_line(words, line, tmp_path):
    with pytest.raises(ConfigError, match=line):
        dpexp.run(f"{RUN} task=digits results={tmp_path} {words}")
