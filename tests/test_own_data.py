"""Runs on data of one's own: every example of docs/data.md, and all that can be done with a run."""

import json
import re
import shlex

import numpy as np
import pytest

import dpexp
from dpexp import cli, records
from dpexp.cli import lookup, verify
from dpexp.cli.own_data import delta_for, share_of
from dpexp.privacy.certificate import CLASSES_READ, COUNTED, JUDGED_ON_TRAINING
from dpexp.privacy.verification.files import verify_files
from dpexp.types import ConfigError
from tests.marks import few
from tests.own_data import refusal, save_csv, save_folders
from tests.runs import execute, with_words
from tests.texts import save_model, sentences

PAGE = (cli.CONF.parent / "docs" / "data.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^    python run\.py (.+)$", PAGE, re.MULTILINE)
MINILM = "sentence-transformers/all-MiniLM-L6-v2"


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A folder with the data that docs/data.md speaks of, and a small model in MiniLM's place."""
    root = tmp_path_factory.mktemp("here")
    rng = np.random.default_rng(0)
    save_folders(
        root / "flowers",
        {"train": {"daisy": 70, "rose": 50}, "test": {"daisy": 12, "rose": 9}},
    )
    save_folders(root / "garden", {"": {"fern": 40, "moss": 40}}, size=(9, 12))
    words = [["bad", "good"][label] for label in rng.integers(0, 2, 200)]
    texts = [f"{word} {text}" for word, text in zip(words, sentences(200), strict=True)]
    save_csv(root / "reviews.csv", [["text", "label"], *map(list, zip(texts, words, strict=True))])
    (root / "pairs").mkdir()
    for split, count in (("train", 60), ("validation", 20)):
        rows = zip(
            sentences(count, 1), sentences(count, count), rng.integers(0, 2, count), strict=True
        )
        header = ["premise", "hypothesis", "holds"]
        save_csv(root / "pairs" / f"{split}.csv", [header, *map(list, rows)])
    houses = []
    for _ in range(300):
        rooms, heating = int(rng.integers(1, 13)), ["gas", "oil", "none"][rng.integers(3)]
        price = 50 * rooms + 100 * (heating == "gas")
        houses.append([rooms, heating, price, ["no", "yes"][price > 330]])
    save_csv(root / "houses.csv", [["rooms", "heating", "price", "sold"], *houses])
    (root / "columns.yaml").write_text("rooms: [1, 12]\nheating: [gas, oil, none]\n")
    save_model(root / "models", "bert", longest=128)
    (root / "models" / MINILM).parent.mkdir()
    (root / "models" / "tiny" / "bert").rename(root / "models" / MINILM)
    return root


@pytest.fixture
def alone(here, tmp_path, monkeypatch):
    """Run where the data are, with a cache and results of its own."""
    monkeypatch.chdir(here)
    monkeypatch.setenv("DPEXP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DPEXP_MODEL_ROOT", str(here / "models"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path / "results"


def passes(directory):
    """Return whether a finished run verifies."""
    return verify.main([str(directory)]) == 0


@pytest.mark.parametrize("example", few(EXAMPLES, EXAMPLES[::2]))
def test_every_example_of_the_page_trains_is_looked_up_and_verifies(alone, example):
    words = [word.strip("'") for word in shlex.split(example)]
    line = f"docs/data.md: {example}"
    directory = execute(alone, *words, "epochs=1")
    record = records.read(directory)
    kind = next(word for word in words if word.startswith("task=")).removeprefix("task=")
    data = next(word for word in words if word.startswith("data=")).removeprefix("data=")
    assert record.result["task"] == record.config["task"]["name"] == f"{kind}:{data}", line
    assert record.result["metric"] in ("test_accuracy", "test_absolute_error")
    assert record.result["profile"] == directory.parent.parent.name == "own"
    older = {**record.result, "profile": "paper"}
    assert verify_files(record.config, older, record.privacy).findings == ()
    other = verify_files(record.config, {**older, "profile": "quick"}, record.privacy)
    assert "profile" in other.findings[0]
    assert passes(directory)
    assert lookup.done_before({**record.config, "results": str(alone)}).startswith("done before")
    said = record.privacy["deviations"]
    assert (COUNTED in said) == ("dataset_size=count" in words) and CLASSES_READ not in said
    assert record.privacy["delta"] == delta_for(record.privacy["dataset_size"])


FLOWERS = ["task=images", "data=flowers", "dataset_size=120", "model=linear", "eps=8", "epochs=1"]


def test_what_is_read_off_the_examples_is_in_the_certificate_and_must_be(alone):
    words = ["method=dpsgd", "task=table", "data=houses.csv", "task.target=sold", "epochs=1"]
    words += ["task.columns={rooms:[1,12]}", "task.test_size=60", "dataset_size=count"]
    directory = execute(alone, *words, "task.classes=read")
    privacy = json.loads((directory / "privacy.json").read_text())
    assert privacy["dataset_size"] == 240 and {COUNTED, CLASSES_READ} <= {*privacy["deviations"]}
    assert passes(directory)
    privacy["deviations"].remove(COUNTED)
    (directory / "privacy.json").write_text(json.dumps(privacy))
    assert not passes(directory)


def test_a_test_set_of_training_examples_is_in_the_certificate_where_it_is_allowed(alone, tmp_path):
    rows = [[room, ["no", "yes"][room % 2]] for room in range(120)]
    (tmp_path / "set").mkdir()
    save_csv(tmp_path / "set" / "train.csv", [["rooms", "sold"], *rows * 3])  # oversampled
    save_csv(tmp_path / "set" / "test.csv", [["rooms", "sold"], *rows[:60]])
    words = ["method=dpsgd", "task=table", f"data={tmp_path}/set", "task.target=sold", "eps=8"]
    words += ["task.columns={rooms:[0,120]}", "task.classes=[no,yes]", "epochs=1"]
    words += ["dataset_size=360"]
    line = refusal(*words)
    assert "most of them are training examples" in line
    for value, is_due in (("true", True), ("false", False)):
        directory = execute(alone, *words, f"task.judged_on_training={value}")
        said = records.read(directory)
        assert (JUDGED_ON_TRAINING in said.privacy["deviations"]) is is_due
        assert said.config["task"]["judged_on_training"] is is_due and passes(directory)
    for more in (["attack=loss_threshold"], ["method=pate"]):
        line = refusal(*words, "task.judged_on_training=true", *more)
        assert "since " + more[0] in line


def test_what_is_not_said_of_the_test_examples_is_not_in_the_config(alone):
    """So that ids of runs on one's own data do not depend on a setting that is younger."""
    words = ["method=dpsgd", *FLOWERS]
    config, said = cli.compose(words), cli.compose([*words, "task.judged_on_training=true"])
    assert "judged_on_training" not in config["task"]
    assert records.run_id(config) != records.run_id(said)


def test_a_changed_file_is_refused_where_its_run_is_looked_up(alone, here, tmp_path, monkeypatch):
    root = save_folders(tmp_path / "set", {"train": {"a": 9, "b": 9}, "test": {"a": 3, "b": 3}})
    monkeypatch.chdir(tmp_path)
    words = ["method=dpsgd", "task=images", "data=set", "dataset_size=18", "model=linear"]
    config = records.read(execute(alone, *words, "epochs=1")).config | {"results": str(alone)}
    assert lookup.done_before(config).startswith("done before: test_accuracy")
    (root / "train" / "a" / "0.png").rename(root / "train" / "b" / "00.png")  # another label
    lookup._of_data.cache_clear()
    with pytest.raises(ConfigError, match="the data of images:set were"):
        lookup.done_before(config)


def test_a_file_that_changes_between_two_calls_of_one_process_is_seen(alone, tmp_path):
    """In a notebook the second look-up compared the data with what the first one had read."""
    rows = [[room, ["no", "yes"][room % 2]] for room in range(40)]
    path, before = tmp_path / "sold.csv", [["rooms", "sold"], *rows]
    save_csv(path, before)
    words = ["method=dpsgd", "task=table", f"data={path}", "task.target=sold", "eps=8", "epochs=1"]
    words += ["task.columns={rooms:[0,40]}", "task.classes=[no,yes]", "task.test_size=8"]
    words += ["dataset_size=32", f"results={alone}"]
    first, again = dpexp.run(*words), dpexp.run(*words)
    save_csv(path, [*before[:-1], [39, "no"]])
    with pytest.raises(ConfigError, match="the data of table:sold.csv were"):
        dpexp.run(*words)
    save_csv(path, before)
    assert dpexp.run(*words).directory == again.directory == first.directory
    path.unlink()
    with pytest.warns(UserWarning, match="looked up, and the data of .* were not compared"):
        dpexp.run(*words)


@pytest.mark.parametrize(
    "more",
    [
        ["attack=loss_threshold"],
        pytest.param(["audit=one_run"], marks=pytest.mark.long),
        ["method=pate", "method.teachers=4", "method.teacher_steps=2", "profile=embedded"],
        ["method=gep", "public=digits", "method.m=20", "method.k=10"],
        ["method=rgp", "model=wrn10_1", "method.rank=2"],
        ["method=nonprivate", "eps=null"],
        ["noise=secret"],
    ],
    ids=lambda words: words[0],
)
def test_what_can_be_done_with_a_run_can_be_done_with_ones_own_data(alone, more):
    chosen = [] if more[0].startswith("method=") else ["method=dpsgd"]
    directory = execute(alone, *FLOWERS, *chosen, *more, "device=cpu")
    assert records.read(directory).result["task"] == "images:flowers"
    assert passes(directory)


@pytest.mark.long
def test_two_ranks_train_what_one_does(alone, here, programs):
    changed = ["method=dpsgd", "device=cpu", "noise=false", "eps=null", "dataset_size=count"]
    words = with_words(FLOWERS, changed)
    said = {}
    for ranks in (1, 2):
        more = [f"results={alone}/{ranks}", f"ranks={ranks}", "clip=false"]
        script = str(cli.CONF.parent / "run.py")
        done = programs.run([script, *words, *more], cwd=here)
        assert done.returncode == 0, done.stderr
        said[ranks] = json.loads((here / done.stdout.split()[-1] / "result.json").read_text())
    assert said[2]["ranks"] == 2 and said[1]["data_fingerprint"] == said[2]["data_fingerprint"]
    assert said[1]["test_accuracy"] == pytest.approx(said[2]["test_accuracy"], abs=5)


@pytest.mark.long
def test_a_sweep_over_data_is_a_run_for_each(alone, here, programs):
    words = [word for word in FLOWERS if not word.startswith(("data=", "dataset_size="))]
    words += ["method=dpsgd", "data=flowers,garden", "dataset_size=count", "device=cpu"]
    script = str(cli.CONF.parent / "run.py")
    more = ["task.test_size=30", "task.classes=[daisy,rose,fern,moss]", f"results={alone}"]
    done = programs.run([script, "-m", *words, *more], cwd=here)
    assert done.returncode == 0, done.stderr
    names = {path.parent.name for path in alone.glob("*/runs/*/result.json")}
    assert len(names) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["task=mnist", "task.repo=me/mine"], "task=mnist to be of its own data.*Set task=images"),
        (["task=sst2", "task.config=cola"], "task=sst2 to be of its own data"),
        (["task=sst2", "task.text_columns=[idx]"], "task=sst2 to be of its own data"),
        (["task=lending_club", "task.target=fico"], "task=lending_club to be of its own data"),
        (["task=digits", "task._target_=mine.load"], "task=digits .* Set task.name too"),
        (["task=images", "data=flowers", "task.name=mnist"], "Expected task to keep the name"),
        (["task=digits", "task._target_=mine.load", "task.name=mnist"], "task=mnist to be of its"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_no_other_data_are_called_by_a_name_of_the_suite(alone, words, said):
    assert re.search(said, refusal(*words))


@pytest.mark.parametrize("task", ["mnist", ""])
def test_words_of_ones_own_data_beside_another_task_say_which_they_are_for(programs, here, task):
    words = ["method=dpsgd", "data=flowers", *([f"task={task}"] if task else [])]
    done = programs.run([str(cli.CONF.parent / "run.py"), *words], cwd=here)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "Expected task=images, texts or table beside data=" in done.stderr


def test_a_recipes_batch_is_made_to_fit_and_ones_own_is_not_touched(alone):
    words = ["method=bitfit", "task=texts", "data=reviews.csv", "task.classes=[bad,good]"]
    words += ["task.test_size=40", "dataset_size=160"]
    assert cli.compose(words)["batch_size"] == 40  # the recipe has 256
    assert cli.compose([*words, "batch_size=300"])["batch_size"] == 300
    kept = [*words, "holdout=train", "holdout.size=80"]
    assert cli.compose(kept)["batch_size"] == 20  # a fourth of what is left, not of the whole
    assert cli.compose([*words[:-1], "dataset_size=1600"])["batch_size"] == 256


def test_delta_and_batches_follow_from_the_declared_number_alone():
    for size, delta in ((1, 0.1), (5, 0.1), (6, 0.01), (500, 1e-3), (501, 1e-4), (50_000, 1e-5)):
        assert delta_for(size) == pytest.approx(delta)
    for size in range(1, 10**5):
        assert 0.05 < delta_for(size) * size * (1 + 1e-9) and delta_for(size) * size < 0.5 + 1e-9
    assert [share_of(size, 4, 1000) for size in (1, 8, 3999, 10**6)] == [1, 2, 999, 1000]
    assert delta_for("count") is None and share_of(None, 4, 1000) is None
