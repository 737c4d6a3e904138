"""Modules that read parameters of their own: tokens, tables of positions, scales, biases."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from dpexp.data.task import cross_entropy
from dpexp.grad_sample import Tape
from dpexp.grad_sample.reading import Read, is_read
from dpexp.grad_sample.shared_inputs import trial
from dpexp.training.probing import check_model
from dpexp.training.probing.draws import MIDDLE
from dpexp.training.probing.trial import Subject
from dpexp.types import Batch, ConfigError
from tests.runs import one_thread  # noqa: F401 (a fixture)
from tests.test_probing import CPU, task_of
from tests.texts import LONGEST, VOCABULARY, texts

STEPS, WIDTH = 4, 6
SQUARE = (STEPS, WIDTH)

AHEAD = {  # what is made of a parameter alone, by the shape that it then has for an example
    "as it is": lambda w: w,
    "turned": lambda w: w.movedim(0, -1).contiguous().movedim(-1, 0),
    "grown": lambda w: 1 + w.exp(),
    "cast": lambda w: w.to(torch.float64)[None].squeeze(0),
    "picked": lambda w: w[..., torch.arange(w.shape[-1]).flip(0)],
    "with itself": lambda w: w * w.mean(),
    "resized": lambda w: F.pad(w, (1, 1))[..., 1:-1],
}
TAKEN = {
    "sum": lambda x, w: x + w,
    "sum, the other way": lambda x, w: w + x,
    "difference": lambda x, w: w - x,
    "product": lambda x, w: torch.mul(x, w),
    "quotient": lambda x, w: x / (3 + w * w),
    "in place": lambda x, w: (x * 1).mul_(w),
    "in place, by sign": lambda x, w: plus(x * 1, w),
    "chosen": lambda x, w: torch.where(x > 0, x, w),
    "with two": lambda x, w: torch.addcmul(w, x, w, value=0.5),
    "expanded": lambda x, w: x + w.expand(x.shape),
    "like the other": lambda x, w: x * w.expand_as(x),
    "repeated": lambda x, w: x + shaped(w).repeat(len(x), STEPS // shaped(w).shape[1], 1),
    "put before": lambda x, w: torch.cat([shaped(w).expand(len(x), -1, WIDTH), x], 1),
    "held fixed beside": lambda x, w: x * w + fixed(w),
    "detached beside": lambda x, w: x * w + w.detach() * w.sum().item() + len(w.shape),
}
SHAPES = {
    "a scale": (WIDTH,),
    "a number": (1,),
    "positions": (1, STEPS, WIDTH),
    "positions without an axis": (STEPS, WIDTH),
    "a token": (1, 1, WIDTH),
}
AGAIN = {  # in other ways than are known: the module is run again
    "multiplied as a matrix": lambda x, w: x @ torch.diag(w.flatten()[-WIDTH:]),
    "written into": lambda x, w: filled(x, w),
    "by a function": lambda x, w: F.layer_norm(x, (WIDTH,), w.flatten()[-WIDTH:]),
}


def shaped(w):
    return w.reshape(*[1] * (3 - w.ndim), *w.shape)


def plus(x, w):
    x += w
    return x


def attention(x, bias):
    return F.scaled_dot_product_attention(x, x, x, attn_mask=bias)[:, 0]


@torch.no_grad()
def fixed(w):
    return w.exp()


def filled(x, w):
    x = x.clone()
    x[:, 0] = w.flatten()[-1]
    return x


class Reading(nn.Module):
    """Reads parameters between layers that have rules."""

    def __init__(self, forward, shapes, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.own = nn.ParameterList([])
        for i, shape in enumerate(shapes):
            setattr(self, f"w{i}", nn.Parameter(0.5 * torch.randn(shape)))
        self.count, self.call = len(shapes), forward

    def forward(self, x):
        read = [getattr(self, f"w{i}") for i in range(self.count)]
        return self.last(self.call(torch.tanh(self.first(x)), *read).mean(1))


def by_chain(*pairs):
    """Return a forward pass that takes parameters in turn, each made ahead and then taken."""

    def forward(x, *read):
        for (ahead, taken), w in zip(pairs, read, strict=True):
            x = torch.tanh(TAKEN[taken](x[:, -STEPS:], AHEAD[ahead](w)))
        return x

    return forward


def compared(model, n=5, shape=(STEPS, WIDTH)):
    """Compare every example's gradients with autograd's of it alone, after a trial."""
    model = model.double()
    names = [name for name, _ in model.named_parameters()]
    assert check_model(model, names, task_of(shape), CPU) is None
    gen = torch.Generator().manual_seed(n)
    x, y = torch.randn(n, *shape, generator=gen).double(), torch.arange(n) % 3
    found = Subject(model, names, cross_entropy).trial(Batch(x, y), MIDDLE, range(n))
    for row in range(n):
        total = cross_entropy(model(x[[row]]), y[[row]])
        own = torch.autograd.grad(total, list(model.parameters()), materialize_grads=True)
        for name, gradient in zip(names, own, strict=True):
            torch.testing.assert_close(found.each[row][name], gradient, rtol=1e-9, atol=1e-12)
    return x, y


@settings(max_examples=15)
@given(st.data())
def test_any_way_of_reading_gives_every_example_its_own_gradient(data):
    count = data.draw(st.integers(1, 3))
    shapes = [data.draw(st.sampled_from(list(SHAPES))) for _ in range(count)]
    pairs = [
        (data.draw(st.sampled_from(list(AHEAD))), data.draw(st.sampled_from(list(TAKEN))))
        for _ in range(count)
    ]
    model = Reading(by_chain(*pairs), [SHAPES[each] for each in shapes])
    compared(model, data.draw(st.sampled_from([1, 2, STEPS, WIDTH, 9])))
    assert is_read(model)


@pytest.mark.parametrize("how", AGAIN)
def test_what_is_read_in_another_way_is_run_again(how):
    model = Reading(lambda x, w, v: AGAIN[how](x * w, v), [(WIDTH,), (WIDTH,)])
    compared(model)
    assert not is_read(model)


BESIDE = {  # the forward pass, shapes of what it reads, and whether that is known
    "a number": (lambda x, w: x * w.exp(), [()], True),
    "a table made of two": (lambda x, w, v: x + w @ v, [(STEPS, 2), (2, WIDTH)], True),
    "a table by position": (lambda x, w: x + F.embedding(torch.arange(STEPS), w), [SQUARE], True),
    "halves": (lambda x, w: plus(x * (1 + w[0]), w[1]), [(2, 1, WIDTH)], True),
    "a bias of attention": (lambda x, w: attention(x[:, None], w), [(1, STEPS, STEPS)], True),
    "every step a row": (
        lambda x, w: (x.reshape(-1, WIDTH) * w).reshape(x.shape),
        [(WIDTH,)],
        True,
    ),
    "chosen by content": (lambda x, w: x * w[(x.sum((1, 2)) > 0).long()], [(2, 1, 1)], False),
    "rows of its own": (lambda x, w: x + torch.stack([w] * len(x)), [SQUARE], False),
    "tiled": (
        lambda x, w: (x.reshape(-1, WIDTH) + w.repeat(len(x), 1)).reshape(x.shape),
        [SQUARE],
        False,
    ),
}


@pytest.mark.parametrize("how", BESIDE)
def test_what_is_read_otherwise_still_gives_every_example_its_own_gradient(how):
    forward, shapes, is_known = BESIDE[how]
    compared(model := Reading(forward, shapes), 2 * STEPS)
    assert is_read(model) == is_known


class Within(nn.Module):
    """Has a module that reads within it."""

    def __init__(self, inner, call):
        super().__init__()
        self.inner, self.call, self.last = inner, call, nn.Linear(WIDTH, 3)

    def forward(self, x):
        return self.last(self.call(self.inner, x).mean(1))


class Scale(nn.Module):
    def __init__(self, *shape):
        super().__init__()
        self.gamma, self.beta = (nn.Parameter(torch.rand(*shape)) for _ in "gb")

    def forward(self, x):
        return x * self.gamma + self.beta


def in_windows(inner, x):
    rows = inner(x.reshape(-1, STEPS // 2, WIDTH))
    return rows.reshape(x.shape)


def dropped(inner, x):
    return checkpoint(inner, x.requires_grad_(), use_reentrant=False)


WHERE = {
    "two calls": (lambda inner, x: inner(torch.tanh(inner(x))), (WIDTH,), True),
    "windows": (in_windows, (STEPS // 2, WIDTH), True),
    "once for all": (lambda inner, x: x + inner(torch.ones(1, WIDTH).to(x)), (WIDTH,), False),
    "steps first": (lambda inner, x: inner(x.transpose(0, 1)).transpose(0, 1), (WIDTH,), False),
    "steps first, of their own": (
        lambda inner, x: inner(x.transpose(0, 1)).transpose(0, 1),
        (STEPS, 1, WIDTH),
        False,
    ),
    "dropped and made again": (dropped, (1, STEPS, WIDTH), True),
    "by another": (lambda inner, x: x * inner.gamma + inner.beta, (WIDTH,), False),
    "for some": (lambda inner, x: torch.cat([inner(x[:, :1]), x[:, 1:]], 1), (WIDTH,), True),
}


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("n", [1, STEPS, 5])
def test_gradients_are_an_examples_wherever_the_module_is_called(where, n):
    call, shape, is_known = WHERE[where]
    model = Within(Scale(*shape), call)
    compared(model, n)
    assert is_read(model.inner) == is_known


def test_what_a_module_holds_fixed_has_no_gradient():
    compared(model := Reading(lambda x, w: x * w + fixed(w) + fixed(w * w), [(WIDTH,)]))
    assert is_read(model)


@pytest.mark.parametrize("forward", [lambda x, w, v: (x * w, x + v)[0], lambda x, w, v: x * w])
def test_a_parameter_that_the_loss_has_no_use_of_has_a_gradient_of_zero(forward):
    model = Reading(forward, [(WIDTH,), (WIDTH,)]).double()
    names = [name for name, _ in model.named_parameters()]
    assert check_model(model, names, task_of((STEPS, WIDTH)), CPU) is None and is_read(model)
    x = torch.randn(3, STEPS, WIDTH).double()
    found = Subject(model, names, cross_entropy).trial(
        Batch(x, torch.zeros(3, dtype=torch.int64)), MIDDLE, range(3)
    )
    assert all(found.each[row]["w1"].eq(0).all() for row in range(3))


def test_what_a_module_draws_may_be_drawn_where_it_is_not_run_again():
    def forward(x, w):
        return F.dropout(x + w, 0.5)

    model = Reading(forward, [(1, STEPS, WIDTH)])
    names = [name for name, _ in model.named_parameters()]
    assert check_model(model, names, task_of((STEPS, WIDTH)), CPU) is None
    with pytest.raises(ConfigError, match="draw random numbers"):
        again = Reading(lambda x, w: AGAIN["by a function"](F.dropout(x), w), [(WIDTH,)])
        check_model(
            again, [name for name, _ in again.named_parameters()], task_of((STEPS, WIDTH)), CPU
        )


def test_a_call_that_fails_gives_the_parameters_back():
    model = Reading(lambda x, w: (x + w).reshape(7, 7), [(WIDTH,)])
    held = dict(model.named_parameters())
    with Tape(model, list(held), lambda *_: None) as tape:
        tape.expect(2)
        with trial(), pytest.raises(RuntimeError, match="shape"):
            model(torch.randn(2, STEPS, WIDTH))
    assert all(each is held[name] for name, each in model.named_parameters())
    assert not any(isinstance(each, Read) for each in model.parameters())


def test_a_call_that_is_interrupted_gives_the_parameters_back():
    def interrupted(x, w):
        raise KeyboardInterrupt

    model = Reading(interrupted, [(WIDTH,)])
    held = dict(model.named_parameters())
    with pytest.raises(KeyboardInterrupt), Tape(model, list(held), lambda *_: None) as tape:
        tape.expect(2)
        model(torch.randn(2, STEPS, WIDTH))
    assert all(each is held[name] for name, each in model.named_parameters())


def test_a_number_leaves_half_precision_as_it_is():
    kinds = []

    def scaled(x, w):
        kinds.append((w * x.bfloat16()).dtype)
        return x * w

    model = Reading(scaled, [()])
    with Tape(model, ["w0"], lambda *_: None) as tape, trial():
        tape.expect(2)
        model(torch.randn(2, STEPS, WIDTH))
    assert kinds == [torch.bfloat16]


def test_a_table_that_is_read_row_by_row_has_its_gradients_added_up_at_once():
    def by_step(x, w):
        return torch.stack([x[:, step] + w[step] for step in range(STEPS)], 1)

    model = Reading(by_step, [(STEPS, WIDTH)])
    x, _ = compared(model)
    assert is_read(model)
    held = []
    with Tape(model, ["w0"], lambda _, grads: held.append(grads)) as tape:
        tape.expect(len(x), shape=x.shape[1:])
        tape.backward(model(x).sum())
    assert len(held) == 1 and len(held[0].parts) == 1


def test_what_a_module_keeps_of_a_call_is_not_read_in_the_next():
    kept = []

    def remembering(x, w):
        made = w * 1
        if isinstance(made, Read) and not kept:
            kept.append(made)
        return x + (kept[0] if kept else made)

    model = Reading(remembering, [(WIDTH,)]).double()
    names = [name for name, _ in model.named_parameters()]
    check_model(model, names, task_of((STEPS, WIDTH)), CPU)
    assert kept and not is_read(model)
    assert type(kept[0] + 1) is torch.Tensor and not (kept[0] + 1).requires_grad


def of_some(count):
    """Return a call of a module on some examples alone, as rows are chosen by what they hold."""

    def call(inner, x):
        whole = x.clone()
        whole[:count] = inner(x[:count])
        return whole

    return call


def by_rows(rows):
    return lambda inner, x: inner(x.reshape(-1, STEPS // rows, WIDTH)).reshape(x.shape)


@pytest.mark.parametrize(
    ("tried", "later"),
    [
        (by_rows(2), by_rows(1)),
        (by_rows(2), by_rows(STEPS)),
        (by_rows(1), of_some(1)),
    ],
)
def test_rows_that_no_trial_has_seen_are_not_taken_on_trust(tried, later):
    model = Within(Scale(WIDTH), tried).double()
    names = [name for name, _ in model.named_parameters()]
    assert check_model(model, names, task_of((STEPS, WIDTH)), CPU) is None
    assert is_read(model.inner)
    model.call = later
    batch = Batch(torch.randn(3, STEPS, WIDTH).double(), torch.arange(3))
    with pytest.raises(ConfigError, match="when the model was tried"):
        Subject(model, names, cross_entropy).trial(batch, MIDDLE, range(3))


class Words(nn.Module):
    """Scales every token of a text, all texts' tokens in one row."""

    def __init__(self):
        super().__init__()
        self.table, self.inner = nn.Embedding(VOCABULARY, WIDTH), Scale(WIDTH)
        self.last = nn.Linear(WIDTH, 3)

    def forward(self, x):
        tokens = self.table(x[:, 0])
        scaled = self.inner(tokens.flatten(0, 1)).view_as(tokens)
        return self.last((scaled * x[:, 1, :, None]).sum(1))


def test_texts_of_another_length_than_in_the_trial_are_taken():
    model, own = Words().double(), texts("bert", (LONGEST, 4, 3))
    names = [name for name, _ in model.named_parameters()]
    task = SimpleNamespace(train=own, num_classes=3, loss=cross_entropy)
    assert check_model(model, names, task, CPU) is None
    assert is_read(model.inner)
    batch = own.batch(torch.tensor([1, 2]))
    found = Subject(model, names, cross_entropy).trial(batch, MIDDLE, (0,)).each[0]
    loss = cross_entropy(model(batch.inputs[:1]), batch.targets[:1])
    for name, gradient in zip(
        names, torch.autograd.grad(loss, list(model.parameters())), strict=True
    ):
        torch.testing.assert_close(found[name], gradient)
