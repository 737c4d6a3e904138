"""`make bench`: its tables stand in docs/speed.md as they were measured, and its floor is one."""

from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import nn

from dpexp import kernels
from dpexp.data import Examples
from dpexp.methods.rgp import RGP
from dpexp.types import ConfigError
from scripts.bench import convolutions, language, recipes, steps
from scripts.bench import measuring as bench
from scripts.bench.words import read

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("case", ["vision", "language"])
def test_the_page_has_the_tables_that_were_measured(case):
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8").splitlines()
    measured = (ROOT / f"results/bench/cpu-{case}.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in measured if line.startswith("|")]
    assert len(rows) > 8 and set(rows) <= set(page)


class Net(nn.Module):
    """Two layers and a head; keeps what flows back to the first."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.came_back = []

    def forward(self, x):
        hidden = self.first(x)
        hidden.register_hook(self.came_back.append)
        return self.head(self.second(hidden.tanh()))


def test_the_floor_reaches_the_first_layer_and_forms_no_gradient_of_a_weight():
    net = Net()
    examples = Examples(torch.randn(6, 5), torch.randint(3, (6,)))
    step = steps.floor_step(examples, lambda: net)
    step.run()
    step.run()
    assert [tuple(gradient.shape) for gradient in net.came_back] == [(6, 4)] * 2
    assert all(float(gradient.abs().sum()) > 0 for gradient in net.came_back)
    assert all(weight.grad is None for weight in net.parameters())


class Noting(RGP):
    """RGP that notes how far each Delta_t is from nothing and from W_t."""

    def deltas(self, model, state, public, gen):
        for name, delta in super().deltas(model, state, public, gen):
            self.noted = float(delta.norm() / model.get_parameter(name).norm())
            yield name, delta


def test_a_private_step_that_is_timed_decomposes_an_update_and_no_weight():
    def new_net():
        return nn.Sequential(OrderedDict(hidden=nn.Linear(5, 4), head=nn.Linear(4, 3)))

    examples = Examples(torch.randn(6, 5), torch.randint(3, (6,)))
    method = Noting(2, "both", 1, 0, "update", residual=True, head_factor=1.0, head="head")
    step = steps.private_step(method, examples, new_net, torch.device("cpu"))
    step.run()  # the first, which bench does not time
    assert method.noted == pytest.approx(1.0)
    step.run()
    assert 0.005 < method.noted < 0.02


def test_the_language_unit_is_the_suites_function_by_transformers_own_model(monkeypatch):
    small = {"layers": 2, "width": 16, "attention_heads": 2, "feed_forward": 24}
    build = language.from_scratch
    monkeypatch.setattr(language, "from_scratch", lambda **shape: build(**shape | small))
    device = torch.device("cpu")
    ours, plain = language.new_model(device), language.plain_model(device)
    assert type(plain.classifier).__name__ == "RobertaForSequenceClassification"
    head = {"head.dense": "classifier.dense", "head.out": "classifier.out_proj"}
    renamed = {}
    for name, weight in ours.state_dict().items():
        for old, new in {**head, "encoder": "roberta"}.items():
            if name.startswith(f"{old}."):
                renamed[f"classifier.{new}{name.removeprefix(old)}"] = weight
    plain.load_state_dict(renamed)
    batch = steps.whole(language.random_texts(2, device))
    torch.testing.assert_close(plain(batch.inputs), ours(batch.inputs))
    frozen = language.plain_model(device, has_frozen_tables=True)
    trained = {name for name, p in frozen.named_parameters() if p.requires_grad}
    assert trained == {name for name in renamed if "embeddings" not in name}


def test_every_round_takes_every_step_once_and_each_begins_with_another():
    taken = []
    timed = {name: (lambda name=name: taken.append(name)) for name in "abc"}
    times = bench.in_turns(timed, rounds=4, device=torch.device("cpu"))
    assert "".join(taken) == "abc" + "bca" + "cab" + "abc"
    assert list(times.columns) == ["a", "b", "c"] and len(times) == 4
    assert (times > 0).all(axis=None)


def test_every_row_of_table4_has_a_step():
    configs = recipes.configs("scratch-eps8")
    assert {"np", "dpsgd", "dpsgd-modern", "rgp-modern", "dp-lora", "dp-zo"} <= set(configs)
    assert "gep" not in configs  # the table has none there


@pytest.mark.long
def test_a_step_of_a_row_has_its_views(monkeypatch):
    configs = recipes.configs("scratch-eps8")
    seen = []
    build = recipes.build_parts

    def counted(config, device):
        parts = build(config, device)
        parts.model.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
        return parts

    monkeypatch.setattr(recipes, "build_parts", counted)
    of_views = {}
    for row in ("dpsgd", "dpsgd-modern"):
        seen.clear()
        recipes.step_of(configs[row], 2, torch.device("cpu")).run()
        of_views[row] = max(seen)
    assert of_views == {"dpsgd": 2, "dpsgd-modern": 8}


def test_rows_of_table4_have_the_layout_that_their_runs_have_and_the_unit_has_torchs(monkeypatch):
    built = []
    build = recipes.build_parts
    monkeypatch.setattr(
        recipes, "build_parts", lambda config, device: built.append(config) or build(config, device)
    )
    steps_of = recipes.steps("scratch-eps8", 2, torch.device("cpu"))
    layouts = {}
    for row in (bench.UNIT, "np", "rgp"):
        built.clear()
        steps_of[row]()
        layouts[row] = {config["model"]["channels_last"] for config in built}
    assert layouts == {bench.UNIT: {False}, "np": {"auto"}, "rgp": {"auto"}}


@pytest.mark.skipif(kernels.compiled() is None, reason="no C compiler with OpenMP here, or no AVX")
def test_convolutions_are_timed_where_they_are_taken_and_the_page_has_them(monkeypatch):
    shapes = list(convolutions.drawn())
    assert len(set(shapes)) > 0.9 * convolutions.DRAWN and shapes == list(convolutions.drawn())
    small = {"a name": convolutions.Shape(2, 6, 32, 48)}
    monkeypatch.setattr(convolutions, "NAMED", small)
    monkeypatch.setattr(convolutions, "drawn", lambda: [convolutions.Shape(1, 4, 16, 32)] * 3)
    table = convolutions.measure(2)
    assert len(table) == 4 and (table[["direct", "winograd"]] > 0).all(axis=None)
    assert (table[["direct error", "winograd error"]] < 1e-6).all(axis=None)
    page = convolutions.markdown(table, 2)
    row = table.iloc[0]
    assert f"| {row['direct']:.2f} | {row['winograd']:.2f} |" in page
    assert "Of 3 random shapes" in page


@pytest.mark.parametrize(
    "words",
    [
        ["--only", "run", "--examples", "5", "--examples", "7"],
        ["--rounds=3", "--rounds=3"],
        ["--rounds=3", "--round", "4"],
        ["--device=cpu", "--only=gep", "--device", "cuda"],
    ],
)
def test_a_word_of_the_bench_that_is_said_twice_is_refused(words):
    with pytest.raises(ConfigError, match=r"--(examples|rounds?|device) is said twice, as \w+ and"):
        read(words)


def test_convolutions_are_a_cpus(monkeypatch):
    with pytest.raises(ConfigError, match="--device=cpu of convolutions"):
        read(["--only", "convolutions", "--device", "cuda"])
    monkeypatch.setattr(kernels, "compiled", lambda: None)
    with pytest.raises(ConfigError, match="did not compile"):
        read(["--only", "convolutions"])


def test_what_does_not_fit_in_memory_is_told_in_a_line(monkeypatch, tmp_path):
    def too_large(*_):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: 1228800000000 bytes.")

    monkeypatch.setattr(bench, "measure", too_large)
    with pytest.raises(ConfigError, match="smaller --batch"):
        bench.run(read(["--only", "vision", f"--results={tmp_path}"]))

    def killed(command, **_):
        return bench.subprocess.CompletedProcess(command, -9, "", "")

    monkeypatch.setattr(bench.subprocess, "run", killed)
    with pytest.raises(ConfigError, match="exit code -9"):
        bench.weigh_apart("vision", "DP-SGD", 32, torch.device("cpu"))
