"""A model of a user's own whose modules have no rules trains, end to end, and is verified."""

import os

import pytest
from torch import nn

from dpexp import cli, records
from dpexp.cli import building
from dpexp.privacy.verification.record import verify_record
from dpexp.types import ConfigError
from tests.marks import long
from tests.runs import one_thread, own_model  # noqa: F401 (a fixture)

CODE = '''
"""A small ViT for digits, with torch's own attention; tokens and positions held by the model."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, input_shape, num_classes, width, dropout, mixing):
        super().__init__()
        channels, side, _ = input_shape
        self.patches = nn.Conv2d(channels, width, 2, stride=2)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (side // 2) ** 2 + 1, width))
        self.block = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout, batch_first=True)
        self.head = nn.Linear(width, num_classes)
        self.mixing = nn.Parameter(torch.eye(width)) if mixing else None

    def forward(self, x):
        h = self.patches(x).flatten(2).mT
        h = torch.cat([self.token.expand(len(h), -1, -1), h], 1) + self.positions
        if self.mixing is not None:
            h = h @ self.mixing
        return self.head(self.block(h)[:, 0])
'''
YAML = "_target_: {module}.Net\nname: my_vit\nhead: head\nwidth: 8\ndropout: 0.0\nmixing: false\n"
WORDS = ["model=mine", "task=digits", "profile=embedded", "epochs=0.5", "batch_size=200"]
WORDS += ["micro_batch=50", "eps=8", "device=cpu", "optimizer=adam", "optimizer.lr=1e-2"]

ALL = {"token", "positions", "block.self_attn.in_proj_weight", "block.norm1.weight", "head.bias"}
MATRICES = {"patches.weight", "block.self_attn.out_proj.weight", "block.linear1.weight"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root, name = tmp_path_factory.mktemp("mine"), f"vit_{os.getpid()}"
    with own_model(root, name, CODE, YAML) as word:
        yield word


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("method", "trained", "own"),
    [
        long("dpsgd", ALL | MATRICES, []),
        ("dpsgd", ALL | MATRICES, ["model.dropout=0.1"]),
        ("rgp", MATRICES | {"head.weight"}, ["method.rank=2"]),
        long("lsg", MATRICES | {"head.weight"}, ["method.rank=2"]),
        ("gep", ALL | MATRICES, ["method.m=20", "method.k=8"]),
        long("bitfit", {"block.norm1.weight", "head.bias"}, []),
    ],
)
def test_it_trains_by_every_kind_of_method_and_the_certificate_holds(
    folder, tmp_path, method, trained, own
):
    words = [folder, f"method={method}", *WORDS, *own, f"results={tmp_path}"]
    record = records.read(cli.execute(cli.compose(words)))
    found = verify_record(record)
    assert found.findings == () and 7 < found.epsilon <= 8
    assert trained <= set(record.privacy["trainable"])
    assert record.metrics[-1]["nonfinite"] == 0
    assert "not tried" not in str(record.privacy["deviations"])


@pytest.mark.filterwarnings("ignore")
def test_dropout_where_it_cannot_be_drawn_again_is_refused_before_anything_is_released(
    folder, tmp_path
):
    own = ["model.dropout=0.1", "model.mixing=true"]  # so that the model is run again
    words = [folder, "method=dpsgd", *WORDS, *own, f"results={tmp_path}"]
    config = cli.compose(words)
    with pytest.raises(ConfigError, match="not to draw random numbers"):
        cli.execute(config)
    ledger = records.locate(tmp_path, config) / records.LEDGER
    assert not ledger.exists() or records.read_mark(ledger.parent).steps <= 1


@pytest.mark.parametrize("name", ["python:nets.Net", "mine"])
@pytest.mark.parametrize(
    ("model", "line"),
    [
        (nn.Sequential(nn.Flatten(), nn.LazyLinear(3)), "1 is a LazyLinear that has seen no"),
        (nn.LazyConv2d(3, 2), "the model is a LazyConv2d"),
    ],
)
def test_a_layer_that_has_no_size_yet_is_refused_by_name(name, model, line):
    config = {"model": {"name": name, "head": "auto"}}
    with pytest.raises(ConfigError, match=line):
        building.prepare(model, config, 3)
