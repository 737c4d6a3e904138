"""The whole suite's command line: what it picks, runs once, writes and tells."""

import json
import re
import shutil
from dataclasses import replace

import pytest
from hydra.errors import HydraException
from hypothesis import given, settings
from hypothesis import strategies as st

from dpexp import cli, records
from dpexp.cli import all as suite
from dpexp.cli import artifact as script
from dpexp.cli import composition, folders
from dpexp.cli.config_cache import Configs
from dpexp.records import caches
from dpexp.reporting.schema import spec
from dpexp.types import ConfigError
from tests.marks import some_long


def test_its_own_words_are_taken_out_and_the_rest_are_overrides():
    words = "paper=rgp,gep only=rgp/table* profile=quick plan=true flops=4e13 run=false seeds=0,1"
    request = suite.parse([*words.split(), "workers=3", "launcher=joblib", "epochs=1", "~schedule"])
    assert request == suite.Request(
        papers=("rgp", "gep"),
        only=("rgp/table*",),
        profile="quick",
        is_plan=True,
        flops=4e13,
        runs=False,
        seeds=(0, 1),
        workers=3,
        launcher="joblib",
        overrides=("epochs=1", "~schedule"),
    )


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("table3", "Expected WORD=VALUE; got 'table3'"),
        ("workers=0", "Expected workers to be a whole number >= 1; got 'workers=0'"),
        ("workers=1.5", "Expected workers to be a whole number >= 1"),
        ("flops=fast", "Expected a number above 0, as in flops=40e12; got 'flops=fast'"),
        ("paper=rpg", "did you mean 'rgp'?"),
        ("only=rgp/tabel3", "did you mean 'rgp/table3'?"),
        ("profile=embeded", "did you mean 'embedded'?"),
        ("launcher=joblip", "did you mean 'joblib'?"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(word, expected, capsys):
    assert suite.main([word]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1
    assert expected in printed.err


def test_all_is_the_four_papers_tables_before_figures():
    names = [f"{a.paper}/{a.name}" for a in suite.choose(suite.PAPERS, (), cli.CONF)]
    assert [n for n in names if n.startswith("rgp/table")] == [f"rgp/table{n}" for n in range(1, 6)]
    assert names.index("rgp/table5") < names.index("rgp/figure4") < names.index("lsg/table2")
    assert not [name for name in names if name.startswith("dpexp/")]


def test_ours_are_picked_by_name_also_where_no_paper_is_asked_for():
    picked = suite.choose(suite.PAPERS, ("dpexp/table1", "rgp/table3"), cli.CONF)
    assert [(a.paper, a.name) for a in picked] == [("rgp", "table3"), ("dpexp", "table1")]


@pytest.mark.parametrize("workers", some_long([1, 2], [1]))
def test_missing_runs_are_done_once_written_and_afterwards_looked_up(workers, tmp_path, capsys):
    words = ["paper=compressive", "only=*/figure1", "seeds=0", f"results={tmp_path}"]
    words.append(f"workers={workers}")
    words += ["epochs=0.1"]
    assert suite.main(words) == 0
    out = capsys.readouterr().out
    shared = len(list((tmp_path / "embedded" / "runs").iterdir()))
    assert f"0 of {shared} runs done, {shared} to do" in out and f"[{shared}/{shared}]" in out
    assert suite.main(words) == 0
    assert f"{shared} of {shared} runs done, 0 to do" in capsys.readouterr().out
    assert (tmp_path / "embedded" / "compressive" / "figure1.csv").is_file()
    assert "compressive-figure1" in (tmp_path / "embedded" / "index.html").read_text()


def test_a_plan_of_runs_of_minutes_times_their_own_steps(tmp_path, capsys):
    """By four examples of stand-in data these runs of 2 s each took 160."""
    words = ["paper=compressive", "only=*/figure1", "seeds=0", f"results={tmp_path}", "plan=true"]
    assert suite.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "| Artifact | Runs | One after another | Memory |" in lines
    (line,) = (line for line in lines if line.startswith("| compressive figure1 | 7 |"))
    seconds = re.search(r"\| ([\d.]+) s \|", line)
    assert seconds and 0 < float(seconds[1]) < 60
    assert list(tmp_path.iterdir()) == []


def test_what_was_written_before_stays_on_the_page(tmp_path, capsys):
    assert suite.main(["only=gep/figure1", "run=false", f"results={tmp_path}"]) == 0
    assert suite.main(["only=gep/table5", "run=false", f"results={tmp_path}"]) == 0
    page = (tmp_path / "embedded" / "index.html").read_text()
    assert page.index('id="gep-table5"') < page.index('id="gep-figure1"')


def test_a_run_that_measures_time_is_kept_from_those_side_by_side(tmp_path):
    table2 = spec.load(cli.CONF, "rgp", "table2")
    again = replace(table2, alone=True)
    both = suite.Suite([table2, again], "embedded", [f"results={tmp_path}"])
    first, alone = both.missing()
    assert first == [] and len({job.run_id for job in alone}) == len(alone) > 0


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DPEXP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "configs"


def marked(cache):
    """Mark the one config that is kept, and give what it is marked with."""
    (entry,) = cache.rglob("*.json")
    kept = json.loads(entry.read_text())
    changed = kept["config"] | {"composed": "before"}
    entry.write_text(json.dumps(kept | {"config": changed}))
    return changed


CHOSEN = ["method=rgp", "task=digits", "profile=embedded"]


def test_a_config_is_composed_once_and_again_where_what_decides_it_changes(
    tmp_path, cache, monkeypatch
):
    conf = tmp_path / "conf"
    shutil.copytree(cli.CONF, conf)
    words = [*CHOSEN, "eps=3"]
    first = Configs(conf).compose(words)
    assert json.dumps(Configs(conf).compose(words)) == json.dumps(first)
    assert json.dumps(first) == json.dumps(composition.compose_at_once(words))
    assert records.run_id(first) == records.run_id(Configs(conf).compose(words))

    def again():
        """Return whether it is composed again, as it was when nothing has changed."""
        before = marked(cache)
        return Configs(conf).compose(words) != before

    (conf / "method" / "another.yaml").write_text("name: another")
    (conf / "artifact" / "rgp" / "table3.yaml").write_text("")
    assert not again()
    path = conf / "method" / "rgp.yaml"
    text = path.read_text()
    path.write_text(text + "more: 1\n")
    assert again() and Configs(conf).compose(words)["method"]["more"] == 1
    path.write_text(text)
    assert again() and Configs(conf).compose(words) == first
    # A file that was looked for and not there decides too.
    (conf / "scale" / "embedded").mkdir()
    (conf / "scale" / "embedded" / "rgp.yaml").write_text("# @package _global_\nepochs: 2\n")
    assert again() and Configs(conf).compose(words)["epochs"] == 2
    (conf / "scale" / "embedded" / "rgp.yaml").unlink()
    assert again()
    monkeypatch.setenv("DPEXP_DATA_ROOT", "elsewhere")
    assert again() and Configs(conf).compose(words) == {**first, "data_root": "elsewhere"}


def test_configs_are_not_kept_without_end(cache, monkeypatch):
    monkeypatch.setattr(caches, "MOST", 4)
    for seed in range(7):
        Configs().compose([*CHOSEN, f"seed={seed}"])
    assert 2 < len(list(cache.rglob("*.json"))) <= 5


def test_configs_that_share_their_choices_are_each_as_hydra_composes_them(cache):
    shared = Configs()
    for words in (
        [*CHOSEN, "eps=3"],
        [*CHOSEN, "eps=null", "noise=false", "optimizer.lr=0.1"],
        ["eps=3", *CHOSEN, "++seed=2", "+optimizer.nesterov=true", "~task.std"],
        ["task=sst2", "method=gep", "model=bert", "eps=1", "+analysis=[cost]", "public=texts"],
        ["task=sst2", "method=gep", "model=bert", "eps=8", "+analysis=[cost]", "public=texts"],
        CHOSEN,
    ):
        whole = json.dumps(composition.compose_at_once(words))
        for compose in (shared.compose, cli.compose, cli.compose):
            assert json.dumps(compose(words)) == whole, words


ONE_OF = (
    ("method=dpsgd", "method=rgp", "method=gep", "method=dp_lora", "method=pate"),
    ("task=digits", "task=cifar10", "task=sst2", "task=regression"),
    ("profile=embedded", "profile=quick", "profile=paper"),
)
SOME_OF = (
    *("model=linear", "model=wrn10_2", "eps=3", "eps=null", "noise=correlated", "noise.bands=4"),
    *("clipping=adaptive", "averaging=ema", "averaging.decay=0.9", "+analysis=[cost]", "~schedule"),
    *("optimizer=adam", "optimizer.lr=0.3", "results=a,b", "data_root=~/x", "holdout=train"),
    *("++model.freeze=[a]", "recipe=minilm/rgp", "scale=null", "+optimizer.nesterov=true"),
)


@settings(max_examples=6)
@given(st.tuples(*map(st.sampled_from, ONE_OF)), st.lists(st.sampled_from(SOME_OF), max_size=4))
def test_any_words_compose_in_a_process_as_hydra_composes_them_at_once(chosen, more):
    def told(compose):
        try:
            return json.dumps(compose([*more[:1], *chosen, *more[1:]]))
        except (ConfigError, HydraException) as error:
            return str(error)

    assert told(cli.compose) == told(composition.compose_at_once)


def test_a_folder_of_ones_own_is_read_again_in_the_same_process(tmp_path):
    """What is kept for a process is of dpexp's own files alone."""
    (tmp_path / "method").mkdir()
    path = tmp_path / "method" / "mine.yaml"
    words = [*folders.searchpath([tmp_path]), "method=mine", *CHOSEN[1:], "eps=3"]
    for rank in (3, 5):
        path.write_text(f"defaults: [rgp]\nrank: {rank}\n")
        assert cli.compose(words)["method"]["rank"] == rank


def test_what_does_not_compose_is_told_as_hydra_tells_it(cache):
    for words in (
        ["method=rpg"],
        [*CHOSEN, "epohcs=3"],
        [*CHOSEN, "eps=1,2"],
        [*CHOSEN, "seed=-1"],
    ):
        with pytest.raises((ConfigError, HydraException)) as said:
            composition.compose_at_once(words)
        first, *_ = str(said.value).split("\n")
        assert first
        for compose in (Configs().compose, cli.compose):
            with pytest.raises(type(said.value), match=re.escape(first)):
                compose(words)
    assert not any(cache.rglob("*.json"))


def test_a_mistaken_override_names_the_artifact():
    with pytest.raises(ConfigError, match="rgp/table3: .*epohcs"):
        suite.Suite([spec.load(cli.CONF, "rgp", "table3")], "embedded", ["epohcs=3"])


@pytest.mark.parametrize(
    "main", some_long([script.main, suite.main], [suite.main]), ids=["artifact", "all"]
)
def test_fewer_seeds_are_not_written_over_more(main, tmp_path, capsys):
    numbers = tmp_path / "embedded" / "rgp" / "table3.csv"
    numbers.parent.mkdir(parents=True)
    committed = cli.CONF.parent / "results" / "embedded" / "rgp" / "table3.csv"
    numbers.write_bytes(committed.read_bytes())
    name = ["table3"] if main is script.main else ["only=rgp/table3"]
    words = [*name, "paper=rgp", f"results={tmp_path}"]
    for few in ("seeds=0", "seeds=1,2"):
        assert main([*words, few]) == 2
        line = capsys.readouterr().err
        assert line.startswith("error: Expected 3 seeds or more in seeds=") and str(numbers) in line
        assert not (tmp_path / "embedded" / "runs").exists()
    script.require_seeds((0, 1, 2, 3), numbers)
    script.require_seeds((0,), numbers.with_name("table2.csv"))  # which is not there
    assert numbers.read_bytes() == committed.read_bytes()
