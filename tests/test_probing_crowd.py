"""Before the first step: parameters that a forward pass moves, mixing by order, gates of chance."""

import random
import types

import numpy as np
import pytest
import torch
from torch import nn

from dpexp import grad_sample
from dpexp.data import cross_entropy
from dpexp.training.probing import check_model
from dpexp.training.probing.recorder import gap
from dpexp.types import ConfigError
from tests.marks import few, some_long
from tests.runs import one_thread  # noqa: F401
from tests.test_probing import CPU, WIDTH, Fine, check, middle
from tests.texts import texts, tiny


def holding(forward, trains=False):
    """Make a module with a parameter, `centre`, that only its forward pass moves."""
    odd = middle(forward=forward)
    odd.centre = nn.Parameter(torch.zeros(WIDTH), requires_grad=trains)
    return odd


@torch.no_grad()
def take_up(self, h):
    self.centre.lerp_(h.mean(0), 0.5)


def before_use(self, h):
    take_up(self, h)
    return self.layer(h - self.centre)


def never_read(self, h):
    take_up(self, h)
    return self.layer(h)


def only_in_training(self, h):
    if not self.training:
        return self.layer(h - self.centre)
    return never_read(self, h)


def rebound(self, h):
    self.centre = nn.Parameter(h.detach().mean(0), requires_grad=False)
    return self.layer(h)


def of_first(self, h):
    self.centre.data.copy_(h[0].detach())  # the same in every batch that begins with it
    return self.layer(h)


def of_bias(self, h):
    out = self.layer(h)
    self.layer.bias.data.add_(0.01 * h.detach().mean(0))
    return out


MOVED = {
    "before it is used": (lambda: holding(before_use), "centre"),
    "and is never read": (lambda: holding(never_read), "centre"),
    "and is read in eval mode": (lambda: holding(only_in_training), "centre"),
    "to a new parameter": (lambda: holding(rebound), "centre"),
    "to the first example": (lambda: holding(of_first), "centre"),
    "where it trains": (lambda: middle(forward=of_bias), "bias"),
}


@pytest.mark.parametrize("name", few(MOVED, [*MOVED][::2]))
def test_a_parameter_that_the_forward_pass_moves_is_refused_by_name(name):
    make, own = MOVED[name]
    model = Fine(make())
    before = {key: (value, value.clone()) for key, value in model.named_parameters()}
    with pytest.raises(ConfigError, match=rf"leaves every parameter as it is; '{own}' of 'middle"):
        check(model)
    for key, value in model.named_parameters():  # nothing of it stays
        assert value is before[key][0] and torch.equal(value, before[key][1])


def tracked_for_eval(self, h):
    if not self.training:
        return self.layer(h - self.mean)
    self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
    return self.layer(h)


def first_kept(self, h):
    before, self.mean = self.mean, h[0].detach()
    return self.layer(h - before)


@pytest.mark.parametrize("forward", [tracked_for_eval, first_kept])
def test_an_attribute_is_refused_that_eval_mode_reads_or_the_first_example_fills(forward):
    odd = middle(forward=forward, attributes={"mean": torch.zeros(WIDTH)})
    with pytest.raises(ConfigError, match=r"remembers .* 'mean' of 'middle', a Odd"):
        check(Fine(odd))


def sorted_by_sum(self, h):
    return self.layer(h[h.detach().sum(1).argsort(descending=True)])


def ranked(self, h):
    return self.layer(h * (1 + 0.1 * h.detach().norm(dim=1, keepdim=True).argsort(0).argsort(0)))


def share_of_rank(self, h):
    rank = h.detach()[:, :1].argsort(0).argsort(0) / max(1, len(h) - 1)
    return self.layer(h * (1 + rank))


def below_median(self, h):
    norms = h.detach().norm(dim=1, keepdim=True)
    return self.layer(h * (norms <= norms.median()))


def beneath_largest(self, h):
    return self.layer(h - h.detach().amax(0))


def but_the_largest(self, h):
    return self.layer(h * (h[:, :1] < h[:, :1].max()))


def ranked_backward(self, h):
    weighed = h * (1 + h.detach().norm(dim=1, keepdim=True).argsort(0).argsort(0))
    return self.layer(h.detach() + weighed - weighed.detach())


class Lost(torch.autograd.Function):
    """Loses gradients in all batches but the smallest."""

    @staticmethod
    def forward(ctx, h):
        return h.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (torch.nan if len(gradient) > 2 else 1)


def lost_backward(self, h):
    return self.layer(Lost.apply(h))


def of_more_than_two(self, h):
    return self.layer(h - h.mean(0) if len(h) > 2 else h)


ORDERS = [sorted_by_sum, ranked, share_of_rank, below_median, beneath_largest, but_the_largest,
          ranked_backward, lost_backward, of_more_than_two]  # fmt: skip
SHOWN = [sorted_by_sum, ranked_backward, of_more_than_two]


@pytest.mark.parametrize("seeds", some_long([2, 50], [2]))
@pytest.mark.parametrize("forward", few(ORDERS, SHOWN), ids=lambda forward: forward.__name__)
def test_mixing_by_order_is_refused_for_every_seed(forward, seeds):
    for seed in range(seeds):
        torch.manual_seed(seed)
        with pytest.raises(ConfigError, match=r"keep examples apart .* by 'middle', a Odd"):
            check(Fine(middle(forward=forward)))


def test_texts_in_the_order_of_their_lengths_are_refused():
    model = tiny("minilm", dropout=0.1).float()
    mean = model._mean

    def by_length(states, mask):
        return mean(states, mask)[mask.sum(1).argsort()]

    model._mean = by_length
    task = types.SimpleNamespace(train=texts("minilm", (9, 4)), num_classes=3, loss=cross_entropy)
    trained = [n for n, _ in model.named_parameters() if n.startswith("head.")]
    with pytest.raises(ConfigError, match="keep examples apart"):
        check_model(model, trained, task, CPU)


KINDS = torch.tensor([0.9, 0.05, 0.0, 0.05])
GATES = {
    "a whole number": lambda: torch.randint(10, ()) == 7,
    "of some range": lambda: torch.randint(5, 15, (1,)) == 12,
    "the greatest of many": lambda: torch.randint(1000, ()) == 999,
    "a middle one": lambda: torch.randint(1000, ()) in range(490, 510),
    "in place": lambda: torch.empty((), dtype=torch.int64).random_(3, 8) == 6,
    "a rare event": lambda: torch.poisson(torch.tensor(0.05)) > 0,
    "many events": lambda: torch.poisson(torch.tensor(4.0)) > 12,
    "no event": lambda: torch.poisson(torch.tensor(4.0)) == 0,
    "all of some coins": lambda: torch.binomial(torch.tensor(9.0), torch.tensor(0.5)) == 9,
    "a long wait": lambda: torch.empty(()).geometric_(0.5) > 9,
    "a rare kind": lambda: torch.multinomial(KINDS, 1) == 3,
    "a rare coin": lambda: torch.bernoulli(torch.tensor(0.05)) > 0,
    "Python's range": lambda: random.randrange(10) == 7,
    "Python's choice": lambda: random.choice("abcdefghijklmno") == "m",
    "numpy's range": lambda: np.random.randint(10) == 7,
}


@pytest.mark.parametrize("name", few(GATES, ["a rare kind"]))
def test_a_gate_on_a_whole_number_is_opened(name):
    is_open = GATES[name]
    odd = middle(forward=lambda self, h: self.layer(h - h.amax(0) if is_open() else h))
    with pytest.raises(ConfigError, match=r"keep examples apart .* by 'middle', a Odd"):
        check(Fine(odd))


SOUND = {
    "a number for all": lambda h: h * (1 + torch.randint(10, ())),
    "a number for each": lambda h: h.roll(1, 1) + torch.randint(3, 90, (len(h), 1)),
    "events": lambda h: h + torch.poisson(h.detach().abs()),
    "a kind for each": lambda h: h * torch.multinomial(h.detach().softmax(1), 2).sum(1)[:, None],
    "coins": lambda h: h + torch.binomial(torch.full_like(h, 9.0), h.detach().sigmoid()),
    "Python's": lambda h: h * random.randrange(10) + np.random.randint(10),
    "nothing finite": lambda h: h / torch.zeros_like(h[:, :1]),
}


@pytest.mark.parametrize("name", few(SOUND, ["coins", "nothing finite"]))
def test_whole_numbers_that_mix_nothing_pass(name):
    assert check(Fine(middle(forward=lambda self, h: self.layer(SOUND[name](h))))) is None


NAN, INF = torch.nan, torch.inf


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ([1.0, NAN], [1.0, NAN], 0.0),
        ([1.0, INF], [1.0, INF], 0.0),
        ([3.0, 4.0, INF], [3.0, 4.5, INF], 0.5 / (9 + 4.5**2) ** 0.5),
        ([1.0, NAN], [1.0, 2.0], INF),
        ([1.0, NAN], [1.0, 0.0], INF),
        ([1.0, -INF], [1.0, torch.finfo(torch.float64).min], INF),
        ([1.0, INF], [1.0, -INF], INF),
        ([1.0, INF], [1.0, NAN], INF),
        ([0.0, 2.0], [0.0, 1.0], 0.5),
    ],
)
def test_what_is_not_finite_in_one_alone_is_a_difference(one, other, apart):
    one, other = (torch.tensor(each, dtype=torch.float64) for each in (one, other))
    assert gap(one, other) == gap(other, one) == pytest.approx(apart, rel=1e-12, abs=0.0)


HUGE, TINY = 1e300, 1e-300


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ([HUGE, HUGE], [HUGE, -HUGE], 2**0.5),  # whose squares are infinite
        ([3 * TINY, 4 * TINY], [3 * TINY, 4.5 * TINY], 0.5 / (9 + 4.5**2) ** 0.5),  # and zero
        ([1 + 2j], [1 + 3j], 0.1**0.5),
        ([1 + 0j], [1.0], 0.0),
        ([1j, complex(NAN)], [1j, complex(NAN)], 0.0),
        ([2**60], [2**60 + 1], 1.0),  # which are one double
        ([2], [1], 0.5),
        ([True, False], [True, False], 0.0),
        ([True], [False], 1.0),
    ],
)
def test_numbers_of_any_size_and_kind_are_told_apart(one, other, apart):
    kinds = [torch.float64 if isinstance(each[0], float) else None for each in (one, other)]
    one, other = (torch.tensor(e, dtype=k) for e, k in zip((one, other), kinds, strict=True))
    assert gap(one, other) == gap(other, one) == pytest.approx(apart, rel=1e-12, abs=0.0)


def test_the_least_difference_is_one():
    one, other = (torch.tensor([1.0, last], dtype=torch.float64) for last in (0.0, TINY))
    assert 0 < gap(one, other) < 1e-300


class Phase(nn.Module):
    """Keeps what it saw in the imaginary part alone, and shifts the next by it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("turn", torch.ones((), dtype=torch.complex128), persistent=False)

    def forward(self, x):
        shifted = x + self.turn.imag
        self.turn = torch.complex(torch.ones_like(self.turn.real), x.detach().double().mean())
        return shifted


def test_what_is_remembered_in_an_imaginary_part_is_found():
    with pytest.raises(ConfigError, match="'turn' of .* does"):
        check(Fine(Phase()))


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return self.weight * x


@pytest.mark.parametrize(
    ("least", "said"),
    [(3, "the rule for Fresh .* 'middle.weight' .* its batch"), (1, "'middle' .* weight is NaN")],
)
def test_a_rule_that_gives_nan_is_refused(least, said):
    fresh = type("Fresh", (Scaled,), {})

    def errs(layer, x, dh):
        each = x * dh
        each[3 % len(x)] *= NAN if len(x) >= least else 1
        return {"weight": each}

    grad_sample.rule(fresh)(errs)
    with pytest.raises(ConfigError, match=said):
        check(Fine(fresh()))
