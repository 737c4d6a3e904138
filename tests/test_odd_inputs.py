"""`dpexp.train` on whatever may be handed over: a run, or one line that says what was expected."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import dpexp
from dpexp.cli.outputs import outputs_of
from dpexp.data.given import examples_of
from dpexp.data.task import fingerprint
from dpexp.types import ConfigError
from tests.marks import few
from tests.runs import one_thread  # noqa: F401 (a fixture)

GEN = torch.Generator().manual_seed(0)
X, Y = torch.rand(12, 6, generator=GEN), torch.randint(3, (12,), generator=GEN)
TEST = torch.rand(6, 6, generator=GEN), torch.randint(3, (6,), generator=GEN)
WORDS = np.array(["a", "b", "c"])


class Casting(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.out = nn.Linear(6, outputs)

    def forward(self, x):
        return self.out(x.float())


class Rows(Dataset):
    """Items as a function makes them of an index."""

    def __init__(self, item, count=12):
        self.item, self.count = item, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.item(index)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


class Unmeasured:
    def __getitem__(self, index):
        return X[index], Y[index]


def read_only(x):
    x = x.numpy().copy()
    x.setflags(write=False)
    return x


def raised(error):
    raise error


NO_NUMBERS = ["object", "str", "S", "longdouble"]

INPUTS = {
    "an array": lambda x: x.numpy(),
    "big-endian": lambda x: x.numpy().astype(">f4"),
    "columns backwards": lambda x: x.numpy()[:, ::-1].copy()[:, ::-1],
    "rows backwards": lambda x: x.numpy()[::-1].copy()[::-1],
    "every other column": lambda x: x.repeat_interleave(2, 1)[:, ::2],
    "transposed": lambda x: x.T.contiguous().T,
    "read-only": read_only,
    "with a graph": lambda x: x.clone().requires_grad_() * 1,
    "a parameter": nn.Parameter,
    "negated lazily": lambda x: torch.complex(x, -x).conj().imag,
    "a frame": lambda x: pd.DataFrame(x.numpy()),
    "unmasked": lambda x: np.ma.masked_array(x.numpy(), False),
}
"""The same inputs in other ways."""

OTHER_INPUTS = {
    "bfloat16": lambda x: x.bfloat16(),
    "float8": lambda x: x.to(torch.float8_e4m3fn),
    "uint16": lambda x: x.mul(3).to(torch.uint16),
    "backwards": lambda x: x.numpy()[::-1, ::-1],
    "expanded": lambda x: x[:1].expand(len(x), -1),
    "NaN and infinite": lambda x: torch.stack([x[:, 0] * np.nan, *(x / 0).T[1:]], 1),
}
"""Other inputs that are trained on."""

NO_INPUTS = {
    **{kind: lambda x, kind=kind: x.numpy().astype(kind) for kind in NO_NUMBERS},
    "datetime": lambda x: x.long().numpy().astype("M8[s]"),
    "records": lambda x: np.zeros((len(x), 6), [("a", "f4"), ("b", "f4")]),
    "masked": lambda x: np.ma.masked_array(x.numpy(), x.numpy() > 0.5),
    "bool": lambda x: x > 0.5,
    "complex64": lambda x: torch.complex(x, x),
    "sparse": lambda x: x.to_sparse(),
    "CSR": lambda x: x.to_sparse_csr(),
    "MKLDNN": lambda x: x.to_mkldnn(),
    "quantized": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "nested": lambda x: torch.nested.nested_tensor([*x]),
    "meta": lambda x: x.to("meta"),
    "0-d": lambda x: torch.tensor(1.0),
    "1-d": lambda x: x[:, 0],
    "no columns": lambda x: x[:, :0],
    "no rows": lambda x: x[:0],
    "fewer rows": lambda x: x[:-1],
    "ragged": lambda x: [x[0, :3], *x[1:]],
    "lists": lambda x: x.tolist(),
    "a list of arrays": lambda x: [*x.numpy()],
    "none": lambda x: None,
    "a word": lambda x: "word",
}

LABELS = {
    **{str(kind): lambda y, kind=kind: y.to(kind) for kind in (torch.uint8, torch.uint16)},
    "backwards": lambda y: y.numpy()[::-1].copy()[::-1],
    "big-endian": lambda y: y.numpy().astype(">i8"),
    "a list": lambda y: y.tolist(),
    "a series": lambda y: pd.Series(y.numpy()),
    "a categorical": lambda y: pd.Categorical(y.numpy()),
}

NO_LABELS = {
    "words": lambda y: WORDS[y],
    "words as objects": lambda y: WORDS[y].astype(object),
    "a list of words": lambda y: [*WORDS[y]],
    "numbers as objects": lambda y: y.numpy().astype(object),
    "nothing": lambda y: np.array([None] * len(y)),
    "none": lambda y: None,
    "bool": lambda y: y > 0,
    "complex64": lambda y: y.to(torch.complex64),
    "floats": lambda y: y.float(),
    "bfloat16": lambda y: y.bfloat16(),
    "NaN": lambda y: y * np.nan,
    "one-hot": lambda y: nn.functional.one_hot(y, 3),
    "a column": lambda y: y[:, None],
    "0-d": lambda y: torch.tensor(1),
    "negative": lambda y: y - 1,
    "too large": lambda y: y + 1,
    "huge": lambda y: y + 2**62,
    "unsigned and huge": lambda y: np.full(len(y), 2**63, "u8"),
    "fewer": lambda y: y[:-1],
    "sparse": lambda y: y.to_sparse(),
    "meta": lambda y: y.to("meta"),
    "dates": lambda y: y.numpy().astype("M8[s]"),
    "a categorical of words": lambda y: pd.Categorical(WORDS[y]),
    "a series of words": lambda y: pd.Series(WORDS[y]),
}

SETS = {
    "triples": Rows(lambda i: (X[i], Y[i], f"row {i}")),
    "lists": Rows(lambda i: (X[i].tolist(), int(Y[i]))),
    "arrays": Rows(lambda i: (X[i].numpy(), Y[i].numpy())),
    "arrays backwards": Rows(lambda i: (X[i].flip(0).numpy()[::-1], Y[i].numpy())),
    "numpy numbers": Rows(lambda i: (X[i], Y.numpy()[i])),
    "labels of shape [1]": Rows(lambda i: (X[i], Y[i : i + 1])),
    "a list of two": [X, Y],
    "a subset by a tensor": Subset(TensorDataset(X, Y), torch.arange(12)),
    "a subset by an array": Subset(TensorDataset(X, Y), np.arange(12)),
    "a list of pairs": [*zip(X, Y, strict=True)],
}

NO_SETS = {
    "dictionaries": Rows(lambda i: {"x": X[i], "y": Y[i]}),
    "nothing": Rows(lambda i: None),
    "singles": Rows(lambda i: (X[i],)),
    "tensors": Rows(lambda i: X[i]),
    "words": Rows(lambda i: "ab"),
    "labels that are words": Rows(lambda i: (X[i], WORDS[Y[i]])),
    "labels that are none": Rows(lambda i: (X[i], None)),
    "labels that are bool": Rows(lambda i: (X[i], bool(Y[i]))),
    "labels of two types": Rows(lambda i: (X[i], int(Y[i]) if i % 2 else float(Y[i]))),
    "labels one-hot": Rows(lambda i: (X[i], nn.functional.one_hot(Y[i], 3))),
    "labels beyond 64 bits": Rows(lambda i: (X[i], 2**70)),
    "sparse inputs": Rows(lambda i: (X[i].to_sparse(), Y[i])),
    "meta inputs": Rows(lambda i: (X[i].to("meta"), Y[i])),
    "inputs of objects": Rows(lambda i: (object(), Y[i])),
    "numbers as inputs": Rows(lambda i: (X[i, 0], Y[i])),
    "ragged": Rows(lambda i: (X[i, : 1 + i % 6], Y[i])),
    "an error": Rows(lambda i: raised(ValueError("one\ntwo"))),
    "a stop": Rows(lambda i: raised(StopIteration())),
    "too short": Rows(lambda i: (X[i], Y[i]), 13),
    "empty": Rows(lambda i: (X[i], Y[i]), 0),
    "negative in length": Rows(lambda i: (X[i], Y[i]), -1),
    "no length": Unmeasured(),
    "a stream": Stream(),
    "a class": Rows,
    "a bad subset": Subset(TensorDataset(X, Y), [0, 99]),
    "a loader": DataLoader(TensorDataset(X, Y), 4),
    "a generator": (pair for pair in zip(X, Y, strict=True)),
    "an iterator": zip(X, Y, strict=True),
    "three tensors": (X, Y, Y),
    "an empty list": [],
    "a list of one": [X],
    "a frame": pd.DataFrame(X.numpy()),
    "a dictionary": {"x": X, "y": Y},
    "an array": X.numpy(),
    "numbers": (1, 2),
    "0-d arrays": (np.array(1.0), np.array(1)),
    "none": None,
    "a number": 3,
    "a function": len,
    "a set": {1, 2},
    "bytes": b"abc",
    "a range": range(5),
}

SAME = {
    **{f"inputs: {name}": (of(X), Y) for name, of in INPUTS.items()},
    **{f"labels: {name}": (X, of(Y)) for name, of in LABELS.items()},
    **{f"set: {name}": data for name, data in SETS.items()},
}

OTHERS = {
    "other columns": (TEST[0][:, :3], TEST[1]),
    "another type": (TEST[0].double(), TEST[1]),
    "fewer labels": (TEST[0], TEST[1][:3]),
    "negative labels": (TEST[0], TEST[1] - 1),
    "labels of floats": (TEST[0], TEST[1].float()),
    "no rows": (TEST[0][:0], TEST[1][:0]),
}


def refused():
    """Yield what cannot be trained on, by name, each a training and a test set."""
    for name, of in NO_INPUTS.items():
        yield f"inputs: {name}", (of(X), Y), (of(TEST[0]), TEST[1])
    for name, of in NO_LABELS.items():
        yield f"labels: {name}", (X, of(Y)), TEST
    for name, data in NO_SETS.items():
        yield f"set: {name}", data, TEST
        yield f"test set: {name}", (X, Y), data
    for name, test in OTHERS.items():
        yield f"test: {name}", (X, Y), test


def trained(train, test, results, outputs=3):
    said = {"method": "dpsgd", "eps": 8, "epochs": 0.5, "batch_size": 6, "lr": 0.1, "delta": 1e-3}
    return dpexp.train(Casting(outputs), train, test, **said, device="cpu", results=results)


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("data", SAME.values(), ids=SAME)
def test_how_numbers_are_held_changes_none(data):
    read = examples_of(data, "train")
    assert fingerprint(*read.tensors()) == fingerprint(X, Y) and not read.inputs.requires_grad


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", few(OTHER_INPUTS, ["float8", "uint16", "backwards"]))
def test_numbers_of_many_types_are_trained_on(name, tmp_path):
    of = OTHER_INPUTS[name]
    assert trained((of(X), Y), (of(TEST[0]), TEST[1]), tmp_path).epsilon <= 8


def test_floats_of_any_type_are_a_regression(tmp_path):
    run = trained((X, Y.bfloat16()), (TEST[0], TEST[1].double()), tmp_path, outputs=1)
    assert run.result["test_mse"] >= 0


@pytest.mark.filterwarnings("ignore")
def test_anything_else_is_one_line(tmp_path):
    others = {}
    for name, train, test in refused():
        try:
            others[name] = trained(train, test, tmp_path)
        except ConfigError as error:
            if "\n" in (line := str(error)) or not line.startswith("Expected "):
                others[name] = line
        except Exception as error:  # what a traceback would be of
            others[name] = repr(error)
    assert others == {}
    assert not [*tmp_path.rglob("result.json")]


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ("words", "got an array of <U1. Convert it, words of classes to their places in a list"),
        ("sparse", "got a tensor that is sparse, nested, quantized or meta. Make it dense"),
    ],
)
def test_what_is_no_number_is_named_with_a_remedy(labels, said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        trained((X, NO_LABELS[labels](Y)), TEST, tmp_path)


@pytest.mark.parametrize(
    ("inputs", "first", "says"),
    [
        (torch.zeros(2, 6, 6, 3), nn.Conv2d(3, 2, 3), "takes inputs.permute(0, 3, 1, 2): pass"),
        (torch.zeros(2, 6, 6, 3).byte(), nn.Conv2d(3, 2, 3), "takes inputs.permute(0, 3, 1, 2)"),
        (torch.zeros(2, 6, 6), nn.Conv2d(1, 2, 3), "takes inputs.unsqueeze(1): pass these."),
        (torch.zeros(2, 1, 6, 6), nn.Linear(36, 32), "takes inputs.flatten(1): pass these."),
        (torch.zeros(2, 5, 5).byte(), nn.Linear(36, 32), "Bytes reach it as torch.float32, in [0"),
        (torch.zeros(2, 5, 5), nn.Linear(36, 32), "Pass inputs of a shape that it takes."),
    ],
)
def test_inputs_in_another_layout_are_told_how_to_lay_them_out(inputs, first, says):
    """Bytes, which reach a model as floats, were to be passed as floats."""
    model = nn.Sequential(first, nn.Flatten(), nn.Linear(32, 2))
    labels = torch.zeros(2, dtype=torch.long)
    with pytest.raises(ConfigError) as refused:
        outputs_of(model, examples_of((inputs, labels), "train"))
    assert says in str(refused.value)
    for way in ("permute(0, 3, 1, 2)", "unsqueeze(1)", "flatten(1)"):
        if f"inputs.{way}" in says:
            laid_out = eval(f"inputs.{way}", {"inputs": inputs})
            assert outputs_of(model, examples_of((laid_out, labels), "train")) == 2
