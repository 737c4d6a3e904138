"""Whole runs of one's own models: trained, found again, verified, audited, taken up again."""

import os
import signal
import sys
from pathlib import Path

import pytest

from dpexp import cli, records
from dpexp.privacy.verification.record import verify_record
from dpexp.types import ConfigError
from tests.doors import IMAGE, TEXT, save
from tests.marks import few
from tests.runs import assert_same_run, interrupted, of, one_thread  # noqa: F401
from tests.texts import real_model

pytestmark = pytest.mark.filterwarnings("ignore")

CODE = '''
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Scores:
    """What the model returns, as transformers' models do."""

    logits: torch.Tensor
    hidden: torch.Tensor


class Net(nn.Module):
    def __init__(self, input_shape, num_classes, width, frozen=False):
        super().__init__()
        self.inner = nn.Linear(input_shape[0] * input_shape[1] * input_shape[2], width)
        self.norm, self.scores = nn.BatchNorm1d(width), nn.Linear(width, num_classes)
        self.inner.bias.requires_grad_(not frozen)

    def forward(self, x):
        h = torch.relu(self.norm(self.inner(x.flatten(1))))
        return Scores(self.scores(h), h)


class Wrong(Net):
    def __init__(self, input_shape, num_classes):
        super().__init__(input_shape, num_classes + 1, 8)
        self.norm = nn.Identity()


class Right(Net):
    def __init__(self, input_shape, num_classes):
        super().__init__(input_shape, num_classes, 8)
        self.norm = nn.Identity()


class Broken(Right):
    def forward(self, x):
        raise RuntimeError("of no use\\nhere")


class Words(nn.Module):
    """Takes tokens [n, 3, t]."""

    def __init__(self, num_classes):
        super().__init__()
        self.table, self.out = nn.Embedding(60, 8), nn.Linear(8, num_classes)

    def forward(self, x):
        mask = x[:, 1, :, None].float()
        return self.out((self.table(x[:, 0]) * mask).sum(1) / mask.sum(1))
'''


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    folder, name = tmp_path_factory.mktemp("mine"), f"nets_{os.getpid()}"
    (folder / f"{name}.py").write_text(CODE)
    sys.path.insert(0, str(folder))
    yield name
    sys.path.remove(str(folder))


def done(tmp_path, *words):
    """Do a run twice, verify it, and return its record."""
    config = cli.compose([*words, f"results={tmp_path}"])
    directory = cli.execute(config)
    before = (directory / "result.json").stat().st_mtime_ns
    assert cli.execute(config) == directory
    assert (directory / "result.json").stat().st_mtime_ns == before
    record = records.read(directory)
    found = verify_record(record)
    assert found.findings == () and 7 < found.epsilon <= 8
    assert record.result["model"] == config["model"]["name"]
    return record


@pytest.mark.parametrize("method", few(["dpsgd", "rgp", "lsg", "bitfit"], ["dpsgd", "lsg"]))
def test_a_class_of_ones_own(module, tmp_path, method):
    words = [
        *IMAGE,
        "model=python",
        f"target={module}.Net",
        "model.args.width=16",
        "model.fix=true",
    ]
    rank = [] if method in ("dpsgd", "bitfit") else ["method.rank=4"]
    record = done(tmp_path, *words, f"method={method}", *rank)
    assert record.result["model"] == f"python:{module}.Net"
    assert record.result["model_as_run"]["classifier"].startswith("scores (")
    assert "norm: BatchNorm1d -> GroupNorm" in record.result["model_as_run"]["fixed"][0]
    assert {"scores.weight", "scores.bias"} <= set(record.privacy["trainable"])


def test_a_class_that_takes_texts(module, tmp_path):
    words = [word for word in TEXT if word not in ("model=hf", "model.tokenizer=null")]
    done(tmp_path, *words, "model=python", f"target={module}.Words")


def test_what_its_author_freezes_stays_frozen_and_is_listed(module, tmp_path):
    words = [*IMAGE, "model=python", f"target={module}.Net", "model.fix=freeze"]
    words += ["model.args={width: 16, frozen: true}", "method.freeze=[norm]"]
    record = done(tmp_path, *words)
    assert set(record.privacy["frozen"]) == {"inner.bias", "norm.weight", "norm.bias"}
    said = record.result["model_as_run"]
    assert said["frozen_by_model"] == ["inner.bias"]
    assert said["frozen_by_pattern"] == ["norm.weight", "norm.bias"]


@pytest.mark.long
def test_resnet18_of_torchvision(tmp_path):
    words = [*IMAGE, "model=torchvision", "name=resnet18", "model.pretrained=false"]
    record = done(tmp_path, *words, "model.fix=true", "method=rgp", "method.rank=4", "epochs=0.1")
    assert record.result["model"] == "torchvision:resnet18 of random weights"
    assert len(record.result["model_as_run"]["fixed"]) == 20


@pytest.mark.long
def test_efficientnet_of_timm_with_real_weights(tmp_path):
    pytest.importorskip("timm")
    root = real_model("timm/tf_efficientnet_lite0.in1k")
    words = [*IMAGE, "model=timm", "name=tf_efficientnet_lite0", f"model_root={root}"]
    words += ["model.resize=32", "model.fix=freeze", "method=lsg", "method.rank=4", "epochs=0.1"]
    record = done(tmp_path, *words, "method.freeze=[conv_stem,bn1,'blocks.[0-3].*']")
    assert record.result["model"] == "timm:tf_efficientnet_lite0"
    assert list(record.result["pretrained_sha256"]) == ["timm/tf_efficientnet_lite0"]
    assert "conv_stem.weight" in record.privacy["frozen"]
    assert "resized to 32 x 32" in record.result["model_as_run"]["images"]


@pytest.mark.long
def test_it_is_audited(module, tmp_path):
    words = [
        *IMAGE,
        "model=python",
        f"target={module}.Net",
        "model.args.width=16",
        "model.fix=true",
    ]
    record = done(tmp_path, *words, "audit=one_run", "audit.m=100")
    assert 0 <= record.result["audit_epsilon_lower"] <= record.result["audit_epsilon_accounted"]
    assert any(word.startswith("audited:") for word in record.privacy["deviations"])


@pytest.mark.long
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path, one_thread):  # noqa: F811
    repo = save(tmp_path, "DistilBert")
    words = [*TEXT, f"repo={repo}", "model.pretrained=false", f"model_root={tmp_path}"]
    words += ["method=rgp", "method.rank=2", "epochs=2", "model.dropout=null"]
    whole = cli.execute(cli.compose([*words, f"results={tmp_path / 'whole'}"]))
    config = cli.compose([*words, f"results={tmp_path / 'stopped'}"])
    parts = cli.build_parts(config, "cpu")

    def stop():
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit):
        interrupted(config, parts, 3, stop)
    directory = cli.execute(config)
    assert_same_run(of(directory), of(whole))
    assert Path(directory).name == Path(whole).name


@pytest.mark.parametrize(
    ("net", "words", "said"),
    [
        ("Net", ["model.args.width=16"], "norm is a BatchNorm1d.*Set model.fix=true"),
        ("Net", [], "Expected a value of 'width', which .*Net.* needs; null is none. Set it."),
        ("Net", ["model.args.widht=16"], "Unknown key model.args.widht: .*Did you mean width"),
        ("Net", ["model.args=3"], "Expected model.args to hold settings"),
        ("Wrong", [], r"outputs of shape \[2, 10\].*; it gives \[2, 11\]"),
        ("Wrong", ["model.head=scores"], r"outputs of shape \[2, 10\].*; it gives \[2, 11\]"),
        (
            "Broken",
            [],
            r"made-up ones .RuntimeError: of no use here.\. Set model.args, or",
        ),
        ("Right", ["method=rgp", "model.head=tail"], "a classifier named 'tail'; it has none"),
        ("Right", ["method=rgp", "model.head=score"], "Did you mean scores"),
        ("Right", ["method=dpsgd", "model.head=score"], "Did you mean scores"),
        ("Net", ["model.args.width=16", "model.fix=yes"], "Expected model.fix to be true"),
        ("Absent", [], "has no attribute 'Absent'"),
    ],
)
def test_what_does_not_fit_is_one_line(module, tmp_path, net, words, said):
    words = [*IMAGE, "model=python", f"target={module}.{net}", *words, f"results={tmp_path}"]
    with pytest.raises(ConfigError, match=said) as raised:
        cli.execute(cli.compose(words))
    assert "\n" not in str(raised.value)
