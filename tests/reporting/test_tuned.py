"""A cell takes the point of its row's grid that did best on held-out examples, and nothing else."""

import math
import re
import textwrap

import pytest

from dpexp import cli
from dpexp.cli import artifact as artifact_script
from dpexp.cli import audit_page, groups, lookup, tune
from dpexp.cli.config_cache import Configs
from dpexp.records import RecordError
from dpexp.reporting.collect import cells
from dpexp.reporting.schema import spec, tuned
from dpexp.training.overview import Overview
from dpexp.types import ConfigError, MissingData
from tests.marks import few
from tests.runs import one_process  # noqa: F401
from tests.test_overview import a_terminal

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
    for part in cli.CONF.iterdir():
        if part.name not in ("artifact", "tuned"):
            (root / part.name).symlink_to(part)
    folder = root / "artifact" / "made"
    folder.mkdir(parents=True)
    (folder / "table1.yaml").write_text(textwrap.dedent(TABLE), encoding="utf-8")
    monkeypatch.setattr(groups, "CONF", root)
    monkeypatch.chdir(tmp_path)
    return root


def configs(conf):
    table = spec.load(conf, "made", "table1")
    jobs = cells.expand(table, "embedded", Configs(conf).compose, conf)
    return {job.cell: job.config for job in jobs}


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder of the user's own with an artifact whose rows have a method of that folder."""
    root = tmp_path / "mine" / "conf"
    (root / "artifact" / "made").mkdir(parents=True)
    table = TABLE.replace("[method=dpsgd]", "[method=tuned_by_its_owner]")
    table = table.replace(
        "      - [epochs=1 privacy.clip_norm=1, epochs=2 privacy.clip_norm=2]\n", ""
    )
    (root / "artifact" / "made" / "table1.yaml").write_text(table, encoding="utf-8")
    (root / "method").mkdir()
    method = (cli.CONF / "method" / "dpsgd.yaml").read_text(encoding="utf-8")
    assert "name: dpsgd" in method
    (root / "method" / "tuned_by_its_owner.yaml").write_text(
        method.replace("name: dpsgd", "name: tuned_by_its_owner"), encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    return root


def test_an_artifact_of_ones_own_folder_is_tuned_there(mine):
    before = sorted(cli.CONF.rglob("*"))
    words = [f"--config-dir={mine}", "table1", "paper=made", "columns=eps8", "rows=private"]
    assert (
        tune.main([*words, "epochs=0.1"], seventy) == 2
    )  # would be other numbers than the table's
    assert tune.main([*words, "device=cpu"]) == 0
    assert sorted(cli.CONF.rglob("*")) == before
    path = mine / "tuned" / "embedded" / "made" / "table1.yaml"
    table = spec.load(cli.CONF, "made", "table1", [mine])
    scores = tuned.known(cli.CONF, table, "embedded")["private", "eps8"].scores
    assert len(scores) == 2 and len(set(scores.values())) > 1 and max(scores.values()) > 20
    jobs = cells.expand(table, "embedded", Configs(own=[mine]).compose, cli.CONF, own=[mine])
    (job,) = (job for job in jobs if job.cell == ("private", "eps8"))
    assert job.choice.score == max(scores.values())
    assert job.config["method"]["name"] == "tuned_by_its_owner"
    again = path.read_text(encoding="utf-8").splitlines()[0].removeprefix(f"# {tuned.TUNE} ")
    assert tune.main(again.split(), seventy) == 0
    kept = tuned.known(cli.CONF, table, "embedded")
    assert kept["private", "eps8"].scores == scores and kept["plain", "eps1"].scores


@pytest.mark.parametrize("entry", ["paper", "name", "own"])
def test_an_artifact_does_not_say_itself_where_it_is(entry, mine):
    path = mine / "artifact" / "made" / "table1.yaml"
    path.write_text(f"{entry}: rgp\n{path.read_text(encoding='utf-8')}", encoding="utf-8")
    with pytest.raises(ConfigError, match=f"Expected no '{entry}'"):
        spec.load(cli.CONF, "made", "table1", [mine])


def seventy(words):
    return 70.0


def test_points_are_all_combinations_as_the_profile_words_them(conf):
    table = spec.load(conf, "made", "table1")
    profile, column = table.profiles["embedded"], table.columns[0]
    plain, private, fixed = (tuned.points(row, column, profile) for row in table.rows)
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


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_a_point_at_which_a_seed_diverges_loses_and_says_so(conf, capsys, odd):
    """The mean of its other seed is the highest."""

    def attempt(words):
        if "optimizer.lr=0.1" in words:
            return odd if "seed=1" in words else 99.0
        return 20.0

    assert tune.main(["table1", "paper=made", "rows=plain", "seeds=0,1"], attempt) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.endswith("optimizer.lr=0.1 0.0 diverged (1 of 2)") for line in lines)
    assert configs(conf)["plain", "eps1"]["optimizer"]["lr"] == 0.01


def test_points_that_a_profile_words_alike_are_tried_once_and_chosen_from(conf):
    path = conf / "artifact" / "made" / "table1.yaml"
    text = path.read_text(encoding="utf-8")
    fewer = "{epochs=1: epochs=3, epochs=2: epochs=3, privacy.clip_norm=2: privacy.clip_norm=1}"
    path.write_text(text.replace("{epochs=2: epochs=3}", fewer), encoding="utf-8")
    tried, attempt = counting()

    def score(words):
        return attempt(words) + ("optimizer.lr=0.1" in words)

    assert tune.main(["table1", "paper=made", "rows=private", "columns=eps8"], score) == 0
    assert len(tried) == len(known(conf)["private", "eps8"].scores) == 2
    found = configs(conf)["private", "eps8"]
    assert (found["optimizer"]["lr"], found["epochs"]) == (0.1, 3)


def test_a_cell_takes_its_best_point_and_without_choices_what_it_says(conf):
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
    assert found["private", "eps8"]["optimizer"]["lr"] == 0.1
    assert found["private", "eps8"]["epochs"] == 1
    assert found["private", "eps1"]["optimizer"]["lr"] == 0.01
    assert found["private", "eps1"]["privacy"]["clip_norm"] == 1
    assert found["fixed", "eps8"]["optimizer"]["lr"] == 0.05
    assert found["plain", "eps8"]["optimizer"]["lr"] == 0.01
    best = known(conf)["private", "eps8"]
    assert best.seeds == (0, 1)
    words = "optimizer.lr=0.1 epochs=1 privacy.clip_norm=1"
    assert best.scores[words] == pytest.approx(51.38)


def known(conf):
    return tuned.known(conf, spec.load(conf, "made", "table1"), "embedded")


def counting(value=70.0):
    tried = []

    def attempt(words):
        tried.append(words)
        return value

    return tried, attempt


def test_tuning_again_goes_on_and_keeps_what_it_is_not_asked_for(conf):
    assert tune.main(["table1", "paper=made"], seventy) == 0
    before = known(conf)
    tried, again = counting(60.0)
    assert tune.main(["table1", "paper=made"], again) == 0 and not tried
    one = ["table1", "paper=made", "rows=private", "columns=eps8"]
    assert tune.main([*one, "anew=true"], again) == 0
    assert len(tried) == 4
    assert tune.main([*one, "seeds=0,1"], again) == 0
    assert len(tried) == 4 + 8  # of other seeds than were there
    after = known(conf)
    assert after.keys() == before.keys()
    assert {key for key in after if after[key] != before[key]} == {("private", "eps8")}
    assert tune.main(one, again) == 0 and len(tried) == 12  # keeps the seeds that are there


def changed(conf, old, new):
    """Change the table's text, as its author does."""
    path = conf / "artifact" / "made" / "table1.yaml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "{epochs=2: epochs=3}",
            "{epochs=2: epochs=3, model=linear: model=cnn}",
        ),  # what a profile makes of it
        ("eps=8, epochs=2]", "eps=8, epochs=2, batch_size=128]"),  # a column
        ("overrides: [method=dpsgd]\n    grid", "overrides: [method=rgp]\n    grid"),  # a row
        ("seeds: [0]\n", "seeds: [0]\n    overrides: [averaging=ema]\n"),  # a whole profile
    ],
)
def test_scores_of_other_settings_choose_nothing(conf, capsys, old, new):
    """A table quoted scores that were found before its words changed, and ran their best."""
    words = ["table1", "paper=made", "rows=private", "columns=eps8"]
    assert tune.main(words, seventy) == 0
    changed(conf, old, new)
    says = (
        r"table1.yaml: the scores of private, eps8 .* other settings .* rows=private columns=eps8"
    )
    with pytest.raises(ConfigError, match=says):
        configs(conf)
    tried, again = counting(60.0)
    capsys.readouterr()
    assert tune.main(words, again) == 0
    assert "of other settings, and are dropped" in capsys.readouterr().out
    assert len(tried) == 4 and set(known(conf)["private", "eps8"].scores.values()) == {60.0}
    assert configs(conf)["private", "eps8"]


def test_scores_stay_where_no_result_changes(conf):
    assert tune.main(["table1", "paper=made"], seventy) == 0
    before = configs(conf)
    changed(conf, "labels: [private]", "labels: [of one's own]")
    changed(
        conf,
        "overrides: [method=dpsgd]\n    grid",
        "overrides: [method=dpsgd, device=cpu]\n    grid",
    )
    changed(conf, "[method=nonprivate]", "[method=nonprivate, epochs=2, optimizer.lr=0.05]")
    tried, again = counting(60.0)
    assert tune.main(["table1", "paper=made", "data_root=elsewhere"], again) == 0 and not tried
    assert configs(conf).keys() == before.keys()


def test_scores_of_another_default_of_one_s_own_method_choose_nothing(mine):
    def of_table():
        table = spec.load(cli.CONF, "made", "table1", [mine])
        return cells.expand(table, "embedded", Configs(own=[mine]).compose, cli.CONF, own=[mine])

    words = [f"--config-dir={mine}", "table1", "paper=made", "columns=eps8", "rows=private"]
    assert tune.main(words, seventy) == 0
    assert of_table()
    path = mine / "method" / "tuned_by_its_owner.yaml"
    path.write_text(f"{path.read_text(encoding='utf-8')}\nmine: 1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="were found for other settings"):
        of_table()


def test_scores_of_other_data_choose_nothing(mine, capsys):
    """A file of one's own was edited under the same words, and its table ran the old best."""
    table = mine / "artifact" / "made" / "table1.yaml"
    of_own = (
        "task=table, data=h.csv, task.target=y, 'task.classes=[no,yes]', "
        "'task.columns={a:[0,9]}', dataset_size=8, task.test_size=2"
    )
    text = table.read_text(encoding="utf-8")
    table.write_text(text.replace("task=digits", of_own), encoding="utf-8")
    lines = ["a,y", *(f"{k},{'yes' if k > 4 else 'no'}" for k in range(10))]
    data = mine.parents[1] / "h.csv"
    data.write_text("\n".join(lines), encoding="utf-8")
    words = [f"--config-dir={mine}", "table1", "paper=made", "columns=eps8", "rows=private"]
    assert tune.main(words, seventy) == 0
    data.write_text("\n".join([*lines[:-1], "9,no"]), encoding="utf-8")
    lookup._of_data.cache_clear()  # as in another process
    capsys.readouterr()
    assert artifact_script.main([*words, "results=mine"]) == 2
    said = capsys.readouterr().err
    assert "the scores of private, eps8 were found on other data than are here" in said
    tried, again = counting(60.0)
    assert tune.main(words, again) == 0 and len(tried) == 2
    assert "of other data, and are dropped" in capsys.readouterr().out
    assert tune.main(words, again) == 0 and len(tried) == 2


def test_a_file_that_does_not_say_for_which_settings_is_told_how(conf):
    words = ["table1", "paper=made", "rows=private", "columns=eps8"]
    assert tune.main(words, seventy) == 0
    path = conf / "tuned" / "embedded" / "made" / "table1.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r" +settings: \w+\n", "", text), encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        configs(conf)
    line = re.search(r"write '(settings: \w{12})' beside its seeds", str(refused.value))[1]
    assert line in text
    path.write_text(text, encoding="utf-8")
    assert configs(conf)["private", "eps8"]


def test_a_grid_may_hold_what_no_run_goes_without(conf):
    """Then the cell's settings without a point compose to nothing, and its words stand for it."""
    changed(
        conf,
        "[optimizer.lr=0.01, optimizer.lr=0.1]\n      - [epochs=1",
        "[model=linear, model=cnn]\n      - [epochs=1",
    )
    changed(conf, "task=digits, model=linear, eps=8", "task=digits, eps=8")
    words = ["table1", "paper=made", "rows=private", "columns=eps8"]
    assert tune.main(words, seventy) == 0
    assert configs(conf)["private", "eps8"]
    changed(conf, "eps=8, epochs=2", "eps=8, epochs=2, batch_size=128")
    with pytest.raises(ConfigError, match="were found for other settings"):
        configs(conf)


def test_a_kill_loses_no_point(conf):
    tried, attempt = counting()

    def killed(words):
        if len(tried) == 3:
            raise KeyboardInterrupt
        return attempt(words)

    words = ["table1", "paper=made", "rows=private", "columns=eps8"]
    assert tune.main(words, killed) == 130
    assert configs(conf)["private", "eps8"]["optimizer"]["lr"] == 0.05  # not all points are there
    assert tune.main(words, attempt) == 0
    assert len(tried) == 4


def test_two_tunes_of_one_table_do_not_write_over_each_other(conf):
    def meanwhile(words):
        if not any("plain" in key for key in known(conf)):
            assert tune.main(["table1", "paper=made", "rows=plain"], seventy) == 0
        return 70.0

    assert tune.main(["table1", "paper=made", "rows=private", "columns=eps8"], meanwhile) == 0
    assert set(known(conf)) == {("plain", "eps1"), ("plain", "eps8"), ("private", "eps8")}


def test_cells_that_show_one_run_are_chosen_together(conf):
    assert tune.main(["table1", "paper=made", "rows=plain", "columns=eps8"], seventy) == 0
    found = configs(conf)
    assert found["plain", "eps1"] == found["plain", "eps8"]
    assert found["plain", "eps1"]["optimizer"]["lr"] == 0.01


def test_rows_that_differ_in_their_grids_alone_are_tuned_apart(conf):
    """The second row got the first one's points, which the table refused, however often tuned."""
    row = "  - {key: fixed, labels: [fixed], overrides: [method=dpsgd]}"
    changed(conf, row, row[:-1] + ", grid: [[optimizer.lr=0.02, optimizer.lr=0.2]]}")
    tried, attempt = counting()
    assert tune.main(["table1", "paper=made", "columns=eps8"], attempt) == 0
    assert len(tried) == 2 + 4 + 2
    assert [*known(conf)["fixed", "eps8"].scores] == ["optimizer.lr=0.02", "optimizer.lr=0.2"]
    assert configs(conf)["fixed", "eps8"]["optimizer"]["lr"] == 0.02


@pytest.mark.parametrize("is_first", [True, False])
def test_a_cell_that_comes_to_show_a_tuned_run_takes_its_scores(conf, is_first):
    """Nothing was left to try, and so a row added later ran what no grid chose."""
    assert tune.main(["table1", "paper=made", "columns=eps8"], seventy) == 0
    text = (conf / "artifact" / "made" / "table1.yaml").read_text(encoding="utf-8")
    grid = re.search(r"  - key: private\n.*?(?=  - \{key: fixed)", text, re.DOTALL)[0]
    more = grid.replace("private", "added")
    changed(conf, grid, more + grid if is_first else grid + more)
    tried, again = counting(60.0)
    assert tune.main(["table1", "paper=made", "columns=eps8"], again) == 0 and not tried
    assert known(conf)["added", "eps8"] == known(conf)["private", "eps8"]
    found = configs(conf)
    assert found["added", "eps8"] == found["private", "eps8"]


def test_no_accuracy_is_none_and_missing_data_leave_the_other_cells(conf, capsys):
    assert tune.main(["table1", "paper=made", "rows=plain"], lambda words: math.nan) == 0
    assert set(known(conf)["plain", "eps1"].scores.values()) == {0.0}

    def absent(words):
        if "eps=1" in words:
            raise MissingData("digits is not here")
        return 70.0

    assert tune.main(["table1", "paper=made", "rows=private"], absent) == 0
    assert "private, ε = 1: no data: digits is not here" in capsys.readouterr().err
    assert ("private", "eps8") in known(conf) and ("private", "eps1") not in known(conf)


def test_a_grid_that_changed_is_tuned_again(conf):
    assert tune.main(["table1", "paper=made"], seventy) == 0
    path = conf / "artifact" / "made" / "table1.yaml"
    text = path.read_text(encoding="utf-8")
    changed = text.replace("epochs=2 privacy.clip_norm=2", "epochs=2 privacy.clip_norm=3")
    path.write_text(changed, encoding="utf-8")
    with pytest.raises(ConfigError, match="scripts.tune table1 paper=made profile=embedded"):
        configs(conf)
    tried, attempt = counting()
    assert tune.main(["table1", "paper=made"], attempt) == 0
    assert len(tried) == 8 and configs(conf)["private", "eps8"]["privacy"]["clip_norm"] == 1


def test_of_equal_points_the_grid_s_first_is_taken(conf):
    assert tune.main(["table1", "paper=made"], seventy) == 0
    assert configs(conf)["private", "eps1"]["optimizer"]["lr"] == 0.01


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("optimizer.lr=0.1 epochs=3", "optimizer.lr=0.2 epochs=3", "not those of the row's grid"),
        ("seeds:", "seed:", "expected scores"),
        ("private:", "privat:", "no cell privat"),
        ("eps8:", "eps9:", "no cell private, eps9|no cell plain, eps9"),
        (": 70.0", ": .nan", "not a finite number"),
        (": 70.0", ": [1]", "expected scores"),
        ("eps8:", "eps1:", "Expected 'eps1' once"),
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
        "plain: of 2 settings that the paper chose from, one is run.",
        "private: of 4 settings that the paper chose from, one is run.",
    ]
    assert tune.main(["table1", "paper=made", "rows=private", "columns=eps8"], seventy) == 0
    how, private, _ = tuned.notes(table, "embedded", tuned.load(conf, table, "embedded"))
    assert how.startswith("1 row: best of 4 settings") and "in the other columns one" in private
    assert re.search(r"ε = 8: optimizer.lr=0.01 epochs=1 privacy.clip_norm=1 \(70.0 %\)", private)
    assert "ε = 1" not in private


def test_a_note_is_silent_on_columns_in_which_a_row_has_no_grid(conf):
    """It said that one of the settings is run there, too."""
    row = "  - {key: fixed, labels: [fixed], overrides: [method=dpsgd]}"
    within = ', within: {eps8: {grid: [["optimizer.lr=0.02", "optimizer.lr=0.2"]]}}}'
    changed(conf, row, row[:-1] + within)
    assert tune.main(["table1", "paper=made", "rows=fixed"], seventy) == 0
    table = spec.load(conf, "made", "table1")
    notes = tuned.notes(table, "embedded", tuned.load(conf, table, "embedded"))
    assert "fixed: ε = 8: optimizer.lr=0.02 (70.0 %)." in notes


def test_what_holds_of_all_tuned_rows_is_said_once(conf):
    path = conf / "artifact" / "made" / "table1.yaml"
    text = path.read_text(encoding="utf-8")
    grid = re.search(r"  - key: private\n.*?(?=  - \{key: fixed)", text, re.DOTALL)[0]
    more = "".join(grid.replace("private", f"private{k}") for k in range(5))
    path.write_text(text.replace(grid, grid + more), encoding="utf-8")
    table = spec.load(conf, "made", "table1")
    assert tune.main(["table1", "paper=made"], seventy) == 0
    notes = tuned.notes(table, "embedded", tuned.load(conf, table, "embedded"))
    assert [note.partition(":")[0] for note in notes] == [
        *("1 row", "plain", "6 rows", "private", *(f"private{k}" for k in range(5)))
    ]
    assert sum("best of" in note for note in notes) == 2
    assert all(note.count("(70.0 %)") == 2 for note in notes if note.startswith("private"))


WRONG = ["[]", "[[]]", "[epochs=1]", "[[1, 2]]", "[[epochs]]", "[[[epochs=1]]]", "[[eps=1, eps=2]]",
         "[[task.test_size=3]]", "[[privacy.eps=3]]", "[[seed=1]]", "[[noise=false]]"]  # fmt: skip


@pytest.mark.parametrize("grid", WRONG)
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
    assert tune.main(["table1", "paper=made", "plan=true"]) == 2
    assert "plan" in capsys.readouterr().err


def test_a_grid_is_of_accuracies(conf):
    path = conf / "artifact" / "made" / "table1.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("metric: test_accuracy", "metric: loss"), encoding="utf-8")
    with pytest.raises(ConfigError, match="accuracy alone"):
        spec.load(conf, "made", "table1")


COMMITTED = sorted((cli.CONF / "tuned").glob("*/*/*.yaml"))
assert COMMITTED


SMALL = [path for path in COMMITTED if path.parts[-3] != "quick"]  # of few cells


@pytest.mark.parametrize("path", few(COMMITTED, SMALL), ids=lambda path: "-".join(path.parts[-3:]))
def test_choices_that_are_here_are_of_today_s_grids(path):
    profile, paper, name = path.parts[-3], path.parts[-2], path.stem
    artifact = spec.load(cli.CONF, paper, name)
    choices = tuned.load(cli.CONF, artifact, profile)
    assert choices.keys() == tuned.known(cli.CONF, artifact, profile).keys()
    rows = {row.key: row for row in artifact.rows}
    columns = {column.key: column for column in artifact.columns}
    together = {}
    for (row, column), choice in choices.items():
        words = cells.words_of(rows[row], columns[column], artifact.profiles[profile])
        assert together.setdefault(tuple(words), choice) == choice
    cells.expand(artifact, profile, Configs().compose, cli.CONF)  # refuses others' scores


def test_a_real_point_is_trained_and_the_table_runs_the_best(conf, tmp_path):
    words = ["paper=made", "columns=eps8"]
    assert tune.main(["table1", *words, "rows=plain"]) == 0
    assert artifact_script.main(["table1", *words, "rows=plain", "results=mine"]) == 0
    page = (tmp_path / "mine" / "embedded" / "made" / "table1.md").read_text(encoding="utf-8")
    assert "best of 2 settings on held-out training examples" in page


def test_a_chosen_point_goes_before_what_its_profile_sets_for_all_cells(conf):
    path = conf / "artifact" / "made" / "table1.yaml"
    text = path.read_text(encoding="utf-8")
    line = "    replace: {epochs=2: epochs=3}\n"
    path.write_text(text.replace(line, f"{line}    overrides: [optimizer.lr=0.5]\n"), "utf-8")
    assert configs(conf)["private", "eps8"]["optimizer"]["lr"] == 0.5
    tried = []

    def score(words):
        tried.append(cli.compose(words)["optimizer"]["lr"])
        return 70.0

    assert tune.main(["table1", "paper=made", "rows=private", "columns=eps8"], score) == 0
    assert tried == [0.01, 0.01, 0.1, 0.1]  # what is tried is what the table runs
    assert configs(conf)["private", "eps8"]["optimizer"]["lr"] == 0.01


def test_a_level_line_of_a_figure_has_one_choice_a_panel(conf):
    path = conf / "artifact" / "made" / "table1.yaml"
    text = path.read_text(encoding="utf-8").replace(
        "row_head:", "figure: {x_name: ε, x_label: privacy budget}\nrow_head:"
    )
    for eps in ("1", "8"):
        text = text.replace(f'label: "ε = {eps}"', f"panel: A, x: {eps}")
    path.with_name("figure1.yaml").write_text(text, encoding="utf-8")
    assert tune.main(["figure1", "paper=made", "rows=plain"], seventy) == 0
    figure = spec.load(conf, "made", "figure1")
    choices = tuned.load(conf, figure, "embedded")
    assert set(choices) == {("plain", "eps1")}
    assert "in the other columns" not in tuned.notes(figure, "embedded", choices)[0]


WITHIN = """
    within:
      "*1":
        overrides: [privacy.clip_norm=0.5]
        grid:
          - [optimizer.lr=0.02, optimizer.lr=0.2]
      eps8: {absent: "it takes too long"}
"""


def test_a_row_has_overrides_and_a_grid_of_its_own_within_columns(conf):
    path = conf / "artifact" / "made" / "table1.yaml"
    row = "  - {key: fixed, labels: [fixed], overrides: [method=dpsgd]}"
    own = f"  - key: fixed\n    labels: [fixed]\n    overrides: [method=dpsgd]{WITHIN.rstrip()}"
    path.write_text(path.read_text(encoding="utf-8").replace(row, own), encoding="utf-8")
    found = configs(conf)
    assert ("fixed", "eps8") not in found and ("private", "eps8") in found
    assert found["fixed", "eps1"]["privacy"]["clip_norm"] == 0.5
    assert found["private", "eps1"]["privacy"]["clip_norm"] == 1
    tried = []

    def score(words):
        tried.append(words)
        return 50.0 + ("optimizer.lr=0.02" in words)

    assert tune.main(["table1", "paper=made", "rows=fixed"], score) == 0
    assert len(tried) == 2 and all("eps=1" in words for words in tried)
    assert configs(conf)["fixed", "eps1"]["optimizer"]["lr"] == 0.02
    table = spec.load(conf, "made", "table1")
    assert "best of 2 settings" in " ".join(
        tuned.notes(table, "embedded", tuned.load(conf, table, "embedded"))
    )


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"*1":', "eps3:", "Unknown column within row fixed 'eps3'"),
        ("absent:", "absnt:", "Unknown word in row fixed within eps8 'absnt'"),
        ("long\"}", "long\", overrides: [eps=1]}", "Expected nothing beside 'absent'"),
        ("[optimizer.lr=0.02, optimizer.lr=0.2]", "[eps=1]", "Expected no eps under 'grid'"),
        ("[optimizer.lr=0.02, optimizer.lr=0.2]", "[holdout.size=9]",
         "under 'grid' in row fixed within *1: points are compared on "
         "the same held-out examples, by runs done in the same way. Leave it out."),
        ("profiles:", "claims: [{says: x, above: [fixed], below: [private]}]\nprofiles:",
         "Expected no value or claim on fixed, eps8: it takes too long. Say which columns claim "
         "'x' is on, as columns: [eps1]."),
    ],
)  # fmt: skip
def test_what_a_row_says_of_columns_is_checked(conf, old, new, says):
    path = conf / "artifact" / "made" / "table1.yaml"
    row = "  - {key: fixed, labels: [fixed], overrides: [method=dpsgd]}"
    own = f"  - key: fixed\n    labels: [fixed]\n    overrides: [method=dpsgd]{WITHIN.rstrip()}"
    text = path.read_text(encoding="utf-8").replace(row, own)
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(says)):
        spec.load(conf, "made", "table1")


def test_a_mistake_in_the_last_point_costs_no_run_of_the_first(conf, capsys):
    changed(conf, "epochs=2 privacy.clip_norm=2", "epochs=2 privacy.clip_norm=-2")
    tried, attempt = counting()
    assert tune.main(["table1", "paper=made"], attempt) == 2 and not tried
    assert "Expected privacy.clip_norm" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["tuned", "mine"])
def test_a_folder_that_cannot_be_made_is_told_in_a_line(place, conf, capsys):
    (conf / place).write_text("a file")
    if place == "tuned":
        assert tune.main(["table1", "paper=made"], seventy) == 2
        assert capsys.readouterr().err.startswith("error: Cannot make")
    else:
        with pytest.raises(RecordError, match="Cannot make"):
            audit_page.write([], [], conf / place / "digits")


def test_what_a_cell_lacks_is_said_above_the_bar():
    with a_terminal() as shown:
        overview = Overview(2)
        shown("of 2 runs")
        tune._say_missing("private, eps8", MissingData("digits is not here"))
        before, line, _ = shown("of 2 runs").partition("private, eps8: no data")
        overview.close()
    assert line and "|" not in before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("rows=private columns=eps8", "profile embedded skips column eps8 (too long)."),
        ("rows=plain columns=eps8", "there is no plain in eps8 (has no noise). Pick other"),
        ("columns=notes", "column notes holds no runs. Pick other cells."),
        ("rows=fixed", "cells with a 'grid'; these have none. Rows of table1 with one: plain, pri"),
        ("columns=eps8", "(has no noise); profile embedded skips column eps8 (too long). Set prof"),
    ],
)
def test_cells_of_which_none_can_be_tuned_say_why(conf, capsys, words, says):
    """A row whose column the profile skips, or that is absent there, "has no such grid"."""
    changed(conf, "    regardless_of: [eps]\n", '    within: {eps8: {absent: "has no noise"}}\n')
    changed(conf, "\nprofiles:\n", """
  - {key: notes, label: notes, words: {plain: "one"}}
profiles:
  short: {seeds: [0], scaled: "all of it"}
""")  # fmt: skip
    changed(conf, "    seeds: [0]\n", "    seeds: [0]\n    skip: {eps8: too long}\n")
    assert tune.main(["table1", "paper=made", *words.split()], seventy) == 2
    said = capsys.readouterr().err
    assert says in said
    assert ("Set profile=short, or pick other cells." in said) == ("too long" in said)
