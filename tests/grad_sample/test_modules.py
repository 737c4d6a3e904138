"""Every module that holds parameters can train: by torch.func where there is no rule."""

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, weight_norm
from torch.utils.checkpoint import checkpoint

from dpexp.grad_sample import Tape, modules
from dpexp.grad_sample.shared_inputs import trial
from dpexp.types import ConfigError, full_name

pytestmark = pytest.mark.filterwarnings("ignore")

N, T, D = 5, 4, 6


class Net(nn.Module):
    """A layer under test between two that have rules."""

    def __init__(self, layer, use=lambda layer, h: layer(h), width=D):
        super().__init__()
        self.before, self.layer, self.after = nn.Linear(D, D), layer, nn.Linear(width, 3)
        self.use = use

    def forward(self, x):
        return self.after(self.use(self.layer, torch.tanh(self.before(x))).flatten(2).mean(1))


class Tokens(nn.Module):
    """Class token, positions and layer scale, held by the module itself, as a ViT's."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, D))
        self.positions = nn.Parameter(torch.randn(1, T + 1, D))
        self.scale = nn.Parameter(torch.randn(D))
        self.inner = nn.Linear(D, D)

    def forward(self, h):
        h = torch.cat([self.token.expand(len(h), -1, -1), h], 1) + self.positions
        return h + self.scale * self.inner(h)


class TwoOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.randn(D)) for _ in range(2))

    def forward(self, h):
        return {"a": self.first * h, "unused": self.first + h, "b": [self.second + h.square()]}


@dataclass
class Both:
    """Two outputs by name, as libraries return them."""

    first: torch.Tensor
    unused: torch.Tensor


class ByName(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(D))

    def forward(self, h):
        return Both(self.scale * h, self.scale + h)


def hooked_before():
    """A module whose own hook changes what it is called with."""
    layer = Scale()
    layer.register_forward_pre_hook(lambda _, args: (3 * args[0].square(),))
    return Net(layer)


class Steps(nn.Module):
    """Returns what it goes on from within, as encoders return all hidden states."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.randn(D)) for _ in range(2))

    def forward(self, h):
        middle = (self.first * h).tanh()
        return middle, self.second * middle, middle.shape


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(D))

    def forward(self, h):
        return self.weight * h


class Child(nn.Linear):
    def forward(self, h):
        return 3 * super().forward(h).square()


def attention(layer, h):
    mask = torch.ones(T, T, dtype=torch.bool).triu(1)
    return layer(h, h, h.flip(2), attn_mask=mask)[0]


def both(layer, h):
    found = layer(h)
    return found["a"].relu_() + found["b"][0]


def channels(layer, h):
    return layer(h.transpose(1, 2)).transpose(1, 2)


def states(layer, h):
    out, state = layer(h)
    last = state[0] if isinstance(state, tuple) else state
    return torch.cat([out, last.transpose(0, 1)], 1)


def voxels(layer, h):
    return layer(h.view(len(h), 1, 2, 3, T)).flatten(2)[..., :D]


def pixels(layer, h):
    return layer(h[:, None]).flatten(2)[..., :D]


def positions(layer, h):
    return h + layer(torch.arange(T)[None])


def bare_positions(layer, h):
    return h + layer(torch.arange(T))


def checkpointed(layer, h):
    return checkpoint(layer, h, use_reentrant=False)


def windows(layer, h):
    return layer(h.reshape(-1, T // 2, D)).view(h.shape)


def flat(layer, h):
    return layer(h.reshape(-1, D)).view(h.shape)


class Windows(nn.Module):
    """Attention's table of relative positions, as Swin's: parameters beside rows of windows."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(T // 2, D))

    def forward(self, h):
        return h * self.table


LAYERS = {
    "rows of tokens": lambda: Net(nn.Linear(D, D), flat),
    "rows of tokens, normalised": lambda: Net(nn.LayerNorm(D), flat),
    "rows of windows": lambda: Net(nn.GroupNorm(1, T // 2), windows),
    "rows of windows without a rule": lambda: Net(Windows(), windows),
    "attention": lambda: Net(nn.MultiheadAttention(D, 2, batch_first=True), attention),
    "conv1d": lambda: Net(nn.Conv1d(D, D, 3, padding=1, groups=2), channels),
    "conv3d": lambda: Net(nn.Conv3d(1, 2, 2), voxels),
    "transposed": lambda: Net(nn.ConvTranspose2d(1, 2, 2, stride=2), pixels),
    "lstm": lambda: Net(nn.LSTM(D, D, 2, batch_first=True), states),
    "gru": lambda: Net(nn.GRU(D, D, batch_first=True), states),
    "rms norm": lambda: Net(nn.RMSNorm(D)),
    "prelu": lambda: Net(nn.PReLU()),
    "bilinear": lambda: Net(nn.Bilinear(D, D, D), lambda layer, h: layer(h, h.flip(1))),
    "tokens": lambda: Net(Tokens()),
    "two outputs": lambda: Net(TwoOutputs(), both),
    "all hidden states": lambda: Net(Steps(), lambda layer, h: sum(layer(h)[:2])),
    "a rule's subclass": lambda: Net(Child(D, D)),
    "weight norm": lambda: Net(weight_norm(nn.Linear(D, D))),
    "parametrized": lambda: Net(parametrizations.weight_norm(nn.Linear(D, D))),
    "checkpointed": lambda: Net(Tokens(), checkpointed),
    "an encoder": lambda: Net(nn.TransformerEncoderLayer(D, 2, 8, 0.0, batch_first=True)),
    "positions": lambda: Net(nn.Embedding(T, D), positions),
    "bare positions": lambda: Net(nn.Embedding(T, D), bare_positions),
    "one row": lambda: Net(nn.Linear(D, D), lambda layer, h: h * layer(torch.ones_like(h[:1]))),
    "called thrice": lambda: Net(nn.Linear(D, D), lambda layer, h: layer(layer(h) + layer(2 * h))),
    "called twice": lambda: Net(Scale(), lambda layer, h: layer(layer(h).tanh())),
    "standing twice beside a parameter": lambda: Net(Shared()),
    "a dataclass": lambda: Net(ByName(), lambda layer, h: layer(h).first),
    "a hook before it": hooked_before,
    "in place": lambda: Net(nn.RMSNorm(D), lambda layer, h: layer(h).mul_(2)),
    "a view in place": lambda: Net(nn.Linear(D, D), lambda layer, h: layer(h).relu_()),
    "parametrized in place": lambda: Net(
        parametrizations.weight_norm(nn.Linear(D, D)), lambda layer, h: layer(h).mul_(2)
    ),
}


class Shared(nn.Module):
    """A table of relative positions beside an embedding that stands in two places, as T5's."""

    def __init__(self):
        super().__init__()
        self.scale, self.first = nn.Parameter(torch.randn(D)), nn.Linear(D, D, bias=False)
        self.second = self.first

    def forward(self, h):
        return self.second(self.scale * self.first(h))


def tied():
    net = Net(nn.Linear(D, D, bias=False))
    net.before.weight = net.layer.weight
    return net


def standing_twice():
    net = Net(nn.Linear(D, D), lambda layer, h: layer(h).tanh() + net.again(h))
    net.again = net.layer
    return net


def tied_with_one_inside():
    """A weight of a layer within an encoder and of another outside of it."""
    net = Net(nn.TransformerEncoderLayer(D, 2, D, 0.0, batch_first=True))
    net.before.weight = net.layer.linear1.weight
    return net


def tied_with_attention():
    """A weight that attention reads by itself, and a layer outside of it."""
    net = Net(nn.MultiheadAttention(D, 2, batch_first=True), attention)
    net.before.weight = net.layer.out_proj.weight
    return net


LAYERS |= {"tied inside": tied_with_one_inside, "tied attention": tied_with_attention}
LAYERS |= {"tied": tied, "standing twice": standing_twice}


def per_example(model, x, y, names):
    """Take every example's gradient literally, alone."""
    found = []
    for i in range(len(x)):
        loss = F.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        weights = [model.get_parameter(name) for name in names]
        found.append(torch.autograd.grad(loss, weights, materialize_grads=True))
    return {name: torch.stack(each) for name, *each in zip(names, *found, strict=True)}


def taken(model, x, y, names):
    got = {}

    def take(layer, layer_grads):
        for own in layer_grads.parameters:
            name = full_name(layer, own)
            assert name not in got, "one joint norm wants every parameter once"
            got[name] = layer_grads.gradient(own).materialize()

    with Tape(model, names, take) as tape:
        tape.expect(len(x))
        tape.backward(F.cross_entropy(model(x), y, reduction="sum"))
    return got


def drawn(make, n=N):
    torch.manual_seed(n)
    model = make().double()
    return model, torch.randn(n, T, D, dtype=torch.float64), torch.arange(n) % 3


@pytest.mark.parametrize("n", [1, N, T, D])  # also as many examples as positions or features
@pytest.mark.parametrize("kind", LAYERS)
def test_every_examples_gradient_is_its_own(kind, n):
    model, x, y = drawn(LAYERS[kind], n)
    names = [name for name, _ in model.named_parameters()]
    expected = per_example(model, x, y, names)
    # As a run does, which tries a model with batches of several sizes before its first step.
    with trial():
        taken(model, torch.cat([x, x[:1]]), torch.cat([y, y[:1]]), names)
    got = taken(model, x, y, names)
    assert got.keys() == expected.keys()
    for name, each in expected.items():
        torch.testing.assert_close(got[name].view_as(each), each, rtol=1e-9, atol=1e-12)
    for parameter in model.parameters():
        assert parameter.requires_grad and parameter.grad is None


@pytest.mark.parametrize("kind", ["attention", "tokens", "lstm", "tied", "weight norm"])
def test_some_of_a_modules_parameters_may_stay_frozen(kind):
    model, x, y = drawn(LAYERS[kind])
    names = [name for name, _ in model.named_parameters()][::2]
    expected = per_example(model, x, y, names)
    got = taken(model, x, y, names)
    assert got.keys() == expected.keys()
    for name, each in expected.items():
        torch.testing.assert_close(got[name].view_as(each), each, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", LAYERS)
def test_an_empty_micro_batch_and_another_after_it(kind):
    model, x, y = drawn(LAYERS[kind])
    names = [name for name, _ in model.named_parameters()]
    with trial(), Tape(model, names, lambda *_: None) as tape:
        for n in (2, 3):
            tape.expect(n)
            tape.backward(F.cross_entropy(model(x[:n]), y[:n]))
        assert not tape._inputs and tape._adding.is_empty


def test_no_view_of_what_autograd_saved_is_changed_unnoticed():
    """Its module's input would get another gradient than plain PyTorch's, which refuses."""

    class Saved(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.randn(D))

        def forward(self, h):
            return torch.sigmoid(self.scale * h).view(len(h), T, D)

    model, x, y = drawn(lambda: Net(Saved(), lambda layer, h: layer(h).mul_(2)))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        F.cross_entropy(model(x), y).backward()
    names = [name for name, _ in model.named_parameters()]
    with trial(), pytest.raises((ConfigError, RuntimeError)):
        taken(model, x, y, names)


def test_torchs_warning_of_an_operation_without_a_batching_rule_is_known():
    """It comes at every call; modules ignores it by these words."""
    attend = torch.func.vmap(F.scaled_dot_product_attention)
    with pytest.warns(UserWarning, match=modules.NO_BATCHING_RULE):
        attend(*torch.randn(3, N, 1, 2, T, D))


def test_the_model_itself_may_hold_parameters():
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.out = nn.Parameter(torch.randn(D)), nn.Linear(D, 3)

        def forward(self, x):
            return self.out(self.scale * x.mean(1))

    model, x, y = drawn(Whole)
    expected = per_example(model, x, y, ["scale", "out.weight", "out.bias"])
    got = taken(model, x, y, list(expected))
    for name, each in expected.items():
        torch.testing.assert_close(got[name], each, rtol=1e-9, atol=1e-12)


def test_dropout_in_a_module_without_a_rule_is_refused_by_name():
    model, x, y = drawn(lambda: Net(nn.GRU(D, D, 2, dropout=0.3, batch_first=True), states))
    names = ["layer.weight_ih_l0"]
    with pytest.raises(ConfigError, match="layer 'layer', a GRU without a rule"):
        taken(model.train(), x, y, names)
    assert taken(model.eval(), x, y, names)


def test_a_batch_that_is_not_on_the_first_axis_is_refused():
    model, x, y = drawn(
        lambda: Net(nn.LSTM(D, D), lambda layer, h: layer(h.transpose(0, 1))[0].transpose(0, 1))
    )
    with pytest.raises(ConfigError, match="batch_first=True"):
        taken(model, x, y, ["layer.weight_ih_l0"])


def test_in_bfloat16_gradients_are_float32_and_near():
    model, x, y = drawn(LAYERS["tokens"])
    model, x = model.float(), x.float()
    names = [name for name, _ in model.named_parameters()]
    expected = per_example(model, x, y, names)
    model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)
    got = taken(model, x, y, names)
    for name, each in expected.items():
        assert got[name].dtype == torch.float32
        assert (got[name] - each).norm() < 0.05 * each.norm() + 1e-3


@pytest.mark.parametrize("size", [1e-4, 1.0])
def test_an_rms_norm_of_bfloat16_adds_what_torch_adds_where_no_eps_is_set(size):
    """That is float32's, in which torch takes the mean square; it outweighs small inputs."""
    torch.manual_seed(0)
    x, dh = (size * torch.randn(N, T, D)).bfloat16(), torch.randn(N, T, D).bfloat16()
    model, got = nn.Sequential(nn.RMSNorm(D)), {}
    with (
        torch.autocast("cpu", torch.bfloat16),
        Tape(model, ["0.weight"], lambda _, grads: got.update(x=grads.gradient("weight"))) as tape,
    ):
        tape.expect(N)
        out = model(x)
        tape.backward((out * dh).sum())
    squares = x.double().square().mean(2, keepdim=True) + torch.finfo(torch.float32).eps
    normalised = x.double() / squares.sqrt()
    torch.testing.assert_close(out.double(), normalised, rtol=1e-2, atol=0)  # what torch computes
    expected = (dh.double() * normalised).sum(1)
    torch.testing.assert_close(got["x"].materialize().double(), expected, rtol=1e-5, atol=1e-6)
