"""What is wrong shows where a trial's gradients are zero, too."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpexp.training.probing.check import check_model
from dpexp.types import ConfigError
from tests.marks import few
from tests.test_probing import CPU, PIECES, Fine, check, middle, task_of, twice, with_hook


def seldom(self, h):
    return self.layer(h) + F.relu(F.linear(h, self.layer.weight) - 50)


def never(self, h):
    return self.layer(h) + 0 * F.linear(h, self.layer.weight)


def by_its_norm(self, h):
    return self.layer(h) + F.relu(self.layer.weight.norm() - 50)


def of_its_bias(self, h):
    return self.layer(h) + F.relu(self.layer.bias - 50)


@pytest.mark.parametrize("use", [seldom, never, by_its_norm, of_its_bias])
def test_a_second_use_of_a_weight_is_seen_though_its_gradient_is_zero(use):
    with pytest.raises(ConfigError, match=r"'middle\.layer' to be used by nothing but .* is used "):
        check(Fine(middle(forward=use)))


@pytest.mark.parametrize("seed", few([3, 6, 69, 96, 105, 126, 132], [69, 132]))
@pytest.mark.parametrize(
    "odd",
    [lambda: middle(forward=twice), lambda: with_hook(lambda layer, args, output: 2 * output)],
    ids=["twice", "a hook that doubles"],
)
def test_it_is_seen_before_units_that_are_off(odd, seed):
    """From these seeds all six units after it are off for both examples of the first trial."""
    torch.manual_seed(seed)
    layers = PIECES["tree"](), nn.Sequential(odd()), PIECES["relu"]()
    with pytest.raises(ConfigError, match=r"layer 'middle\.1\.0\.layer' to be used by nothing but"):
        check(Fine(nn.Sequential(*layers)))


def test_a_weight_that_is_read_without_a_gradient_and_a_layer_that_is_called_twice_are_no_fault():
    read = middle(forward=lambda self, h: self.layer(h) + self.layer.weight.detach().norm())
    assert check(Fine(read)) is None
    shared = middle(forward=lambda self, h: self.layer(F.relu(self.layer(h))))
    assert check(Fine(shared)) is None


def off():
    layers = PIECES["relu"]()
    nn.init.constant_(layers[0].bias, -1000)
    return layers


def test_what_mixes_gradients_alone_is_named_and_not_what_comes_before_it():
    """After units that are all off every example's states are alike, and so is their mean."""
    odd = middle(forward=lambda self, h: self.layer(h) + 0.1 * h.mean(0))
    layers = off(), PIECES["tree"](), nn.Sequential(odd), PIECES["linear"]()
    with pytest.raises(ConfigError, match=r"by 'middle\.2\.0', a Odd, the gradient of a made-up"):
        check(Fine(nn.Sequential(*layers)))


class Holding(nn.Module):
    """Holds parameters of its own; the loss depends on `scale`, and on `off` by a zero alone."""

    def __init__(self, *unused):
        super().__init__()
        self.scale, self.off = (nn.Parameter(torch.ones(6)) for _ in range(2))
        for name in unused:
            self.register_parameter(name, nn.Parameter(torch.ones(2)))

    def forward(self, h):
        return h * self.scale + 0 * self.off


@pytest.mark.parametrize(
    "names, said",
    [
        (("token",), r"middle\.token has no gradient .* moves it\."),
        (("mask", "token"), r"middle\.mask, middle\.token have no gradient .* moves them\."),
    ],
)
def test_a_parameter_that_nothing_uses_is_told_of(names, said):
    with pytest.raises(UserWarning, match=said):  # `check` makes errors of warnings
        check(Fine(Holding(*names)))


class Attending(nn.Module):
    """Three tokens; the keys' bias adds the same to all scores, which a softmax does not see."""

    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, h):
        tokens = h.reshape(len(h), 3, 2)
        scores = self.query(tokens) @ self.key(tokens).mT
        return (scores.softmax(-1) @ tokens).flatten(1)


def test_a_method_that_takes_losses_alone_may_move_it():
    model = Fine(Holding("token"))
    trained = [name for name, _ in model.named_parameters()]
    assert check_model(model, trained, task_of(), CPU, is_forward_only=True) is None


@pytest.mark.parametrize("kind", [Holding, Attending])
def test_one_whose_gradient_is_always_zero_is_used(kind):
    assert check(Fine(kind())) is None
