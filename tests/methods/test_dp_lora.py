"""DP-LoRA: what its adapters compute, train and leave."""

import copy
import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers.pytorch_utils import Conv1D

import dpexp
from dpexp.methods.dp_lora import DPLoRA
from dpexp.models.adapters import Adapted, adapt, adapter_parameters, merged, save_adapters
from dpexp.types import ConfigError
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
    """Put saved adapters into a fresh model, place by place."""
    settings = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    layers = {name: model.get_submodule(name) for name in settings["target_modules"]}
    for name, layer in layers.items():
        a, b = (tensors.pop(f"base_model.model.{name}.lora_{part}.weight") for part in "AB")
        adapted = Adapted(layer, settings["r"], settings["lora_alpha"])
        adapted.load_state_dict({"lora_A.weight": a, "lora_B.weight": b}, strict=False)
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, adapted)
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


def test_a_module_that_reads_its_layers_weights_reads_the_adapters_too():
    """As torch's encoder layer does where it evaluates."""
    model = nn.ModuleDict({"body": nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)})
    body = shaken(adapt(model, 2, 2.0, "*", "head"))["body"]
    x = torch.randn(3, 4, 8)
    with_grad = body.eval()(x)
    with torch.no_grad():
        torch.testing.assert_close(body(x), with_grad, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(merged(body)(x), with_grad, atol=1e-5, rtol=1e-4)


def test_layers_at_or_below_the_rank_and_the_classifier_get_none():
    names = adapter_parameters(adapt(network(), 8, 8.0, "*", "5"))
    assert {name.split(".")[0] for name in names} == {"4"}
    assert {name.split(".")[0] for name in adapter_parameters(adapt(network(), 2, 2.0, "2", "5"))}
    with pytest.raises(ConfigError, match="method.targets=nothing"):
        adapt(network(), 2, 2.0, "nothing", "5")
    with pytest.raises(ConfigError, match=r"method.rank in \[1, 11\]"):
        adapt(network(), 12, 2.0, "*", "5")


def test_only_adapters_and_classifier_change(tmp_path):
    run = dpexp.run(f"{RUN} task=digits method.rank=4 results={tmp_path}")
    trainable = run.certificate["trainable"]
    assert all("lora_" in name or name.startswith("head.") for name in trainable)
    assert not any("lora_" in name for name in run.certificate["frozen"])
    before = dpexp.run(f"{RUN} task=digits method.rank=4 optimizer.lr=1e-30 results={tmp_path}")
    changed = {
        name
        for name, value in run.model.state_dict().items()
        if not torch.equal(value, before.model.state_dict()[name])
    }
    adapted = {name.split(".lora_")[0] + ".weight" for name in trainable if "lora_" in name}
    assert changed == adapted | {"head.weight"}


def test_the_adapters_stand_beside_the_merged_model_as_peft_reads_them(tmp_path):
    run = dpexp.run(f"{RUN} task=sentiment method.rank=8 epochs=0.1 results={tmp_path}")
    folder = run.directory / "adapter"
    settings = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    assert settings["peft_type"] == "LORA" and settings["r"] == 8 and settings["lora_alpha"] == 16
    query = "encoder.layer.0.attention.self.query"
    assert query in settings["target_modules"]
    assert tensors[f"base_model.model.{query}.lora_A.weight"].shape == (8, 64)
    assert len(tensors) == 2 * len(settings["target_modules"])
    assert not any("lora" in name for name in run.model.state_dict())


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
