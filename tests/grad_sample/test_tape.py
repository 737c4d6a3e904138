"""What the tape refuses, and what it leaves alone."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpexp.grad_sample import Tape
from dpexp.types import ConfigError


def names(model):
    return [name for name, _ in model.named_parameters()]


def ignore(*_):
    pass


def run(model, x, parameters=None, on_layer=ignore):
    with Tape(model, parameters or names(model), on_layer) as tape:
        tape.expect(len(x))
        model(x).sum().backward()
        tape.check_complete()


def test_batch_norm_is_refused_by_name_even_when_frozen():
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))
    with pytest.raises(ConfigError, match="1 is a BatchNorm2d"):
        Tape(model, ["0.weight"], ignore)


def test_layer_without_a_rule_may_be_frozen():
    model = nn.Sequential(nn.Conv1d(1, 1, 1), nn.Linear(2, 2))
    run(model, torch.randn(3, 1, 2), parameters=["1.weight"])


def test_an_input_changed_in_place_is_refused_by_name():
    class Careless(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.middle, self.last = (nn.Linear(3, 3) for _ in range(3))

        def forward(self, x):
            h = self.middle(self.first(x))
            out = self.last(h)
            h.mul_(2)  # autograd lets this pass: with weights frozen it does not need h again
            return out

    model = Careless()
    with Tape(model, [name for name, _ in model.named_parameters()], lambda *_: None) as tape:
        tape.expect(2)
        loss = model(torch.randn(2, 3)).sum()
        with pytest.raises(ConfigError, match="input of layer 'last' to stay unchanged"):
            loss.backward()


def test_layer_outside_the_loss_is_refused_by_name():
    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.used(x)

    with pytest.raises(ConfigError, match=r"\['idle'\]"):
        run(Idle(), torch.randn(3, 2))


def test_a_layer_that_sees_other_rows_than_examples_is_refused_by_name():
    class Most(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.head = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.head(torch.cat([self.layer(x[:2]), x[2:]]))

    with pytest.raises(ConfigError, match="'layer' to see 3 examples; it saw 2 rows in"):
        run(Most(), torch.randn(3, 2))


def test_embedding_options_that_mix_examples_are_refused():
    for options in ({"max_norm": 1.0}, {"scale_grad_by_freq": True}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            run(nn.Sequential(nn.Embedding(3, 2, **options)), torch.tensor([[0, 1]]))


def test_no_weight_gradient_is_formed_and_the_model_is_given_back():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    x = torch.randn(5, 3)
    run(model, x)
    assert all(p.grad is None for p in model.parameters())
    assert all(p.requires_grad for p in model.parameters())
    F.mse_loss(model(x), torch.zeros(5, 2)).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_evaluation_under_no_grad_is_not_taped():
    model, seen = nn.Sequential(nn.Linear(3, 4)), []
    with Tape(model, names(model), lambda *layer_grads: seen.append(layer_grads)), torch.no_grad():
        model(torch.randn(2, 3))
        model(torch.randn(2, 3))
    assert seen == []


def test_frozen_trunk_costs_no_backward():
    trunk = nn.Linear(3, 4)
    model = nn.Sequential(trunk, nn.Linear(4, 2))
    reached = []
    trunk.register_full_backward_hook(lambda *_: reached.append(True))
    run(model, torch.randn(5, 3), parameters=["1.weight", "1.bias"])
    assert reached == []


def test_inputs_are_kept_by_tensors_not_by_nodes_alone():
    """Before torch 2.13 a node lets go of what it saved with the last tensor that it made."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with Tape(model, names(model), ignore) as tape:
        tape.expect(3)
        model(torch.randn(3, 2))
        assert [kept.grad_fn is not None for (kept,) in tape._inputs.values()] == [True, True]


def taken(model, x, parameters=None):
    """Sum every parameter's gradients, as the tape takes them."""
    sums = {}

    def take(layer, layer_grads):
        for name in layer_grads.parameters:
            sums[f"{layer}.{name}"] = layer_grads.gradient(name).materialize().sum(0)

    run(model, x, parameters, take)
    return sums


LAYERS = {
    "linear": (lambda: nn.Linear(4, 4), lambda: torch.randn(3, 4)),
    "convolution": (lambda: nn.Conv2d(2, 4, 3), lambda: torch.randn(3, 2, 5, 5)),
    "embedding": (lambda: nn.Embedding(7, 4), lambda: torch.randint(7, (3, 5))),
    "layer norm": (lambda: nn.LayerNorm(4), lambda: torch.randn(3, 4)),
    "group norm": (lambda: nn.GroupNorm(2, 4), lambda: torch.randn(3, 4, 5)),
}


class Called(nn.Module):
    def __init__(self, layer, how):
        super().__init__()
        self.layer, self.how = layer, how

    def forward(self, x):
        return self.how(self.layer, x).square()


HOW = {
    "keywords": lambda layer, x: layer(input=x),
    "in place after the first": lambda layer, x: F.relu_(layer(x)),
    "scaled in place": lambda layer, x: layer(x).mul_(2).add_(1),
    "through a view in place": lambda layer, x: layer(x).view(len(x), -1).clamp_(min=-0.1),
}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("how", HOW)
def test_the_first_layer_may_be_called_by_keyword_and_changed_in_place(kind, how):
    torch.manual_seed(0)
    make, draw = LAYERS[kind]
    model, x = Called(make(), HOW[how]), draw()
    got = taken(model, x)
    model(x).sum().backward()
    assert set(got) == {name for name, _ in model.named_parameters()}
    for name, weight in model.named_parameters():
        torch.testing.assert_close(got[name], weight.grad)


def test_layer_gradients_name_the_parameters_that_train_and_no_others():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    assert set(taken(model, torch.randn(5, 3), ["0.bias", "2.weight"])) == {"0.bias", "2.weight"}


def test_two_parameters_that_lie_in_one_place_are_refused_by_name():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = nn.Parameter(model[0].weight.data)
    with pytest.raises(ConfigError, match=r"'1\.weight' holds a part of '0\.weight'"):
        Tape(model, ["0.weight"], lambda *_: None)


def whole(model, table):
    model[0].weight = nn.Parameter(table[1:4])
    model[1].weight = nn.Parameter(table[:3])


def turned(model, table):
    model[0].weight = nn.Parameter(table[:3])
    model[1].weight = nn.Parameter(table[:3].T, requires_grad=False)


def within(model, table):
    model[0].weight = nn.Parameter(table[:3])
    model[1].bias = nn.Parameter(table[1])


@pytest.mark.parametrize("place", [whole, turned, within])
def test_parameters_that_lie_partly_in_one_place_are_refused_by_name(place):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    place(model, torch.randn(4, 3))
    with pytest.raises(ConfigError, match=r"'1\.\w+' holds a part of '0\.weight'"):
        Tape(model, ["0.weight"], ignore)


def test_parameters_that_lie_side_by_side_in_one_storage_pass():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    table = torch.randn(6, 6)
    model[0].weight = nn.Parameter(table[:3, :3])
    model[1].weight = nn.Parameter(table[:3, 3:])  # columns, between those of the first
    model[2].weight = nn.Parameter(table[3:, :3])
    Tape(model, names(model), ignore).detach()
