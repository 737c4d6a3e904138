"""Examples in memory, in every shape that people hand them over: read, or refused in one line."""

import random
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from dpexp.data.given import examples_of
from dpexp.types import ConfigError

N = 12
X, Y = torch.rand(N, 4), torch.arange(N) % 3
with FakeTensorMode():
    FAKE = torch.rand(N, 4), torch.ones(N).long()


class Items(Dataset):
    """A data set by a function of the index."""

    def __init__(self, item, length=N):
        self.item, self.length = item, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.item(index)


class Endless(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


class WithoutLength(Dataset):
    def __getitem__(self, index):
        return X[index], Y[index]


class RaisesAtAnyName:
    def __getattr__(self, name):
        raise RuntimeError("no such thing")


class RaisesWhereItIsRead:
    @property
    def __getitem__(self):
        raise ValueError("odd")


class RaisesAsArray:
    def __array__(self, *_, **__):
        raise OSError("the disk is gone")


def broken_at_7(index):
    if index == 7:
        raise KeyError("seven\nand more")
    return X[index], Y[index]


def every_other(change):
    return [(change(x) if i % 2 else x, y) for i, (x, y) in enumerate(zip(X, Y, strict=True))]


REFUSED = {
    "fake tensors": (FAKE, "a fake tensor"),
    "a fake target": ((X, FAKE[1]), "a fake tensor"),
    "what raises at any name": (RaisesAtAnyName(), "got RaisesAtAnyName"),
    "what raises where it is read": (RaisesWhereItIsRead(), "RaisesWhereItIsRead has none"),
    "a pair with what raises": ((RaisesAtAnyName(), Y), "item 0 of tuple cannot be read"),
    "an array that raises": ((RaisesAsArray(), Y), "the disk is gone"),
    "uint8 and floats": (every_other(lambda x: (255 * x).to(torch.uint8)), "input 1 is of uint8"),
    "integers and floats": (every_other(lambda x: (9 * x).long()), "input 1 is of int64"),
    "two kinds of floats": (every_other(lambda x: x.half()), "input 1 is of float16"),
    "arrays of two kinds": (every_other(lambda x: x.double().numpy()), "input 0 is of float32"),
    "targets of two kinds": ([(x, i % 2 or 0.5) for i, x in enumerate(X)], "target 1 is of int64"),
    "shapes": (every_other(lambda x: x[:3]), r"input 1 has shape \[3\], input 0 \[4\]"),
    "one on no device": (every_other(lambda x: x.to("meta")), "or meta. Make it dense"),
    "complex": ((X.to(torch.complex64), Y), "got complex64"),
    "complex items": (every_other(lambda x: x)[:0] or [(X[0] * 1j, 0)] * 2, "got complex64"),
    "nested": ((torch.nested.nested_tensor([*X], layout=torch.jagged), Y), "Make it dense"),
    "sparse": ((X.to_sparse(), Y), "Make it dense"),
    "sparse items": (every_other(lambda x: x.to_sparse()), "Make it dense"),
    "a number each": ((torch.tensor(1.0), torch.tensor(1)), r"got \[\] and \[\]"),
    "items that are numbers": ([(x[0], y) for x, y in zip(X, Y, strict=True)], r"got \[12\] and"),
    "targets of several numbers": ([(x, x) for x in X], "cannot be stacked"),
    "a generator": (((x, y) for x, y in zip(X, Y, strict=True)), "got generator"),
    "generators": (((x for x in X), Y), "item 0 of tuple"),
    "a zip": (zip(X, Y, strict=True), "got zip"),
    "a loader": (DataLoader(TensorDataset(X, Y)), "got DataLoader"),
    "no length": (WithoutLength(), "WithoutLength has none .* Read it into tensors"),
    "a stream": (Endless(), "Endless has none"),
    "a length below 0": (Items(broken_at_7, -1), "Items has none"),
    "an item that raises": (Items(broken_at_7), r"item 7 of Items .*KeyError: .seven"),
    "items of three numbers": (
        TensorDataset(X, Y, Y),
        r"item 0 of TensorDataset .*3 parts.* one tensor, .*let its items be \(input, target\)",
    ),
    "three tensors": ((X, X, Y), "item 0 of tuple cannot be read .*12 parts"),
    "a list behind two": (
        [(x, y, [1, 2]) for x, y in zip(X, Y, strict=True)],
        "item 0 of list .*3 parts",
    ),
    "a dict behind two": (
        [(x, y, {"weight": 1.0}) for x, y in zip(X, Y, strict=True)],
        "item 0 of list .*3 parts",
    ),
    "one target a row, in a column": ((X, Y[:, None]), r"\[12, 1\]. Give targets.flatten"),
    "a dict of inputs": (({"a": X, "b": X}, Y), "got a, b. Put other inputs .* into one tensor"),
    "items of one": (Items(lambda i: (X[i],)), "item 0 of Items cannot be read"),
    "items that are dicts": (Items(lambda i: {"x": X[i]}), "item 0 of Items cannot be read"),
    "a list of words": ((X, ["a"] * N), "array of <U1. Convert it"),
    "a list of several types": ((X, [0, 0.5] * 6), "targets of several types"),
    "a list of what is unequal": ((X, [[0], [0, 1]] * 6), "numbers in dense memory"),
    "a list of pairs": ((X, [[0, 1]] * N), r"got \[12, 4\] and \[12, 2\]"),
    "a list of too few": ((X, [0]), "each of the 12 inputs; got 1. Pass both"),
    "numbers of no kind of torch's": ((X.numpy().astype(np.longdouble), Y), "longdouble|float128"),
    "targets that are booleans": ((X, Y > 0), "got bool. Give targets.long"),
    "names of files": (("x.csv", "y.csv"), "item 0 of tuple .*it is text.* by dpexp.run, with"),
    "paths": ([Path("a.png"), Path("b.png")], "item 0 of list .*it is text.* by dpexp.run"),
    "dates": ((np.zeros((N, 2), "M8[s]"), Y), "datetime64"),
}


@pytest.mark.parametrize(("data", "line"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_read_as_it_is_is_one_line(data, line):
    with pytest.raises(ConfigError, match=line) as refused:
        examples_of(data, "train")
    assert "\n" not in str(refused.value) and str(refused.value).startswith("Expected train")


READ = {
    "with gradients": (X.clone().requires_grad_(), Y),
    "a parameter": (nn.Parameter(X), Y),
    "items with gradients": [(nn.Parameter(x), y) for x, y in zip(X, Y, strict=True)],
    "a frame and a column of pandas": (pd.DataFrame(X.numpy()), pd.Series(Y.numpy())),
    "lists of numbers": [(x.tolist(), int(y)) for x, y in zip(X, Y, strict=True)],
    "numpy's numbers as targets": [(x, np.int32(y)) for x, y in zip(X, Y, strict=True)],
    "items of three": Items(lambda i: (X[i], Y[i], "a name")),
    "a list of targets": (X, Y.tolist()),
    "a list of an array and targets": [X.numpy(), Y.tolist()],
    "a list of targets that are tensors": (X, [*Y]),
    "a subclass of tensors": (X.as_subclass(type("Mine", (torch.Tensor,), {})), Y),
}


@pytest.mark.parametrize("data", READ.values(), ids=READ)
def test_what_holds_the_numbers_is_read(data, recwarn):
    found = examples_of(data, "train")
    torch.testing.assert_close(found.inputs, X, rtol=0, atol=0)
    assert torch.equal(found.targets, Y)
    for each in found.tensors():
        assert type(each) is torch.Tensor and not each.requires_grad
    assert not [each for each in recwarn if "differ" in str(each.message)]


def test_integers_among_the_floats_of_a_list_are_floats():
    found = examples_of([([1, 2], 0), ([0.5, 1.5], 1)], "train")
    assert found.inputs.tolist() == [[1, 2], [0.5, 1.5]]


@pytest.mark.parametrize(
    "item", [lambda i: (torch.rand(4), Y[i]), lambda i: (X[i], random.getrandbits(40))]
)
def test_items_that_are_others_when_read_again_are_told_of(item):
    with pytest.warns(UserWarning, match="Items of test differ from one reading to the next"):
        assert len(examples_of(Items(item), "test")) == N


def test_an_item_of_nan_is_the_same_when_it_is_read_again(recwarn):
    examples_of(Items(lambda i: (X[i] * torch.nan, Y[i])), "test")
    assert not [each for each in recwarn if "differ" in str(each.message)]


def of_datasets(**columns):
    return datasets.Dataset.from_dict(columns)


TOKENS = {"input_ids": [[5, 6, 7], [5, 8], [9]], "attention_mask": [[1, 1, 1], [1, 1], [1]]}


@pytest.mark.parametrize("label", ["label", "labels"])
@pytest.mark.parametrize("more", [{}, {"text": ["a b c", "a d", "e"]}])
def test_items_of_hugging_faces_datasets_are_texts_padded_on_the_right(label, more):
    data = of_datasets(**TOKENS, **more, **{label: [1, 0, 2]})
    read = examples_of(data, "train")
    batch = read.batch(torch.arange(3))
    assert read.longest == 3 and batch.targets.tolist() == [1, 0, 2]
    assert batch.inputs[:, 1].tolist() == [[1, 1, 1], [1, 1, 0], [1, 0, 0]]
    padded = {key: [[*row, 0, 0][:3] for row in rows] for key, rows in TOKENS.items()}
    whole = examples_of(({k: torch.tensor(v) for k, v in padded.items()}, [1, 0, 2]), "train")
    assert torch.equal(batch.inputs, whole.batch(torch.arange(3)).inputs)


def test_tokens_without_a_mask_are_as_long_as_they_are():
    read = examples_of(of_datasets(input_ids=TOKENS["input_ids"], label=[1, 0, 2]), "train")
    assert read.batch(torch.arange(3)).inputs[:, 1].sum(1).tolist() == [3, 2, 1]


def test_a_dict_of_one_input_and_a_label_is_a_pair():
    items = [{"pixel_values": X[k].numpy(), "label": int(Y[k])} for k in range(len(X))]
    read = examples_of(items, "train")
    assert torch.equal(read.inputs, X) and torch.equal(read.targets, Y)


@pytest.mark.parametrize(
    "changed, line",
    [
        ({"label": None}, "0 of labels and label"),
        ({"labels": 1}, "2 of labels and label"),
        ({"attention_mask": [1]}, "not as many"),
        ({"input_ids": ["a", "b"]}, "item 1 cannot be read"),
        ({"label": "good"}, "item 1 cannot be read"),
        ({"label": ()}, "item 1 cannot be read"),
        ({"input_ids": [], "attention_mask": []}, "item 1 .* it has no token"),
    ],
)
def test_an_item_that_is_no_text_is_named_in_one_line(changed, line):
    items = [{"input_ids": [5, 6], "attention_mask": [1, 1], "label": 1} for _ in range(3)]
    items[1] = {key: each for key, each in (items[1] | changed).items() if each is not None}
    with pytest.raises(ConfigError, match=line) as refused:
        examples_of(items, "train")
    assert "\n" not in str(refused.value)
