"""The command line: its own words, overrides, and mistakes in one line with exit code 2."""

import json
import re
from pathlib import Path

import pytest

from dpexp.cli import all as every
from dpexp.cli import artifact, picking, tune
from dpexp.cli.arguments import changing
from dpexp.reporting.schema import spec
from dpexp.types import ConfigError
from tests.marks import few, long

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("words", [long(["epochs=3"]), ["epochs=3", "results=./results"]])
def test_a_table_with_overrides_never_takes_the_place_of_the_one_without(
    words, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert artifact.main(["table3", "run=false", *words]) == 2
    assert "Expected results= beside epochs=3" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert artifact.main(["table3", "run=false", "epochs=3", "++results=mine"]) == 0
    assert (tmp_path / "mine" / "embedded" / "rgp" / "table3.md").is_file()


def test_a_mistyped_word_of_tuning_is_told_of_with_its_words(capsys):
    for word, meant in {"annew=true": "anew", "sedes=0": "seeds"}.items():
        assert tune.main(["table3", word]) == 2
        assert capsys.readouterr().err.endswith(f"got {word}. Did you mean {meant}?\n")


def test_a_table_that_measures_time_says_that_its_runs_are_done_one_by_one(tmp_path, capsys):
    assert artifact.main(["table1", "run=false", "workers=2", f"results={tmp_path}"]) == 0
    assert "workers=2 has no effect: table1 measures time" in capsys.readouterr().err


def test_a_table_of_runs_is_not_lost_to_one_of_none(tmp_path, capsys):
    numbers = tmp_path / "embedded" / "rgp" / "table3.csv"
    words = ["table3", "run=false", f"results={tmp_path}"]
    assert artifact.main(words) == 0 and artifact.main(words) == 0  # nothing to lose
    kept = numbers.read_text().replace("not run", "done")
    numbers.write_text(kept)
    assert artifact.main(words) == 2
    assert "would lose its numbers" in capsys.readouterr().err and numbers.read_text() == kept


def test_its_own_words_are_taken_out_and_the_rest_are_overrides():
    words = "table3 paper=gep profile=quick plan=true launcher=joblib rows=a,b-* seeds=3,4"
    request = artifact.parse([*words.split(), "optimizer.lr=0.1", "+model.x=1", "~schedule"])
    assert request == artifact.Request(
        "table3",
        paper="gep",
        profile="quick",
        is_plan=True,
        launcher="joblib",
        rows=("a", "b-*"),
        seeds=(3, 4),
        overrides=("optimizer.lr=0.1", "+model.x=1", "~schedule"),
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "Expected an artifact"),
        (["table3", "plan=yes"], "Expected plan=true or plan=false; got 'plan=yes'"),
        (["table3", "seeds=a"], "Expected whole numbers"),
        (["table3", "table2"], "Expected WORD=VALUE; got 'table2'"),
        (["-m", "table3"], "Expected WORD=VALUE; got '-m'"),
        (["table33"], "did you mean 'table3'?"),
        (["table3", "paper=rpg"], "did you mean 'rgp'?"),
        (["table3", "wokers=2"], "Did you mean workers?"),
        (["table3", "sedes=0"], "Did you mean seeds?"),
        (["table3", "workers=2", "launcher=basic"], "Expected launcher= or workers=, not both"),
        (["table3", "rows=*dpsgd*", "attack=null"], "got attack=null. Name one, or leave it out"),
        (["table3", "profile=embeded"], "did you mean 'embedded'?"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(words, expected, capsys):
    assert artifact.main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.startswith("error: ") and expected in printed.err


@pytest.mark.parametrize(
    "ask",
    [
        lambda: artifact.main(["figure2", "paper=compressive", "profile=short"]),
        lambda: artifact.main(["figure2", "paper=compressive", "profile=short", "plan=true"]),
        lambda: tune.main(["figure2", "paper=compressive", "profile=short"]),
        lambda: every.main(["profile=short", "only=compressive/figure2"]),
    ],
    ids=["table", "plan", "tune", "all"],
)
def test_a_profile_that_an_artifact_leaves_out_is_said_in_a_line(ask, capsys):
    assert ask() == 0
    said = capsys.readouterr()
    assert said.out == "compressive figure2 has no profile short; it has embedded, paper, quick.\n"
    assert said.err == ""


@pytest.mark.long
def test_a_short_plan_needs_no_data_and_is_the_paper_s_by_its_share_of_the_epochs(capsys):
    words = ["table1", "paper=gep", "rows=dpsgd", "columns=mnist-eps8", "seeds=0", "plan=true"]
    pflops = []
    for profile in ("short", "paper"):
        assert artifact.main([*words, f"profile={profile}", "data_root=none"]) == 0
        said = capsys.readouterr().out
        assert "Core-hours here" in said
        pflops.append(float(said.partition("**total** | 1 |")[2].split("|")[1]))
    assert pflops[0] == pytest.approx(pflops[1] * 25 / 200, rel=0.05)


def test_help_tells_every_word(capsys):
    assert artifact.main(["--help"]) == 0
    out = capsys.readouterr().out
    for word in ("paper=", "profile=", "plan=", "run=", "rows=", "seeds=", "launcher="):
        assert word in out


def test_rows_and_columns_pick_cells(conf):
    table9 = spec.load(conf, "demo", "table9")
    request = artifact.parse(["table9", "rows=be*", "columns=eps2,eps4"])
    assert picking.is_picked(request, table9, ("better", "eps4"))
    assert not picking.is_picked(request, table9, ("plain", "eps4"))


def test_a_pattern_that_picks_nothing_is_a_mistake(conf):
    request = artifact.parse(["table9", "rows=bettr"])
    with pytest.raises(ConfigError, match="did you mean 'better'"):
        picking.is_picked(request, spec.load(conf, "demo", "table9"), ("plain", "eps2"))


@pytest.mark.parametrize(
    ("override", "neutral"),
    [("device=cpu", True), ("++wandb.mode=offline", True), ("optimizer.lr=1", False)],
)
def test_overrides_that_change_numbers_are_told_from_those_that_do_not(override, neutral):
    assert (not changing([override])) is neutral


@pytest.mark.long
def test_a_launcher_does_the_same_runs_as_this_process(tmp_path, capsys, programs):
    words = ["table3", "rows=svhn-*", "columns=eps2", "seeds=0", "epochs=0.2"]
    words.append(f"results={tmp_path}")
    # In a process of its own: a launcher sets up logging for the whole process.
    one = [word.replace("svhn-*", "svhn-rgp") for word in words]
    command = ["-m", "scripts.artifact", *one, "launcher=basic"]
    launched = programs.run(command)
    assert launched.returncode == 0, launched.stderr
    assert "0 of 1 run done, 1 to do" in launched.stdout
    assert artifact.main(words) == 0
    out = capsys.readouterr().out
    assert "1 of 2 runs done, 1 to do" in out
    assert "[1/1] digits (for SVHN), DP-SGD, ε = 2, seed 0: " in out
    assert re.search(r"^digits \(for SVHN\) +DP-SGD +\d+\.\d \(n=1\), paper 83\.2", out, re.M)
    assert out.splitlines()[-1] == str(tmp_path / "embedded" / "rgp" / "table3.tex")
    assert artifact.main([*words, "plan=true"]) == 0
    assert "2 runs: 2 done, 0 to do" in capsys.readouterr().out


@pytest.mark.long
def test_runs_side_by_side_are_the_runs_of_one_process(tmp_path, capsys):
    weights = []
    for workers in ("1", "2"):
        words = ["table3", "rows=svhn-rgp,svhn-dpsgd", "columns=eps2", "seeds=0", "epochs=0.05"]
        assert artifact.main([*words, f"workers={workers}", f"results={tmp_path / workers}"]) == 0
        assert "[2/2]" in capsys.readouterr().out
        results = (tmp_path / workers / "embedded" / "runs").glob("*/result.json")
        weights.append({json.loads(each.read_text())["weights_sha256"] for each in results})
    assert weights[0] == weights[1] and len(weights[0]) == 2


@pytest.mark.parametrize("program", few(["table", "all"], ["all"]))
def test_a_word_that_no_cell_reads_is_told_of_once(tmp_path, capsys, program):
    words = [f"results={tmp_path}", "run=false", "public=shapes", "batch_size=250"]
    if program == "all":
        assert every.main(["only=rgp/table3", *words]) == 0
    else:
        assert artifact.main(["table3", *words]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "has no effect" in line]
    assert len(said) == 1 and "public=shapes" in said[0]


@pytest.mark.parametrize(
    "mistake", ["epohcs=3", *map(long, ["batch_size=100000", "launcher=basci"])]
)
def test_a_mistake_in_an_override_is_one_line_and_leaves_the_table_alone(mistake, tmp_path, capsys):
    words = ["table3", f"results={tmp_path}", "rows=svhn-*", "columns=eps2", "seeds=0"]
    assert artifact.main([*words, mistake]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "embedded" / "rgp").exists()
