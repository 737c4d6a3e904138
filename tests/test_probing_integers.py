"""Before the first step: integers of the trial are as large as the model takes them."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from dpexp.data import Examples
from dpexp.training.probing.largest import LARGEST, largest
from dpexp.types import ConfigError
from tests.runs import one_thread  # noqa: F401 (a fixture)
from tests.test_probing import check, task_of

ROWS, TOKENS = 500, 6


class Typed(nn.Module):
    """Tokens and their types, which are given beside them or told from their places."""

    def __init__(self, mixes):
        super().__init__()
        self.tokens, self.types = nn.Embedding(ROWS, 8), nn.Embedding(2, 8)
        self.head, self.mixes = nn.Linear(8, 3), mixes

    def forward(self, x):
        is_second = (torch.arange(TOKENS, device=x.device) > 2).long()
        ids, types = x.unbind(1) if x.dim() == 3 else (x, is_second.expand_as(x))
        h = (self.tokens(ids) + self.types(types)).mean(1)
        return self.head(h / ids.max().clamp(min=1) if self.mixes else h)


def task_of_integers(*shape):
    task = task_of()
    task.train = Examples(torch.zeros(5, *shape, dtype=torch.int64), torch.zeros(5).long())
    return task


@pytest.mark.parametrize("shape", [(TOKENS,), (2, TOKENS)], ids=["by place", "given"])
def test_a_small_table_beside_a_large_one_hides_no_mixing(shape):
    with pytest.raises(ConfigError, match="keep examples apart"):
        check(Typed(mixes=True), task_of_integers(*shape))
    assert check(Typed(mixes=False), task_of_integers(*shape)) is None


def taking(forward, *tables):
    """Make a module of a forward function and the sizes of its tables."""

    class Taking(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(rows, 4) for rows in tables)
            self.register_buffer("seen", torch.zeros(()))
            self.calls = []

        def forward(self, x):
            self.seen += 1
            self.calls.append(torch.rand(()) + random.random() + np.random.rand())
            return forward(self.tables, x)

    return Taking()


def of_columns(tables, x):
    return sum(table(column) for table, column in zip(tables, x.unbind(1), strict=True))


def of_rows_and_mask(tables, x):
    ids, types, mask = x.unbind(1)
    return (tables[0](ids) + tables[1](types)) * mask[..., None]


def of_sum(tables, x):
    return tables[0](x.sum(1))


def of_ends(tables, x):
    if (x == 7).all() or not (x == 7).any():
        raise ValueError("no end")
    return tables[0](x) + tables[1](x)


KINDS = {
    "one table": (taking(lambda tables, x: tables[0](x), 300), (4,), [299] * 4),
    "a number alone": (taking(lambda tables, x: tables[0](x), 300), (), 299),
    "columns": (taking(of_columns, 7, 3000, 2, 41), (4,), [6, 2999, 1, 40]),
    "ids, types and a mask": (
        taking(of_rows_and_mask, 50, 2),
        (3, 2),
        [[49] * 2, [1] * 2, [LARGEST] * 2],
    ),
    "a sum": (taking(of_sum, 101), (2,), [50, 50]),
    "classes": (taking(lambda tables, x: nn.functional.one_hot(x, 77)), (3,), [76] * 3),
    "any": (taking(lambda tables, x: x.float()), (3,), [LARGEST] * 3),
    "what is told by the tables alone": (taking(of_ends, 40, 30), (3,), [29] * 3),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_integers_are_found_and_nothing_is_left_behind(kind, training):
    model, shape, expected = KINDS[kind]
    model.train(training)
    chance = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tobytes()
    assert largest(model, shape, torch.int64).tolist() == expected
    assert torch.equal(torch.get_rng_state(), chance[0]) and random.getstate() == chance[1]
    assert np.random.get_state()[1].tobytes() == chance[2]
    assert model.training == training and model.seen == 0 and model.calls == []


def test_no_integer_is_larger_than_its_kind_holds():
    model = taking(lambda tables, x: x.float(), 5)
    assert largest(model, (2,), torch.int8).tolist() == [127, 127]


def test_a_model_of_which_no_copy_can_be_made_is_told_by_its_tables():
    """As on a GPU, where a row that is not there would end the process."""
    model = taking(of_columns, 40, 30).to("meta")
    assert largest(model, (2,), torch.int64).tolist() == [29, 29]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_a_copy_is_tried():
    model = taking(of_columns, 40, 300).to("cuda")
    model.last = model.tables[0].weight * 2  # which cannot be copied as it is
    assert largest(model, (2,), torch.int64).tolist() == [39, 299]
    torch.cuda.synchronize()
    assert all(each.is_cuda for each in model.parameters()) and model.seen == 0
