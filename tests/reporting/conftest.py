"""A made-up paper with a table and a figure, and an `execute` that writes genuine records."""

import textwrap
from pathlib import Path

import numpy as np
import pytest

from dpexp import records
from dpexp.privacy import Mechanism, num_steps
from dpexp.privacy import build as build_mechanism
from dpexp.reporting import collect
from dpexp.reporting.collect import build, cells
from dpexp.reporting.render import table
from dpexp.reporting.schema import spec
from dpexp.types import ConfigError, MissingData, Release

DEVICE = "abacus, 2 threads"

EVERY = 5
"""Steps between the evaluations of a run, half an epoch."""

DEMO = """
title: "Two methods as ε grows"
place: "Demo paper, Table 9"
metric: test_accuracy
value_label: "test accuracy in %"
row_head: [Dataset, Method]
rows:
  - {key: plain, labels: [Big, Plain_1], overrides: [task=big, method=plain]}
  - {key: better, labels: [Big, Better], overrides: [task=big, method=better]}
  - {key: future, labels: [Big, Future], overrides: [task=big, method=future]}
columns:
  - {key: eps2, label: "ε = 2", overrides: [eps=2]}
  - {key: eps4, label: "ε = 4", overrides: [eps=4]}
published:
  plain:
    eps2: {value: 50.0, place: "Table 9, row 1, column 1"}
    eps4: {value: 60.0, place: "Table 9, row 1, column 2"}
  better:
    eps2: {value: 70.0, place: "Table 9, row 2, column 1"}
published_note: "Values are made up."
claims:
  - {says: "Better above Plain", above: [better], below: [plain]}
profiles:
  embedded:
    seeds: [0, 1]
    replace: {task=big: task=small}
    relabel: {Big: "small (for Big)"}
    scaled: "Big is replaced by small."
  paper:
    seeds: [0]
"""

FIGURE = """
title: "Two methods as ε grows, drawn"
place: "Demo paper, Figure 4"
metric: test_accuracy
value_label: "test accuracy in %"
figure: {x_name: ε, x_label: "privacy budget ε", log_x: true}
row_head: [Method]
rows:
  - {key: full, labels: [Full], overrides: [method=plain], regardless_of: [eps, epochs]}
  - {key: plain, labels: [Plain], overrides: [method=plain]}
  - {key: better, labels: [Better], overrides: [method=better]}
columns:
  - {key: big-eps2, panel: Big, x: 2, overrides: [task=big, eps=2, epochs=1]}
  - {key: big-eps4, panel: Big, x: 4, overrides: [task=big, eps=4]}
  - {key: pairs-eps3, panel: Pairs, x: 3, overrides: [task=pairs, eps=3]}
published:
  full:
    big-eps2: {value: 95.0, place: "Table 9, Full, Big"}
  better:
    big-eps4: {value: 70.0, place: "Table 9, Better, Big"}
claims:
  - {says: "Better above Plain", above: [better], below: [plain]}
profiles:
  embedded:
    seeds: [0, 1]
    replace: {task=big: task=small, epochs=1: null}
    relabel: {Big: "small (for Big)"}
    scaled: "Big is replaced by small."
  quick:
    seeds: [0]
    skip: {pairs-*: "its pairs were seen before", big-eps2: "it takes too long"}
    scaled: "One seed."
  paper:
    seeds: [0, 1]
"""

CURVES = """
title: "How two methods learn, and what their gradients look like"
place: "Demo paper, Figure 5"
metric: test_accuracy
value_label: "test accuracy in %"
figure: {kind: curves, x: epoch, x_label: "epochs"}
row_head: [Method]
rows:
  - {key: plain, labels: [Plain], overrides: [method=plain]}
  - {key: better, labels: [Better], overrides: [method=better]}
columns:
  - {key: accuracy, panel: Accuracy, overrides: [task=small, eps=4]}
  - key: rank
    panel: Stable rank
    overrides: [task=small, eps=4]
    metric: stable_rank/head
    value_label: "stable rank"
    decimals: 2
published:
  better:
    accuracy: {value: 78.0, place: "Section 9"}
claims:
  - {says: "Better above Plain", above: [better], below: [plain], columns: [accuracy], reduce: mean}
  - {says: "Low rank", above: [5, 5], below: [plain, better], columns: [rank], reduce: max}
  - {says: "Accuracy above rank", above: [accuracy], below: [rank], rows: [plain, better]}
profiles:
  embedded: {seeds: [0, 1, 2], scaled: "Small."}
  paper: {seeds: [0, 1]}
"""

MAPS = """
title: "Where the weights are large"
place: "Demo paper, Figure 6"
metric: intensity/weight
value_label: "|W|"
figure: {kind: maps, x_label: "input, in blocks of 4", y_label: "output, in blocks of 4"}
row_head: [What]
rows:
  - {key: weight, labels: ["|W|"], overrides: []}
  - {key: change, labels: ["|ΔW|"], overrides: [], metric: intensity/change, value_label: "|ΔW|"}
columns:
  - {key: plain, label: Plain, overrides: [method=plain, task=small, eps=4]}
  - {key: better, label: Better, overrides: [method=better, task=small, eps=4]}
claims:
  - {says: "W above dW", above: [weight], below: [change], reduce: mean}
  - {says: "Accurate", above: [plain], below: [30], rows: [weight], metric: test_accuracy}
profiles:
  embedded: {seeds: [0, 1], scaled: "Small."}
"""


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    root = tmp_path / "conf"
    files = {"artifact/demo/table9.yaml": DEMO, "artifact/demo/figure4.yaml": FIGURE}
    files |= {"artifact/demo/figure5.yaml": CURVES, "artifact/demo/figure6.yaml": MAPS}
    names = ("task/big", "task/small", "task/pairs", "method/plain", "method/better")
    files |= {f"{name}.yaml": "" for name in names}
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    return root


class Lab:
    """Composes and executes the demo's configs in a folder of its own.

    `no_data` and `broken` hold (method, eps) pairs that fail in their two ways, `mistaken` those
    whose config is refused; `analyses` tells whether runs keep arrays; `executed` names the runs
    that finished, `tried` counts all.
    """

    def __init__(self, results: Path) -> None:
        self.results = results
        self.no_data: set[tuple[str, float]] = set()
        self.broken: set[tuple[str, float]] = set()
        self.mistaken: set[tuple[str, float]] = set()
        self.analyses = True
        self.executed: list[str] = []
        self.tried = 0

    def compose(self, overrides: list[str]) -> dict:
        words = dict(word.lstrip("+").split("=") for word in overrides)
        eps = float(words["eps"]) if "eps" in words else None
        return {
            "method": {"name": words["method"], "_target_": "dpexp.methods.dpsgd.DPSGD"},
            "model": {"name": "tiny", "weights": f"{words['method']}-{eps}"},
            "task": {"name": words["task"], "dataset_size": 1000},
            "profile": {"name": words["profile"]},
            "eps": eps,
            "seed": int(words["seed"]),
            "epochs": float(words.get("epochs", 2)),
            "eval_every": 0.5,
            "batch_size": 100,
            "privacy": {
                "eps": eps,
                "delta": 1e-5,
                "noise": eps is not None,
                "clip": eps is not None,
                "sampling": "shuffle" if words["method"] == "plain" else "poisson",
                "clip_norm": 1.0,
            },
            "results": str(self.results),
        }

    def execute(self, config: dict) -> Path:
        self.tried += 1
        method, eps = config["method"]["name"], config["eps"]
        if (method, eps) in self.no_data:
            raise MissingData("No data under data/big.\nPut train.parquet there.")
        if (method, eps) in self.mistaken:
            raise ConfigError("Expected batch_size in [1, 1000]; got 5000.")
        if (method, eps) in self.broken:
            raise RuntimeError("the loss is a teapot")
        run = records.Run.open(self.results, config)
        self.executed.append(run.id)
        value = 40 + 5 * (eps or 10) + 2 * config["seed"] + (15 if method == "better" else 0)
        mechanism, last = mechanism_of(config), steps(config)
        for step in range(EVERY, last + 1, EVERY):
            run.log(
                {
                    "step": step,
                    "epoch": step / 10,
                    "train_loss": 1 / step,
                    "clip_fraction": 0.5,
                    "nonfinite": 0,
                    "epsilon": mechanism.epsilon(step),
                    "test_accuracy": value - 10 * (last - step) // EVERY,
                }
            )
        kept = {records.ANALYSIS: arrays(config["seed"])} if self.analyses else {}
        run.finish(result(config, value), privacy(config), kept)
        return run.directory


def result(config: dict, value: float) -> dict:
    second = {"test_accuracy_mm": value - 3} if config["task"]["name"] == "pairs" else {}
    return {
        **second,
        "method": config["method"]["name"],
        "model": config["model"]["name"],
        "task": config["task"]["name"],
        "profile": config["profile"]["name"],
        "seed": config["seed"],
        "eps": config["eps"],
        "delta": config["privacy"]["delta"],
        "metric": "test_accuracy",
        "value": value,
        "test_accuracy": value,
        "epochs": config["epochs"],
        "steps": steps(config),
        "wall_s": 4.0,
        "peak_memory_mb": 100.0,
        "device": DEVICE,
    }


def arrays(seed: int) -> dict:
    """Return what an analysis keeps: 4 + seed observations, one every quarter epoch."""
    epoch = np.arange(4 + seed) / 4
    rank = np.where(epoch == 0.75, np.nan, 2 + seed + epoch) if seed == 2 else 2 + seed + epoch
    return {
        "step": np.arange(4 + seed),
        "epoch": epoch,
        "stable_rank/head": rank,
        "intensity/weight": np.arange(12.0).reshape(3, 4) + 2 * seed,
        "intensity/change": np.ones((3, 4)),
    }


def steps(config: dict) -> int:
    return num_steps(config["epochs"], 1000, 100, config["privacy"]["sampling"])


def mechanism_of(config: dict) -> Mechanism:
    return build_mechanism(
        config["privacy"],
        dataset_size=1000,
        batch_size=100,
        num_steps=steps(config),
        releases=(Release("gradient", 10, 1.0),),
        seed=config["seed"],
    )


def privacy(config: dict) -> dict:
    draws = steps(config) if config["privacy"]["noise"] else 0
    return mechanism_of(config).certificate(
        steps=steps(config), noise_draws=draws, trainable={"head.weight": 10}, frozen={}
    )


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "results")


@pytest.fixture
def make(conf, lab):
    """Return a function that runs an artifact's missing cells and makes it ready to be written."""

    def made(profile="embedded", *, name, overridden=()):
        artifact = spec.load(conf, "demo", name)
        jobs = cells.expand(artifact, profile, lab.compose, conf)
        to_do = build.missing(collect.outcome(job, lab.results) for job in jobs)
        build.run_missing(to_do, lab.execute, lab.results, lambda line: None)
        outcomes = [collect.outcome(job, lab.results) for job in jobs]
        configs = [job.config for job in jobs if job.config]
        values = collect.collect(artifact, outcomes)
        return table.Table(artifact, profile, values, table.settings(configs), overridden)

    return made
