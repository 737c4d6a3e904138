"""A number that no run of a cell can have is refused before any run."""

import textwrap
from dataclasses import replace

import pytest

from dpexp.cli import all as suite
from dpexp.cli import artifact as script
from dpexp.reporting.collect.named import require_named
from dpexp.types import ConfigError
from tests.marks import long

OWN = """
title: "Mine"
place: "My paper, Table 1"
metric: test_accuracy
row_head: [Method]
rows:
  - {key: dpsgd, labels: [DP-SGD], overrides: [method=dpsgd, model=linear]}
  - {key: np, labels: [N.P.], overrides: [method=nonprivate, model=linear]}
columns:
  - {key: eps2, label: "digits, ε = 2", overrides: [task=digits, eps=2]}
claims:
  - {says: "N.P. first", above: [np], below: [dpsgd]}
profiles:
  embedded: {seeds: [0], overrides: [epochs=0.2], scaled: "Short."}
"""
CURVES = (
    (
        "metric: test_accuracy",
        "metric: test_accuracy\nfigure: {kind: curves, x: epoch, x_label: e}",
    ),
    ('label: "digits, ε = 2"', "panel: digits"),
)

ATTACK = "attack_success"


@pytest.fixture
def own(tmp_path):
    """Return a function that writes an artifact of one's own, and the words that build it."""

    def written(*edits, name="t1"):
        text = textwrap.dedent(OWN)
        for old, new in edits:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "conf" / "artifact" / "mine" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        words = ["paper=mine", "--config-dir", str(tmp_path / "conf"), f"results={tmp_path / 'r'}"]
        return [*words, "workers=1"]  # in this process, whose output is looked at

    return written


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        (
            [("metric: test_accuracy", "metric: test_acuracy")],
            "metric of 'DP-SGD, digits, ε = 2' to be a number of its runs; got test_acuracy. "
            "Did you mean test_accuracy?",
        ),
        long(
            [("metric: test_accuracy", "metric: [test_accuracy, test_accuracy_nm]")],
            "got test_accuracy_nm. Did you mean test_accuracy_mm?",
        ),
        (
            [("below: [dpsgd]", "below: [dpsgd], metric: wall_ss")],
            "metric of claim 'N.P. first' to be a number of its runs; got wall_ss. Did you mean "
            "wall_s?",
        ),
        (
            [("labels: [DP-SGD]", "labels: [DP-SGD], metric: alignment_ratio")],
            "got alignment_ratio. Set the analysis, attack, audit or holdout that it is of",
        ),
        long([("metric: test_accuracy", "metric: attack_success")], "got attack_success. Set the"),
        long([("metric: test_accuracy", "metric: holdout_accuracy")], "got holdout_accuracy."),
        ([*CURVES, ("x: epoch", "x: epochs")], "x of 'DP-SGD, digits' to be a series"),
        long(
            [*CURVES, ("test_accuracy\n", "train_los\n")],
            "to be a series of its runs; got train_los. Did you mean train_loss?",
        ),
    ],
)
def test_a_misspelt_metric_costs_no_run(edits, expected, own, tmp_path, capsys):
    words = own(*edits)
    assert script.main(["t1", *words]) == 2
    single = capsys.readouterr()
    assert suite.main(words) == 2
    together = capsys.readouterr()
    for printed in (single, together):
        assert printed.out == "" and printed.err.count("\n") == 1
        assert expected in printed.err
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    "edits",
    [
        long([("metric: test_accuracy", "metric: [test_accuracy, test_accuracy_mm]")]),
        long([("metric: test_accuracy", "metric: wall_s")]),
        [("model=linear]", "model=linear, analysis=alignment]"), ("test_acc", "alignment_acc")],
        [("model=linear]", "model=linear, attack=loss_threshold]"), ("test_accuracy", ATTACK)],
        long([("linear]", "linear, holdout=train, holdout.size=99]"), ("test_acc", "holdout_acc")]),
    ],
)  # fmt: skip
def test_a_number_that_a_run_may_have_is_let_pass(edits, own, capsys):
    assert script.main(["t1", *own(*edits), "plan=true"]) == 0


def test_code_of_ones_own_may_name_numbers_of_its_own(make, conf, lab):
    from dpexp.reporting.collect import cells
    from dpexp.reporting.schema import spec

    artifact = replace(spec.load(conf, "demo", "table9"), metric=("test_top5",))
    jobs = cells.expand(artifact, "embedded", lab.compose, conf)
    require_named(artifact, jobs)
    ours = [
        replace(job, config={**job.config, "task": {**job.config["task"], "_target_": "dpexp.x"}})
        for job in jobs
        if job.config
    ]
    with pytest.raises(ConfigError, match="got test_top5"):
        require_named(artifact, ours)


def test_a_mistake_in_another_table_shows_before_the_runs_of_all(own, tmp_path, capsys):
    own(("rows:", "rwos:"), name="t2")
    assert suite.main([*own(), "only=mine/t1"]) == 2
    printed = capsys.readouterr()
    assert "t2.yaml" in printed.err and not (tmp_path / "r").exists()


def test_a_warning_of_a_run_is_a_line(own, capsys):
    assert script.main(["t1", *own(("eps=2]", "eps=2.5]"), ("ε = 2", "some"))]) == 0
    err = capsys.readouterr().err
    assert "warning: eps=2.5 has no effect" in err and "UserWarning" not in err


def test_a_row_that_is_refused_leaves_the_others_wherever_results_go(own, tmp_path, capsys):
    """An override that may be at fault ends the build, and the line says in which cell."""
    words = own(("method=dpsgd", "method=rgp"))  # which has nothing to train in a linear model
    assert script.main(["t1", *words]) == 2
    printed = capsys.readouterr()
    assert "[2/2] N.P., digits" in printed.out and "Did you mean" not in printed.err
    assert (tmp_path / "r" / "embedded" / "mine" / "t1.md").is_file()
    assert script.main(["t1", *words, "optimizer.lr=0.1"]) == 2
    printed = capsys.readouterr()
    assert "[2/2]" not in printed.out
    assert "error: DP-SGD, digits, ε = 2: Expected a model with weight matrices" in printed.err
