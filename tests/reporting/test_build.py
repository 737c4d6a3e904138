"""From missing runs to cells: mean and spread, failures that don't stop the rest, the plan."""

import json
import math
import re
import shutil
from pathlib import Path

import pytest
import yaml

from dpexp import cli, records
from dpexp.cli import all as every
from dpexp.cli import artifact as script
from dpexp.cli import plan
from dpexp.cli.cost_model import CostModel
from dpexp.reporting import collect
from dpexp.reporting.collect import build, cells, readings, values
from dpexp.reporting.judge import claims
from dpexp.reporting.schema import spec
from dpexp.types import ConfigError
from tests.marks import long
from tests.reporting.shown import edit


@pytest.fixture
def demo(conf, lab):
    """Return a function that expands, runs what is missing and collects."""
    artifact = spec.load(conf, "demo", "table9")

    def make(profile="embedded", user=(), seeds=None, run=True):
        jobs = cells.expand(artifact, profile, lab.compose, conf, user, seeds)
        outcomes = [collect.outcome(job, lab.results) for job in jobs]
        said = []
        if run:
            to_do = build.missing(outcomes)
            build.run_missing(to_do, lab.execute, lab.results, said.append)
            outcomes = [collect.outcome(job, lab.results) for job in jobs]
        return artifact, jobs, outcomes, collect.collect(artifact, outcomes), said

    return make


def test_a_cells_overrides_come_in_order_and_the_users_last(demo):
    _, jobs, *_ = demo(user=("epochs=3",), run=False)
    assert jobs[0].overrides == (
        "profile=embedded",
        "task=small",
        "method=plain",
        "eps=2",
        "seed=0",
        "epochs=3",
    )
    assert jobs[0].config["epochs"] == 3
    assert [job.seed for job in jobs] == [0] * 6 + [1] * 6


def test_an_override_may_be_replaced_by_several(conf, lab):
    edit(conf, "table9", ("task=big: task=small", "task=big: [task=small, epochs=4]"))
    artifact = spec.load(conf, "demo", "table9")
    job, *_ = cells.expand(artifact, "embedded", lab.compose, conf)
    assert job.overrides[:4] == ("profile=embedded", "task=small", "epochs=4", "method=plain")
    assert job.config["epochs"] == 4


def test_the_paper_profile_replaces_nothing(demo):
    _, jobs, *_ = demo("paper", run=False)
    assert "task=big" in jobs[0].overrides
    assert jobs[0].name == "Big, Plain_1, ε = 2"


def test_an_unknown_profile_is_named_with_the_nearest(demo):
    with pytest.raises(ConfigError, match="'papre': did you mean 'paper'"):
        demo("papre")


def test_mean_std_and_published_difference(demo):
    *_, values, _ = demo()
    value = values["plain", "eps4"]
    assert (value.mean, value.num_seeds, value.published) == (61.0, 2, 60.0)
    assert value.std == pytest.approx(math.sqrt(2))  # of 60 and 62, ddof 1
    assert value.difference == pytest.approx(1.0)
    assert value.epsilon == pytest.approx(4, rel=1e-3)  # calibration's promise
    assert values["better", "eps4"].difference is None


def test_one_seed_shows_no_std(demo):
    *_, values, _ = demo(seeds=(1,))
    assert values["plain", "eps2"].std is None
    assert values["plain", "eps2"].num_seeds == 1


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [([], (None, None)), ([3.0], (3.0, None)), ([1.0, 3.0], (2.0, math.sqrt(2)))],
)
def test_mean_and_std(numbers, expected):
    assert readings.mean_and_std(numbers) == pytest.approx(expected)


def test_nothing_is_run_twice(demo, lab):
    demo()
    assert len(lab.executed) == 8
    *_, said = demo()
    assert len(lab.executed) == 8
    assert said == []


def test_cells_with_the_same_config_run_once(conf, lab):
    edit(conf, "table9", ('"ε = 4", overrides: [eps=4]', '"ε = 2, again", overrides: [eps=2]'))
    jobs = cells.expand(spec.load(conf, "demo", "table9"), "embedded", lab.compose, conf)
    outcomes = [collect.outcome(job, lab.results) for job in jobs]
    build.run_missing(build.missing(outcomes), lab.execute, lab.results)
    assert len(lab.executed) == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["eps=8"], "Expected eps to stay 2, as in 'digits (for SVHN), DP-SGD, ε = 2'"),
        long(["privacy.eps=1"], "Expected privacy.eps to stay 2"),
        (["noise=false"], "Expected the eps of 'digits (for SVHN), DP-SGD, ε = 2' to hold; with"),
        long(["clip=false"], "to hold; with clip=false there is none. Remove that override"),
        (["method=lsg"], "Expected method to stay dpsgd"),
        long(["++seed=5"], "Expected seed to stay 0"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_makes_a_cell_what_it_says_cannot_be_overridden(capsys, words, said):
    assert script.main(["table3", "columns=eps2", "plan=true", *words]) == 2
    assert said in capsys.readouterr().err


def test_what_a_cell_says_may_be_said_again():
    jobs = cells.expand(
        spec.load(cli.CONF, "rgp", "table3"), "embedded", cli.compose, cli.CONF, ["eps=2"], [0]
    )
    contradicted = {job.cell[1] for job in jobs if job.contradicts}
    assert contradicted == {"eps4", "eps6"}


def test_a_method_without_a_file_is_not_built(demo):
    *_, values, _ = demo()
    assert values["future", "eps2"].status == collect.NOT_BUILT
    assert values["future", "eps2"].details == ("not built: method=future",)


def test_what_is_not_built_is_said_with_the_nearest_before_the_runs(tmp_path, capsys):
    shutil.copytree(cli.CONF.parent / "examples" / "extension", tmp_path / "mine")
    own = tmp_path / "mine" / "conf"
    (table,) = (own / "artifact").rglob("table1.yaml")
    text = table.read_text(encoding="utf-8").replace("method=two_clips", "method=two_clps")
    table.write_text(text, encoding="utf-8")
    words = ["paper=mine", "--config-dir", str(own), f"results={tmp_path}", "plan=true"]
    assert script.main(["table1", *words, "rows=two-clips"]) == 0
    told = "2 runs not built, as there is no method=two_clps. Did you mean two_clips?"
    assert f"note: {told}\n" in capsys.readouterr().err


@pytest.mark.long
def test_a_cell_whose_grid_is_not_tried_is_said_before_the_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def told(*words):
        """Return what is said before the runs, which are refused as those of other batches."""
        words = ["paper=mine", "--config-dir", str(own), "batch_size=300", *words]
        assert script.main(["table1", *words]) == 2
        return [each for each in capsys.readouterr().err.splitlines() if "grid" in each]

    shutil.copytree(cli.CONF.parent / "examples" / "extension", tmp_path / "mine")
    own = tmp_path / "mine" / "conf"
    (table,) = (own / "artifact").rglob("table1.yaml")
    tree = yaml.safe_load(table.read_text(encoding="utf-8"))
    row, other = (f"rows={each['key']}" for each in tree["rows"][:2])
    assert not told(row)
    tree["rows"][0]["grid"] = [["optimizer.lr=1", "optimizer.lr=2"]]
    table.write_text(yaml.safe_dump(tree), encoding="utf-8")
    (line,) = told(row)
    assert f"{tree['rows'][0]['labels'][0]}, " in line
    assert f"python -m scripts.tune table1 paper=mine profile=embedded --config-dir {own}" in line
    assert not told(other)
    assert not told("run=false")
    words = [f"--config-dir={own}", "only=mine/table1", "batch_size=300"]
    assert every.main([*words, "profile=embedded"]) == 2
    assert f"note: mine table1: {line.removeprefix('note: ')}" in capsys.readouterr().err


def test_a_cell_nobody_ran_says_so(demo):
    *_, values, _ = demo(run=False)
    assert values["plain", "eps2"].status == collect.NOT_RUN


def test_missing_data_is_told_and_the_rest_goes_on(demo, lab):
    lab.no_data = {("plain", 2.0)}
    *_, values, said = demo()
    assert values["plain", "eps2"].status == collect.NO_DATA
    assert values["plain", "eps2"].details == (
        "no data: No data under data/big. Put train.parquet there.",
    )
    assert values["plain", "eps4"].status == "done"
    assert said[0].startswith("[1/8] small (for Big), Plain_1, ε = 2, seed 0: no data: No data un")


def test_a_failed_cell_leaves_its_traceback_and_is_tried_again(demo, lab):
    lab.broken = {("plain", 2.0)}
    _, jobs, _, values, said = demo(seeds=(0,))
    log = lab.results / "embedded" / "logs" / f"{jobs[0].run_id}.log"
    assert values["plain", "eps2"].status == collect.FAILED
    assert values["plain", "eps2"].details == (f"failed: see {log}",)
    assert values["better", "eps4"].status == "done"
    assert "RuntimeError: the loss is a teapot" in said[0]
    assert "Traceback (most recent call last)" in log.read_text()
    lab.broken = set()
    *_, values, _ = demo(seeds=(0,))
    assert values["plain", "eps2"].status == "done"
    assert not log.exists()


def test_a_table_names_paths_from_here(demo, lab, monkeypatch):
    lab.broken = {("plain", 2.0)}
    monkeypatch.chdir(lab.results.parent)
    _, jobs, _, values, _ = demo(seeds=(0,))
    log = f"results/embedded/logs/{jobs[0].run_id}.log"
    assert values["plain", "eps2"].details == (f"failed: see {log}",)


def test_data_once_missing_are_not_looked_for_again(demo, lab):
    lab.no_data = {("plain", 2.0)}
    *_, values, said = demo()
    assert lab.tried == 7  # of 8 runs: the second seed needs what the first one missed
    assert ", seed 1: no data, as above (" in said[4]
    assert values["plain", "eps2"].status == collect.NO_DATA
    assert len(values["plain", "eps2"].details) == 1


def test_a_mistake_in_the_users_overrides_stops_the_build(demo, lab, conf):
    lab.mistaken = {("plain", 4.0)}
    *_, outcomes, _, _ = demo(run=False)
    said = []
    with pytest.raises(
        ConfigError,
        match=r"^small.*, Plain_1, ε = 4: Expected batch_size in \[1, 1000\]; got 5000\.$",
    ):
        build.run_missing(
            build.missing(outcomes),
            lab.execute,
            lab.results,
            said.append,
            stop_at_mistake=True,
        )
    assert len(said) == 1


def test_a_mistake_is_told_from_a_crash(demo, lab):
    lab.mistaken, lab.broken = {("plain", 2.0)}, {("plain", 4.0)}
    _, _, outcomes, _, _ = demo(seeds=(0,))
    assert [build.mistake(item) for item in outcomes[:2]] == [
        "Expected batch_size in [1, 1000]; got 5000.",
        "",
    ]


def test_a_cell_with_some_seeds_failed_shows_the_others(demo, lab):
    demo(seeds=(0,))
    lab.broken = {("plain", 2.0)}
    *_, values, _ = demo()
    assert (values["plain", "eps2"].num_seeds, values["plain", "eps2"].asked) == (1, 2)
    assert len(values["plain", "eps2"].details) == 1


def test_a_half_written_record_counts_as_not_run(demo, lab):
    _, jobs, *_ = demo(seeds=(0,))
    (lab.results / "embedded" / "runs" / jobs[0].run_id / "result.json").write_text('{"meth')
    *_, values, _ = demo(seeds=(0,), run=False)
    assert values["plain", "eps2"].status == collect.NOT_RUN


def test_a_launcher_gets_every_missing_runs_overrides(demo, tmp_path):
    _, jobs, outcomes, *_ = demo(run=False)
    got = []
    build.launch_missing(build.missing(outcomes), got.extend, tmp_path, lambda line: None)
    assert got == [list(job.overrides) for job in jobs if not job.not_built]


def test_a_claim_is_as_good_as_its_worst_comparison(demo, lab):
    artifact, _, _, values, _ = demo()
    (verdict,) = claims.judge(artifact, values)
    assert verdict.verdict == claims.UNCLEAR
    assert verdict.sentence() == (
        "**unclear**: it holds in 0 of 2 comparisons; smallest difference +15.0 (-3.0 to +51.0), "
        "by 2 and 2 seeds alone"
    )


def test_the_papers_own_values_bear_out_its_claims():
    conf, borne_out = Path(__file__).resolve().parents[2] / "conf", 0
    for path in (conf / "artifact").glob("*/*.yaml"):
        artifact = spec.load(conf, path.parent.name, path.stem)
        if not artifact.published:  # the suite's own
            continue
        cells = [(row.key, column.key) for row in artifact.rows for column in artifact.columns]
        values = {cell: collect.Value(cell, "not run") for cell in cells}
        for cell, published in artifact.published.items():
            values[cell] = collect.Value(cell, "done", num_seeds=1, readings=(published.value,))
        for verdict in claims.judge(artifact, values):
            # A figure prints few of its values or none, a table of costs not every column's.
            found = [c.difference for c in verdict.comparisons if c.difference is not None]
            assert all(each > verdict.claim.exceeds for each in found), verdict.claim.says
            borne_out += len(found)
    assert borne_out > 100


def costs(lab):
    return CostModel(lab.results, "embedded", None)


def test_the_plan_costs_runs_by_records_of_their_kind(demo, lab):
    demo(seeds=(0,))
    _, _, outcomes, *_ = demo(user=("epochs=4",), run=False)  # twice the epochs of the records
    lines = plan.cells(outcomes, costs(lab))
    assert lines[1].split("  ")[0] == "small (for Big), Plain_1, ε = 2"
    assert "0 of 2" in lines[1] and "8.0 s" in lines[1] and "100 MB" in lines[1]
    assert "not built: method=future" in lines[5]
    assert lines[-2] == "12 runs: 0 done, 8 to do, 4 not built or shared with another cell."
    assert lines[-1] == "To do, one after another: about 1 min 4 s, at most 100 MB."


@pytest.mark.parametrize("width", [82, 86, 200])
def test_a_plan_is_no_wider_than_the_terminal(demo, lab, width):
    _, _, outcomes, *_ = demo(run=False)
    wide, shown = plan.cells(outcomes, costs(lab)), plan.cells(outcomes, costs(lab), width)
    assert max(map(len, wide)) == 89
    table = shown[: shown.index("")]
    assert max(map(len, table)) <= width and (shown == wide) == (width == 200)
    # Broken names are whole again where a line goes on below.
    words = [
        re.split("  +", line)[0] for line in "\n".join(table).replace("\n  ", "\0").split("\n")
    ]
    rest = [
        re.findall("\0([^\0]*)", line)
        for line in "\n".join(table).replace("\n  ", "\0").split("\n")
    ]
    names = {" ".join([name, *more]) for name, more in zip(words, rest, strict=True)}
    assert names == {"cell", *(item.job.name for item in outcomes)}


def test_the_plan_of_kinds_without_a_record_says_so_where_nothing_is_timed(demo, lab):
    _, _, outcomes, *_ = demo(run=False)
    lines = plan.cells(outcomes, costs(lab))
    assert lines[1].endswith("unknown") and lines[-1] == "No estimate for 8 of them."


def test_the_plan_of_a_finished_artifact_has_nothing_to_do(demo, lab):
    _, _, outcomes, *_ = demo()
    lines = plan.cells(outcomes, costs(lab))
    assert lines[-1] == "12 runs: 8 done, 0 to do, 4 not built or shared with another cell."
    assert "2 of 2" in lines[1] and "100 MB" in lines[1] and lines[1].endswith("its records")


def test_a_record_is_read_as_the_trainer_writes_it(demo, lab):
    _, jobs, *_ = demo(seeds=(0,))
    record = records.find(lab.results, jobs[0].config)
    result = json.loads((record.directory / "result.json").read_text())
    assert readings.metric(result, ["test_accuracy"]) == readings.metric(result, ["x"]) == 50.0


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"epsilon": {"prv": 7.9, "rdp": 8.4}}, 7.9),
        ({"epsilon": {"prv": None, "rdp": 8.4}}, 8.4),
        ({"epsilon": 3.0}, 3.0),
        ({"epsilon": {"prv": None, "rdp": None}}, None),
        ({"epsilon": math.inf}, None),
        ({}, None),
    ],
)
def test_the_certified_epsilon_is_prvs_first(given, expected):
    assert values.epsilon(given) == expected


def test_a_run_whose_certificate_does_not_hold_is_refused(demo, lab):
    _, jobs, *_ = demo()
    path = records.find(lab.results, jobs[0].config).directory / "privacy.json"
    privacy = json.loads(path.read_text())
    path.write_text(json.dumps(privacy | {"noise_multiplier": privacy["noise_multiplier"] / 2}))
    _, _, outcomes, values, said = demo()
    assert outcomes[0].status == "refused" and not said  # running it again would change nothing
    value = values["plain", "eps2"]
    assert (value.num_seeds, value.asked, value.mean) == (1, 2, 52.0)
    assert "refused" in value.details[0] and "above the target 2" in value.details[0]
    other = records.find(lab.results, jobs[6].config).directory / "privacy.json"
    other.write_text(path.read_text())
    *_, values, _ = demo()
    assert values["plain", "eps2"].status == "refused" and values["plain", "eps2"].mean is None
