"""A cell takes the point of its row's grid that did best on held-out examples, and nothing else."""

import re
import textwrap

import pytest

import run
from dpexp.artifacts import cells, spec, tuned
from dpexp.types import ConfigError
from scripts import artifact as artifact_script
from scripts import tune
from scripts.configs import Configs

TABLE = """
title: "A grid"
place: "nowhere"
metric: test_accuracy
row_head: [Method]
rows:
  - key: plain
    labels: [plain]
    overrides: [method=nonprivate]
    regardless_of: [eps]
    grid:
      - [optimizer.lr=0.01, optimizer.lr=0.1]
  - key: private
    labels: [private]
    overrides: [method=dpsgd]
    grid:
      - [optimizer.lr=0.01, optimizer.lr=0.1]
      - [epochs=1 privacy.clip_norm=1, epochs=2 privacy.clip_norm=2]
  - {key: fixed, labels: [fixed], overrides: [method=dpsgd]}
columns:
  - {key: eps1, label: "ε = 1", overrides: [task=digits, model=linear, eps=1, epochs=2]}
  - {key: eps8, label: "ε = 8", overrides: [task=digits, model=linear, eps=8, epochs=2]}
profiles:
  embedded:
    seeds: [0]
    replace: {epochs=2: epochs=3}
    scaled: "all of it"
"""


@pytest.fixture
def conf(tmp_path, monkeypatch):
    """A conf of the suite's own groups, with one artifact beside them."""
    root = tmp_path / "conf"
    root.mkdir()
    for part in run.CONF.iterdir():
        if part.name not in ("artifact", "tuned"):
            (root / part.name).symlink_to(part)
    folder = root / "artifact" / "made"
    folder.mkdir(parents=True)
    (folder / "table1.yaml").write_text(textwrap.dedent(TABLE), encoding="utf-8")
    monkeypatch.setattr(run, "CONF", root)
    monkeypatch.chdir(tmp_path)
    return root


def configs(conf):
    table = spec.load(conf, "made", "table1")
    jobs = cells.expand(table, "embedded", Configs(conf).compose, conf)
    return {job.cell: job.config for job in jobs}


def seventy(words):
    return 70.0


def test_points_are_all_combinations_as_the_profile_words_them(conf):
    table = spec.load(conf, "made", "table1")
    plain, private, fixed = (tuned.points(row, table.profiles["embedded"]) for row in table.rows)
    assert plain == [("optimizer.lr=0.01",), ("optimizer.lr=0.1",)]
    assert private == [
        (f"optimizer.lr={rate}", epochs, clip)
        for rate in (0.01, 0.1)
        for epochs, clip in (
            ("epochs=1", "privacy.clip_norm=1"),
            ("epochs=3", "privacy.clip_norm=2"),
        )
    ]
    assert fixed == []


def test_a_cell_takes_its_best_point_and_without_choices_what_it_says(conf, capsys):
    assert {c["optimizer"]["lr"] for c in configs(conf).values()} == {0.05}

    tried = []

    def score(words):
        tried.append(words)
        rate = next(word for word in words if word.startswith("optimizer.lr"))
        wants = "optimizer.lr=0.1" if "eps=8" in words else "optimizer.lr=0.01"
        return 50.0 + (rate == wants) + 0.5 * ("epochs=1" in words) - 0.25 * ("seed=1" in words)

    assert tune.main(["table1", "paper=made", "seeds=0,1"], score) == 0
    assert len(tried) == len(set(tried)) == 2 * (2 + 2 * 4)  # plain is one run for both columns
    found = configs(conf)
    assert (found["private", "eps8"]["optimizer"]["lr"], found["private", "eps8"]["epochs"]) == (
        0.1,
        1,
    )
    assert found["private", "eps1"]["optimizer"]["lr"] == 0.01
    assert found["private", "eps1"]["privacy"]["clip_norm"] == 1
    assert found["fixed", "eps8"]["optimizer"]["lr"] == 0.05
    assert found["plain", "eps8"]["optimizer"]["lr"] == 0.01
    kept = tuned.load(conf, spec.load(conf, "made", "table1"), "embedded")
    assert kept["private", "eps8"].scores[
        "optimizer.lr=0.1 epochs=1 privacy.clip_norm=1"
    ] == pytest.approx(51.38)

    tried.clear()
    assert tune.main(["table1", "paper=made"], score) == 0 and not tried  # resumes: all is there
    one = ["table1", "paper=made", "rows=private", "columns=eps8", "anew=true"]
    assert tune.main(one, score) == 0
    assert len(tried) == 4


def test_of_equal_points_the_grid_s_first_is_taken(conf):
    assert tune.main(["table1", "paper=made"], seventy) == 0
    assert configs(conf)["private", "eps1"]["optimizer"]["lr"] == 0.01


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("optimizer.lr=0.1 epochs=3", "optimizer.lr=0.2 epochs=3", "not those of the row's grid"),
        ("private:", "privat:", "no cell privat"),
        ("eps8:", "eps9:", "no cell private, eps9|no cell plain, eps9"),
        (": 70.0", ": .nan", "not a finite number"),
        (": 70.0", ": [1]", "expected scores"),
    ],
)
def test_choices_that_are_not_the_grid_s_are_refused(conf, before, after, said):
    assert tune.main(["table1", "paper=made"], seventy) == 0
    path = conf / "tuned" / "embedded" / "made" / "table1.yaml"
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after), encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        configs(conf)


def test_a_page_says_what_was_chosen_from_how_many(conf):
    table = spec.load(conf, "made", "table1")
    assert tuned.notes(table, "embedded", {}) == [
        "plain: the paper chose from 2 settings, of which one was run.",
        "private: the paper chose from 4 settings, of which one was run.",
    ]
    assert tune.main(["table1", "paper=made", "rows=private", "columns=eps8"], seventy) == 0
    private = tuned.notes(table, "embedded", tuned.load(conf, table, "embedded"))[1]
    assert "best of 4 settings" in private
    assert re.search(r"ε = 8: optimizer.lr=0.01 epochs=1 privacy.clip_norm=1 \(70.0 %\)", private)
    assert "ε = 1" not in private


@pytest.mark.parametrize("grid", ["[]", "[[]]", "[epochs=1]", "[[1, 2]]", "[[epochs]]"])
def test_a_grid_is_lists_of_overrides(conf, grid):
    path = conf / "artifact" / "made" / "table1.yaml"
    text = path.read_text(encoding="utf-8")
    line = "{key: fixed, labels: [fixed], overrides: [method=dpsgd]}"
    path.write_text(text.replace(line, f"{line[:-1]}, grid: {grid}}}"), encoding="utf-8")
    with pytest.raises(ConfigError, match="grid"):
        spec.load(conf, "made", "table1")


def test_what_changes_numbers_is_not_taken_on_the_command_line(conf, capsys):
    assert tune.main(["table1", "paper=made", "epochs=9"]) == 2
    assert "epochs=9" in capsys.readouterr().err
    assert tune.main(["table1", "paper=made", "rows=fixed"]) == 2
    assert "grid" in capsys.readouterr().err


def test_a_real_point_is_trained_and_the_table_runs_the_best(conf, tmp_path):
    words = ["paper=made", "columns=eps8"]
    assert tune.main(["table1", *words, "rows=plain"]) == 0
    assert artifact_script.main(["table1", *words, "rows=plain", "results=mine"]) == 0
    page = (tmp_path / "mine" / "embedded" / "made" / "table1.md").read_text(encoding="utf-8")
    assert "best of 2 settings on held-out training examples" in page
