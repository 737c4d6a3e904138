"""Modules that keep something of the first batch, or of what is looked up, without noise."""

import pytest
import torch
from torch import nn

import dpexp
from dpexp import cli
from dpexp.training.train import train
from dpexp.types import ConfigError
from tests.marks import few
from tests.runs import ALONE, one_thread  # noqa: F401 (a fixture)
from tests.steps import composed

FLAGS = ("a buffer", "an attribute", "none")


class FirstBatch(nn.Module):
    """Takes its shift from the first batch, as Glow's ActNorm does (Kingma and Dhariwal 2018)."""

    def __init__(self, size, flag, is_parameter, in_eval=False):
        super().__init__()
        self.in_eval = in_eval
        zeros = torch.zeros(size)
        if is_parameter:
            self.shift = nn.Parameter(zeros)
        else:
            self.register_buffer("shift", zeros)
        if flag == "a buffer":
            self.register_buffer("is_set", torch.tensor(False))
        elif flag == "an attribute":
            self.is_set = False

    def forward(self, x):
        is_set = self.is_set if hasattr(self, "is_set") else self.shift.any()
        if (self.training or self.in_eval) and not is_set:
            with torch.no_grad():
                self.shift.copy_(x.mean(0))
            if isinstance(getattr(self, "is_set", None), bool):
                self.is_set = True
            elif hasattr(self, "is_set"):
                self.is_set.fill_(True)
        return x - self.shift


class Table(nn.Module):
    """Looks few rows up, by how bright an image is."""

    def __init__(self, kind):
        super().__init__()
        self.table = kind(8, 64, max_norm=0.5)

    def forward(self, x):
        rows = (x.detach().mean(1, keepdim=True).abs() * 8).long().clamp(max=7)
        found = self.table(rows)
        return x + (found if found.ndim == 2 else found[:, 0])


def run(first, method, tmp_path):
    """Train a model whose first module this is, before a linear classifier."""
    config = composed(*method, "model=linear", f"results={tmp_path}")
    parts = cli.build_parts(config, ALONE.device)
    inner = parts.model
    shape = parts.task.input_shape

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.head = first, nn.Linear(64, 10)

        def forward(self, x):
            return self.head(self.first(x.flatten(1)))

    assert torch.Size(shape).numel() == 64 and isinstance(inner, nn.Module)
    parts.model = Net()
    train(config, parts, ALONE)


METHODS = [("dpsgd",), ("dpsgd", "method.train=head"), ("dp_zo", "method.train=head")]


@pytest.mark.parametrize("method", few(map(pytest.param, METHODS), METHODS[::2]), ids=" ".join)
@pytest.mark.parametrize("is_parameter", [True, False], ids=["parameter", "buffer"])
@pytest.mark.parametrize("flag", FLAGS)
def test_what_the_first_batch_sets_is_refused_before_it_leaves(
    flag, is_parameter, method, tmp_path
):
    # DP-ZO takes losses in eval mode, and only writes there would leave.
    first = FirstBatch(64, flag, is_parameter, in_eval=method[0] == "dp_zo")
    with pytest.raises(ConfigError, match="Expected .*(shift|is_set)|FirstBatch") as refused:
        run(first, method, tmp_path)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.rglob("result.json"))


@pytest.mark.parametrize("flag", ["a buffer", "an attribute"])
def test_counting_outputs_does_not_set_what_the_first_batch_would(flag, tmp_path):
    """dpexp.train calls a model on blanks; set by these, it would pass the trial and train so."""
    model = nn.Sequential(nn.Linear(4, 4), FirstBatch(4, flag, True, True), nn.Linear(4, 3))
    train, few = (torch.rand(24, 4), torch.arange(24) % 3), {"epochs": 1, "batch_size": 8}
    with pytest.raises(ConfigError, match="Expected .*(shift|is_set)|FirstBatch"):
        dpexp.train(model, train, train, eps=8, lr=0.1, results=tmp_path, device="cpu", **few)
    assert not list(tmp_path.rglob("result.json"))


@pytest.mark.parametrize("method", few(map(pytest.param, METHODS), METHODS[::2]), ids=" ".join)
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_a_table_that_lookups_rescale_is_refused(kind, method, tmp_path):
    with pytest.raises(ConfigError, match="first.table is a .* with max_norm"):
        run(Table(kind), method, tmp_path)


def test_what_a_trial_sets_is_not_left_in_the_model(tmp_path):
    first = FirstBatch(64, "a buffer", is_parameter=True)
    with pytest.raises(ConfigError):
        run(first, ("dpsgd",), tmp_path)
    assert not first.is_set and not first.shift.any()


def through_data(module, mean):
    module.shift.data.copy_(mean)


def of_one_value(module, mean):
    module.shift.data.fill_(float(mean.mean()))


def by_another_parameter(module, mean):
    module.shift = nn.Parameter(mean.clone(), requires_grad=False)


def by_lookup(module, mean):
    nn.functional.embedding(torch.tensor([[0]]), module.shift[None], max_norm=1e-3)


class Writes(nn.Module):
    """Writes where real examples alone lead: made-up ones are seldom so alike."""

    def __init__(self, write):
        super().__init__()
        self.shift, self.write = nn.Parameter(torch.ones(64)), write
        self.shift.requires_grad_(False)

    def forward(self, x):
        is_alike = len(x) > 1 and bool((x[:, 0] == x[0, 0]).all())  # a corner that digits leave
        if is_alike:
            with torch.no_grad():
                self.write(self, x.mean(0))
        return x + self.shift


@pytest.mark.parametrize("write", [through_data, of_one_value, by_another_parameter, by_lookup])
@pytest.mark.parametrize("method", [("dpsgd",), ("dp_zo", "method.train=head")], ids=" ".join)
def test_a_write_that_only_real_examples_lead_to_ends_the_run_before_it_leaves(
    write, method, tmp_path
):
    with pytest.raises(ConfigError, match="'first.shift' is written to") as refused:
        run(Writes(write), method, tmp_path)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.rglob("result.json"))


def by_count(module, x):
    module.kept.add_(1)


def by_real_examples(module, x):
    if len(x) > 1 and bool((x[:, 0] == x[0, 0]).all()):  # a corner that digits leave
        module.kept.copy_(x.mean() * torch.ones_like(module.kept))


@pytest.mark.parametrize("write", [by_count, by_real_examples])
@pytest.mark.parametrize("kept", [torch.zeros(()), torch.zeros(2, dtype=torch.cfloat)])
def test_a_buffer_that_passes_write_to_never_leaves(write, kept, tmp_path):
    """A count of micro-batches is a count of the examples that were drawn, without noise."""

    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("kept", kept.clone())

        def forward(self, x):
            write(self, x.detach())
            return x

    with pytest.raises(ConfigError, match="'first.kept' is written to as examples pass"):
        run(Keeps(), ("dpsgd", "micro_batch=1" if write is by_count else "seed=0"), tmp_path)
    assert not list(tmp_path.rglob("result.json"))


@pytest.mark.parametrize("way", ["an extra state", "a hook of its state"])
def test_nor_does_anything_else_of_a_models_state(way, tmp_path):
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x

    class Tells(Counts):
        def get_extra_state(self):
            return torch.tensor(float(self.calls))

        def set_extra_state(self, state):
            self.calls = int(state)

    model = Tells() if way == "an extra state" else Counts()
    if way == "a hook of its state":
        model.register_state_dict_post_hook(
            lambda module, state, prefix, _: state.update(
                {f"{prefix}n": torch.tensor(module.calls)}
            )
        )
    with pytest.raises(
        ConfigError, match="'first.(_extra_state|n)' is written to as examples pass"
    ):
        run(model, ("dpsgd", "micro_batch=1"), tmp_path)
    assert not list(tmp_path.rglob("result.json"))
