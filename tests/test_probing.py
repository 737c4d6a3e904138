"""Before the first step: what made-up examples show of a model, and what they leave alone."""

import random
import types
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import spectral_norm, weight_norm

from dpexp.data import Examples, cross_entropy
from dpexp.methods.dpsgd import DPSGD
from dpexp.training.probing import check_model
from dpexp.types import ConfigError
from tests.marks import few, long, pairs_long
from tests.runs import one_thread  # noqa: F401
from tests.texts import texts, tiny

CPU, WIDTH = torch.device("cpu"), 6


class Fine(nn.Module):
    """Layers of every kind with a rule, dropout, and a head that starts at zero."""

    def __init__(self, middle=None):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.dense = nn.Linear(4 * 16, WIDTH)
        self.middle = nn.Identity() if middle is None else middle
        self.last = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 3)
        nn.init.zeros_(self.head.weight)

    def forward(self, x):
        h = F.relu(self.norm(self.conv(x)), inplace=True)
        h = F.dropout(self.dense(h.flatten(1)), 0.3, self.training)
        return self.head(self.last(self.middle(h)))


def task_of(model_inputs=(2, 4, 4), loss=cross_entropy):
    train = Examples(torch.full((5, *model_inputs), torch.nan), torch.zeros(5, dtype=torch.int64))
    return types.SimpleNamespace(train=train, num_classes=3, loss=loss)


def check(model, task=None):
    trained = DPSGD("all", "head").trainable(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return check_model(model, trained, task or task_of(), CPU)


def middle(**methods):
    """Make a module of a forward function and, for state, a dict of buffers or attributes."""

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)
            for name, value in methods.get("buffers", {}).items():
                self.register_buffer(name, value)
            for name, value in methods.get("attributes", {}).items():
                setattr(self, name, value)

        def forward(self, x):
            return methods["forward"](self, x)

    return Odd()


class Relative(nn.Module):
    """Adds a table to every example, and gets it as an input beside them, as relative positions."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, h, table):
        return h + self.scale * table.mean(0)


class WithTable(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.inner = Relative()
        self.register_buffer("table", torch.randn(rows, WIDTH))

    def forward(self, h):
        return self.inner(h, self.table)


@pytest.mark.parametrize("rows", few([2, 4, 6, 8, 12, 30], [2, 12]))
def test_a_table_as_long_as_some_batches_is_the_same_for_all_examples(rows):
    assert check(Fine(WithTable(rows))) is None


def running_mean(self, h):
    self.mean.mul_(0.9).add_(0.1 * h.detach().mean(0))
    return self.layer(h - self.mean)


def rebound_mean(self, h):
    before, self.mean = self.mean, 0.9 * self.mean + 0.1 * h.detach().mean(0)
    return self.layer(h) - before


def queue_of_means(self, h):
    out = self.layer(h) - sum(self.kept)
    self.kept.append(h.detach().mean(0))
    return out


def missing_until_seen(self, h):
    before, self.mark = self.mark, torch.tensor(0.0 if len(h) > 2 else torch.nan)
    return self.layer(h + before.nan_to_num(1.0))


def counted(self, h):
    self.seen += len(h)
    return self.layer(h)


def only_backward(self, h):
    mean = h.mean(0, keepdim=True)
    return self.layer(h) + mean - mean.detach()


def gated_by_others(self, h):
    return self.layer(h) * torch.sigmoid(h.max(0).values)


def scaled_by_largest(self, h):
    return self.layer(h / h.detach().abs().max())  # as quantising does


def scaled_by_smallest(self, h):
    return self.layer(h / h.detach().abs().min())


def sometimes(is_so):
    return lambda self, h: self.layer(h + h.mean(0) if is_so() else h)


def in_only_some(self, h):
    return self.layer(h) + (0 if self.training is False else 1e-3 * h.mean(0))


class WholeBatch(torch.autograd.Function):
    """Normalises gradients over the batch."""

    @staticmethod
    def forward(ctx, h):
        return h.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / gradient.norm()


ZERO = torch.zeros(WIDTH)
MIXING = {
    "statistics of the batch": (middle(forward=lambda s, h: s.layer(h - h.mean(0))), "mixed"),
    "a thousandth of the mean": (middle(forward=in_only_some), "mixed"),
    "the scale of the batch's largest": (middle(forward=scaled_by_largest), "mixed"),
    "the scale of its smallest": (middle(forward=scaled_by_smallest), "mixed"),
    "its mean, one time in ten": (middle(forward=sometimes(lambda: torch.rand(()) < 0.1)), "mixed"),
    "nine in ten": (middle(forward=sometimes(lambda: torch.rand(()) > 0.9)), "mixed"),
    "by a coin": (middle(forward=sometimes(lambda: not torch.empty(()).bernoulli_(0.9))), "mixed"),
    "by Python's": (middle(forward=sometimes(lambda: random.random() < 0.1)), "mixed"),
    "by numpy's": (middle(forward=sometimes(lambda: np.random.rand() > 0.9)), "mixed"),
    "the largest of the batch": (middle(forward=gated_by_others), "mixed"),
    "the next one's": (middle(forward=lambda s, h: s.layer(h + h.roll(1, 0))), "mixed"),
    "mixup": (middle(forward=lambda s, h: s.layer(h + h[torch.randperm(len(h))])), "mixed"),
    "the batch's size": (middle(forward=lambda s, h: s.layer(h / len(h))), "mixed"),
    "gradients alone": (middle(forward=only_backward), "mixed"),
    "gradients over the batch": (
        middle(forward=lambda s, h: WholeBatch.apply(s.layer(h))),
        "mixed",
    ),
    "a buffer": (middle(forward=running_mean, buffers={"mean": ZERO}), "'mean' of 'middle'"),
    "a rebound one": (middle(forward=rebound_mean, buffers={"mean": ZERO}), "'mean' of 'middle'"),
    "an attribute": (middle(forward=rebound_mean, attributes={"mean": ZERO}), "'mean' of 'middle'"),
    "a list": (middle(forward=queue_of_means, attributes={"kept": [ZERO]}), "'kept' of 'middle'"),
    "a missing number": (
        middle(forward=missing_until_seen, attributes={"mark": torch.tensor(torch.nan)}),
        "'mark' of 'middle'",
    ),
    "numpy's number an example": (
        middle(forward=lambda s, h: s.layer(h * torch.tensor(np.random.rand(len(h), 1)).to(h))),
        "draw with torch",
    ),
    "a count of examples": (
        middle(forward=counted, buffers={"seen": torch.zeros(())}),
        "'seen' of 'middle'",
    ),
}


OFTEN = ["statistics of the batch", "by a coin", "by Python's", "the largest of the batch", "mixup"]
OFTEN += ["the batch's size", "gradients alone", "gradients over the batch", "a buffer"]
OFTEN += ["an attribute", "a list", "a count of examples"]
OFTEN += ["numpy's number an example"]


@pytest.mark.parametrize("name", few(MIXING, OFTEN))
def test_what_mixes_examples_is_refused_by_name(name):
    odd, said = MIXING[name]
    with pytest.raises(ConfigError) as refused:
        check(Fine(odd))
    if said == "mixed":
        assert "Expected the model to keep examples apart" in str(refused.value)
        said = "'middle', a Odd,"
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_a_loss_that_looks_at_the_batch_is_refused():
    with pytest.raises(ConfigError, match="by the loss, or the model .* how many are in its"):
        check(Fine(), task_of(loss=F.cross_entropy))


def twice(self, h):
    return F.linear(self.layer(h), self.layer.weight)


def with_hook(hook):
    odd = middle(forward=lambda self, h: self.layer(h))
    odd.layer.register_forward_hook(hook)
    return odd


def aliased():
    odd = middle(forward=lambda self, h: self.layer(h) @ self.tied[0].T)
    odd.tied = [odd.layer.weight]
    return odd


def replaced():
    odd = middle(forward=lambda self, h: self.layer(h))
    odd.layer.forward = lambda h: F.linear(h, 2 * odd.layer.weight, odd.layer.bias)
    return odd


def regularised(self, h):
    return self.layer(h) + self.layer.weight.square().sum(1)


WRONG = {
    "a weight used again": lambda: middle(forward=twice),
    "a hundredth of it": lambda: middle(
        forward=lambda s, h: s.layer(h) + 0.01 * F.linear(h, s.layer.weight)
    ),
    "an alias of it": aliased,
    "a penalty": lambda: middle(forward=regularised),
    "a hook that doubles": lambda: with_hook(lambda layer, args, output: 2 * output),
    "a hook that cuts": lambda: with_hook(lambda layer, args, output: output.clamp(min=0)),
    "a forward put in its place": replaced,
}


@pytest.mark.parametrize("name", few(WRONG, [*WRONG][::3]))
def test_a_gradient_that_the_tape_takes_wrongly_is_refused_by_layer(name):
    with pytest.raises(ConfigError, match=r"layer 'middle\.layer' to be used by nothing but"):
        check(Fine(WRONG[name]()))


def count_calls(self, h):
    self.calls += 1
    return self.layer(h)


def look(self, h):
    self.last = h  # kept to be looked at, never read
    return self.layer(h)


SOUND = {
    "nothing odd": lambda: None,
    "a count of calls": lambda: middle(
        forward=count_calls, buffers={"calls": torch.zeros((), dtype=torch.int64)}
    ),
    "what is kept to be looked at": lambda: middle(forward=look, attributes={"last": ZERO}),
    "a hook that looks": lambda: with_hook(lambda layer, args, output: None),
    "dropout of all kinds": lambda: nn.Sequential(
        nn.Dropout(0.5), nn.AlphaDropout(0.2), nn.RReLU(), nn.Linear(WIDTH, WIDTH)
    ),
    "noise by numpy": lambda: middle(
        forward=lambda s, h: s.layer(h * (1 + np.random.rand() * random.random()))
    ),
    "noise on the input": lambda: middle(forward=lambda s, h: s.layer(h + torch.randn_like(h))),
    "keywords": lambda: middle(forward=lambda s, h: s.layer(input=h)),
    "a norm of each": lambda: middle(forward=lambda s, h: s.layer(F.normalize(h, dim=1))),
    "in place": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)),
    "its own precision": lambda: middle(forward=lambda s, h: s.layer(h.float()).to(h)),
}


PASSED = ["nothing odd", "a count of calls", "what is kept to be looked at", "dropout of all kinds"]
PASSED += ["noise on the input", "in place"]


@pytest.mark.parametrize("name", few(SOUND, PASSED))
def test_what_is_sound_passes_and_is_left_as_it_was(name):
    model = Fine(SOUND[name]()).train(False)
    before = {key: (value, value.clone()) for key, value in model.state_dict().items()}
    attributes = {key: repr(vars(module)) for key, module in model.named_modules()}
    chance = torch.get_rng_state()
    others = random.getstate(), np.random.get_state()[1].tobytes()
    assert check(model) is None
    assert others == (random.getstate(), np.random.get_state()[1].tobytes())
    for key, value in model.state_dict().items():
        held, copy = before[key]
        assert value.data_ptr() == held.data_ptr() and torch.equal(value, copy)
    assert {key: repr(vars(module)) for key, module in model.named_modules()} == attributes
    assert torch.equal(torch.get_rng_state(), chance) and not model.training
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


def test_no_private_example_is_looked_at():
    """They are all NaN, and the training set gives out none."""
    task = task_of()
    asked = []
    train = task.train
    task.train = types.SimpleNamespace(batch=lambda at: asked.append(len(at)) or train.batch(at))
    assert check_model(Fine(), DPSGD("all", "head").trainable(Fine()), task, CPU) is None
    assert set(asked) == {0}


def test_a_model_that_takes_no_made_up_example_is_said_to_be_unchecked():
    odd = middle(forward=lambda self, h: 1 / 0)
    with pytest.warns(UserWarning, match="was not tried on made-up examples"):
        said = check_model(Fine(odd), DPSGD("all", "head").trainable(Fine(odd)), task_of(), CPU)
    assert "may mix" in said


@pytest.mark.parametrize(
    ("precision", "kind"),
    pairs_long(
        ["float32", "bfloat16"],
        ["bert", "roberta", "minilm"],
        short=lambda precision, kind: precision == "bfloat16" and kind == "minilm",
    ),
)
def test_language_models_pass_also_in_bfloat16_and_with_dropout(kind, precision):
    model = tiny(kind, dropout=0.1, precision=precision).float()
    task = types.SimpleNamespace(train=texts(kind, (9, 4)), num_classes=3, loss=cross_entropy)
    trained = [name for name, _ in model.named_parameters()]
    assert check_model(model, trained, task, CPU) is None


def test_a_text_whose_features_count_its_padding_is_refused():
    model = tiny("minilm", dropout=0.1).float()
    model._mean = lambda states, mask: states.mean(1)
    task = types.SimpleNamespace(train=texts("minilm", (9, 4)), num_classes=3, loss=cross_entropy)
    trained = [n for n, _ in model.named_parameters() if n.startswith("head.")]
    with pytest.raises(ConfigError, match="keep examples apart"):
        check_model(model, trained, task, CPU)


PIECES = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "norm": lambda: nn.LayerNorm(WIDTH),
    "relu": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True)),
    "dropout": lambda: nn.Dropout(0.2),
    "tree": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sequential(nn.Tanh())),
}
PLANTED = {
    "mixes": (lambda: middle(forward=lambda s, h: s.layer(h) + 0.1 * h.mean(0)), "a Odd,"),
    "twice": (lambda: middle(forward=twice), ".layer' to be used"),
    "keeps": (
        lambda: middle(forward=running_mean, buffers={"mean": torch.zeros(WIDTH)}),
        "'mean' of",
    ),
}


LISTS = st.lists(st.sampled_from(sorted(PIECES)), max_size=5)


@pytest.mark.parametrize("examples", [4, long(15)])
def test_a_defect_is_found_wherever_it_is_planted(examples):
    settings(max_examples=examples)(given(LISTS, st.data())(assert_found))()


def assert_found(pieces, data):
    made = [PIECES[piece]() for piece in pieces]
    assert check(Fine(nn.Sequential(*made))) is None
    make, said = PLANTED[data.draw(st.sampled_from(sorted(PLANTED)))]
    place = data.draw(st.integers(0, len(made)))
    with pytest.raises(ConfigError) as refused:
        check(Fine(nn.Sequential(*made[:place], nn.Sequential(make()), *made[place:])))
    assert f"'middle.{place}.0" in str(refused.value) and said in str(refused.value)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_weight_made_by_a_hook_trains_unless_the_hook_keeps_a_state():
    odd = middle(forward=lambda self, h: self.layer(h))
    weight_norm(odd.layer)
    assert check(Fine(odd)) is None
    odd = middle(forward=lambda self, h: self.layer(h))
    spectral_norm(odd.layer)
    with pytest.raises(ConfigError, match="not to change its buffer 'weight_u'"):
        check(Fine(odd))
