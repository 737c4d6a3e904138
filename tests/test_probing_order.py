"""Before the first step: models that sort examples, choose rows, or fill in from others."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from dpexp.data import Examples
from dpexp.data.task import cross_entropy
from dpexp.training.probing import check_model
from dpexp.training.probing.draws import MIDDLE
from dpexp.training.probing.trial import Subject
from dpexp.types import Batch, ConfigError
from tests.runs import one_thread  # noqa: F401 (a fixture)
from tests.test_probing import CPU, check, task_of

STEPS, WIDTH = 6, 5


class Made(nn.Module):
    """A layer within, a head, and how they are called."""

    def __init__(self, forward, inner=None):
        super().__init__()
        self.inner = nn.Linear(WIDTH, 8) if inner is None else inner
        self.head, self.own = nn.Linear(8, 3), forward

    def forward(self, x):
        return self.own(self, x)


def task_for(inputs):
    task = task_of()
    task.train = Examples(inputs, torch.zeros(len(inputs)).long())
    return task


SERIES, ROW = torch.zeros(4, STEPS, WIDTH), torch.zeros(4, WIDTH)


def lengths(x):
    return (x != 0).any(2).sum(1)


def sorted_by(key):
    """Sort a batch, call the layer, and put its outputs back."""

    def forward(model, x):
        order = key(x).argsort(stable=True)
        states = torch.tanh(model.inner(x[order]))
        states = states.flatten(1, -2).mean(1) if states.ndim > 2 else states
        return model.head(states[order.argsort()])

    return forward


SORTED = {
    "by length, the longest first": (lambda x: -lengths(x), SERIES),
    "by length, the shortest first": (lengths, SERIES),
    "the whole ones first": (lambda x: (lengths(x) < STEPS).long(), SERIES),
    "by a kind in the first column": (lambda x: x[:, 0].round().long().clamp(0, 2), ROW),
    "by a kind in the last column": (lambda x: -x[:, -1].round().long().clamp(-1, 1), ROW),
    "by the sum": (lambda x: x.sum(1), ROW),
}


@pytest.mark.parametrize("name", SORTED)
def test_what_sorts_a_batch_and_puts_it_back_is_refused(name):
    """A row's gradient is then that of another, clipped by another's norm."""
    key, inputs = SORTED[name]
    with pytest.raises(ConfigError, match="keep examples apart"):
        check(Made(sorted_by(key)), task_for(inputs))


def filled_by_the_batch(model, x):
    known = torch.where(x.isnan(), 0.0, x)
    count = (~x.isnan()).sum(0).clamp(min=1)
    return model.head(torch.tanh(model.inner(torch.where(x.isnan(), known.sum(0) / count, x))))


def filled_where_minus_one(model, x):
    bad = x == -1
    count = (~bad).sum(0).clamp(min=1)
    known = torch.where(bad, 0.0, x).sum(0) / count
    return model.head(torch.tanh(model.inner(torch.where(bad, known, x))))


def two_by_two(model, x):
    """Look at two kinds apart; what is of neither, as a missing value is, has no output."""
    rows = [(x[:, 0] > 0).nonzero()[:, 0], (x[:, 0] <= 0).nonzero()[:, 0]]
    states = torch.cat([torch.tanh(model.inner(x[each])) for each in rows])
    return model.head(states[torch.cat(rows).argsort()])


def filled_by_a_constant(model, x):
    return model.head(torch.tanh(model.inner(torch.where(x.isnan(), 0.5, x))))


def test_missing_values_are_filled_by_constants_alone():
    assert check(Made(filled_by_a_constant), task_for(ROW)) is None
    assert check(Made(two_by_two), task_for(ROW)) is None, "tried without missing values"
    for odd in (filled_by_the_batch, filled_where_minus_one):
        with pytest.raises(ConfigError, match="keep examples apart"):
            check(Made(odd), task_for(ROW))


def cut_to_the_longest(model, x):
    """Depends on the others: the mean is over what the longest one has."""
    return model.head(torch.tanh(model.inner(x[:, : lengths(x).max().clamp(min=1)])).mean(1))


def test_dark_ends_of_pictures_are_tried_as_zeros_are():
    pixels = torch.zeros((4, STEPS, WIDTH), dtype=torch.uint8)
    with pytest.raises(ConfigError, match="keep examples apart"):
        check(Made(cut_to_the_longest), task_for(pixels))


def test_a_sparse_table_is_tried_like_another():
    def mixed(model, x):
        states = model.inner(x).sum(1)
        return model.head(states - states.mean(0, keepdim=True))

    def apart(model, x):
        return model.head(model.inner(x).sum(1))

    ids = torch.zeros((4, STEPS), dtype=torch.long)
    assert check(Made(apart, nn.Embedding(40, 8, sparse=True)), task_for(ids)) is None
    with pytest.raises(ConfigError, match="keep examples apart"):
        check(Made(mixed, nn.Embedding(40, 8, sparse=True)), task_for(ids))


def gradients(model, x):
    """Return every example's gradients by the tape, and by autograd."""
    names = [name for name, _ in model.named_parameters()]
    y = torch.arange(len(x)) % 3
    found = Subject(model, names, cross_entropy).trial(Batch(x, y), MIDDLE, range(len(x)))
    for row in range(len(x)):
        total = cross_entropy(model(x[[row]]), y[[row]])
        own = torch.autograd.grad(total, list(model.parameters()))
        yield found.each[row], dict(zip(names, own, strict=True))


def in_pieces(model, x):
    """Cut all rows of a batch into pieces of 128, to save memory; made-up ones are fewer."""
    pieces = x.reshape(-1, WIDTH).split(128)
    states = torch.cat([torch.tanh(model.inner(piece)) for piece in pieces])
    return model.head(states.view(len(x), STEPS, -1).mean(1))


def packed(is_there):
    """Call the layer on the rows that are there, of all examples one after another."""

    def forward(model, x):
        mask = is_there(x)
        states = x.new_zeros(*mask.shape, 8)
        states = states.index_put((mask,), torch.tanh(model.inner(x[mask])))
        return model.head(states.sum(1))

    return forward


def drawn(count, *shape):
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(0)).double()


def test_rows_in_pieces_of_one_size_are_refused_where_they_are_no_longer_each_ones():
    model = Made(in_pieces).double()
    assert check(model, task_for(SERIES)) is None
    for found, expected in gradients(model, drawn(5, STEPS, WIDTH)):  # 30 rows: one piece
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=0, atol=1e-12)
    with pytest.raises(ConfigError, match="see 6 rows an example.*it saw 2 in call"):
        [*gradients(model, drawn(64, STEPS, WIDTH))]  # 384 rows: three pieces


def test_rows_that_a_mask_chooses_are_each_ones_or_are_refused():
    """By zeros they are tried, and the layer is then looked at with what is around it."""
    x = drawn(4, STEPS, WIDTH)
    for row, length in enumerate((1, 5, 2, 4)):  # 12 rows of 4 examples, 3 each on average
        x[row, length:] = 0
    model = Made(packed(lambda x: (x != 0).any(2))).double()
    assert check(model, task_for(SERIES)) is None
    for found, expected in gradients(model, x):
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=0, atol=1e-12)
    far = Made(packed(lambda x: ~(x.abs() > 1000).any(2))).double()
    assert check(far, task_for(SERIES)) is None
    with pytest.raises(ConfigError, match="see 6 rows an example.*it saw 3 in call 1"):
        [*gradients(far, torch.where(x == 0, 2000.0, x))]


def require_own_gradients(model, x):
    for found, expected in gradients(model, x):
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=0, atol=1e-12)


def routed(model, x):
    """Call one of two layers on a row; no made-up row is one of the second's."""
    far = x[:, 0] > 1e9
    states = model.inner[0](x).index_put((far,), model.inner[1](x[far]))
    return model.head(torch.tanh(states))


def test_a_layer_that_no_made_up_row_reaches_has_each_ones_gradients():
    """The model was "not tried", and five rows of others were taken for the five examples'."""
    model = Made(routed, nn.ModuleList(nn.Linear(WIDTH, 8) for _ in range(2))).double()
    assert check(model, task_for(ROW)) is None
    x = drawn(5, WIDTH)
    require_own_gradients(model, x)
    x[1::2, 0] = 2e9
    require_own_gradients(model, x / x.norm(dim=1, keepdim=True) * 3e9)


def test_a_single_row_that_is_chosen_is_not_taken_for_one_of_all_examples():
    """Its gradient went to the first example, and was clipped with that one's."""

    def scattered(model, x):
        near = ~(x.abs() > 1e9).any(1)
        states = x.new_zeros(len(x), 8).masked_scatter(near[:, None], model.inner(x[near]))
        return model.head(torch.tanh(states))

    model = Made(scattered).double()
    assert check(model, task_for(ROW)) is None
    x = drawn(4, WIDTH)
    x[:3] += 2e9
    with pytest.raises(ConfigError, match="'inner'.*it saw one row, and whose it is"):
        [*gradients(model, x)]


def in_a_packed_sequence(model, x):
    known = lengths(x).clamp(min=1).cpu()
    rows = pack_padded_sequence(x, known, batch_first=True, enforce_sorted=False)
    return model.head(model.inner(rows)[1][0])


def test_a_packed_sequence_has_each_ones_gradients():
    x = drawn(4, STEPS, WIDTH)
    for row, length in enumerate((1, 5, 2, 4)):
        x[row, length:] = 0
    model = Made(in_a_packed_sequence, nn.GRU(WIDTH, 8, batch_first=True)).double()
    assert check(model, task_for(SERIES)) is None
    require_own_gradients(model, x)


def test_two_views_of_a_batch_are_told_to_stand_side_by_side():
    def one_after_the_other(model, x):
        a, b = model.inner(torch.cat([x, x.flip(1)])).chunk(2)
        return model.head(a + torch.tanh(b))

    def side_by_side(model, x):
        both = model.inner(torch.stack([x, x.flip(1)], 1).flatten(0, 1))
        a, b = both.unflatten(0, (-1, 2)).unbind(1)
        return model.head(a + torch.tanh(b))

    with pytest.raises(ConfigError, match=r"though its output does not.*torch\.stack\(\[a, b\]"):
        check(Made(one_after_the_other), task_for(ROW))
    model = Made(side_by_side).double()
    assert check(model, task_for(ROW)) is None
    require_own_gradients(model, drawn(5, WIDTH))


def test_the_check_finds_nothing_in_models_that_look_at_each_by_itself():
    def each(model, x):
        return model.head(torch.tanh(model.inner(x)).mean(1))

    model = Made(each)
    names = [name for name, _ in model.named_parameters()]
    assert check_model(model, names, task_for(SERIES), CPU) is None
