"""Where data of one's own are found: files, folders, shards, configurations, cards, the hub."""

import pytest

from dpexp.data.source import named
from tests.own_data import refusal, save_csv, save_folders, save_parquet, task_of
from tests.texts import sentences

COLUMNS = "task.columns={x:[0,9]}"
NEXT = iter(range(10_000))


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    monkeypatch.setenv("DPEXP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def save(path, count=2):
    """Write a table of so many rows, like no other file's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [[next(NEXT) % 9, index % 2] for index in range(count)]
    if path.suffix.lower() == ".parquet":
        x, y = zip(*rows, strict=True)
        return save_parquet(path, {"x": [*x], "y": [*y], "only": [str(next(NEXT))] * count})
    return save_csv(path, [["x", "y", f"of{next(NEXT)}"], *(row + [0] for row in rows)])


def words(root, size=2):
    named = ["task=table", f"data={root}", f"dataset_size={size}", "task.target=y"]
    return [*named, "task.num_classes=2", COLUMNS]


@pytest.mark.parametrize(
    ("files", "size"),
    [
        (["train.csv", "test.csv"], 2),
        (["Train.CSV", "TEST.csv"], 2),
        (["train.parquet", "validation.parquet"], 2),
        (["train_1.csv", "train_2.csv", "test.csv"], 4),
        (["train/a.csv", "train/b.csv", "test/a.csv"], 4),
        (["data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"], 2),
        (["train-00000-of-00002.csv", "train-00001-of-00002.csv", "dev.csv"], 4),
        (["x/train.tsv", "x/val.tsv"], 2),
        (["training.csv", "eval.csv", ".hidden.csv", "~$train.csv"], 2),
    ],
    ids=str,
)
def test_splits_are_told_by_names_of_files_and_folders(tmp_path, files, size):
    for name in files:
        path = tmp_path / "set" / name
        save(path) if path.suffix != ".tsv" else save_csv(
            save(path), [["x", "y"], [next(NEXT) % 9, 0], [1, 1]], delimiter="\t"
        )
    if files[0].startswith("x/"):
        (tmp_path / "set/x/val.tsv").write_text("x\ty\n2\t0\n")
    assert len(task_of(*words(tmp_path / "set", size)).train) == size


def test_shards_without_a_split_are_one_training_set_in_order(tmp_path):
    for index in range(3):
        save(tmp_path / "set" / f"part-{index}.parquet", 4)
    line = refusal(*words(tmp_path / "set", 12))
    assert "Expected test examples" in line and "has train" in line
    task = task_of(*words(tmp_path / "set", 10), "task.test_size=2")
    assert (len(task.train), len(task.test)) == (10, 2)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([], "it holds nothing"),
        (["notes.txt", "x.xlsx"], "it holds notes.txt, x.xlsx"),
        (["train-00000-of-00002.csv", "test.csv"], "all of 2 shards of train"),
        (["train-00000-of-00001.csv", "train-1.csv", "test.csv"], "all of 1 shards"),
        (["train.csv", "train.parquet", "test.csv"], "one format for split train"),
        (["one/train.csv", "two/train.csv"], "it has one, two. Set task.config"),
        (["test.csv", "dev.csv"], "Expected a split named train"),
        (["train.csv", "extra.csv"], "Expected test examples"),
        (["a.json"], "it holds a.json"),
        (["train.csv.gz"], "it holds train.csv.gz"),
    ],
    ids=str,
)
def test_a_folder_that_cannot_be_told_is_refused(tmp_path, files, said):
    (tmp_path / "set").mkdir()
    for name in files:
        path = tmp_path / "set" / name
        save(path) if path.suffix in (".csv", ".parquet") else path.write_text("x")
    assert said in refusal(*words(tmp_path / "set"))


def test_splits_may_be_named(tmp_path):
    for split in ("train", "extra", "test", "hard"):
        save(tmp_path / "set" / f"{split}-00000-of-00001.csv")
    both = ["task.train_splits=[train,extra]", "task.test_splits=[hard]"]
    assert len(task_of(*words(tmp_path / "set", 4), *both).train) == 4
    for wrong in ("task.test_splits=[hart]", "task.train_splits=[hart,test]"):
        assert "Did you mean hard?" in refusal(*words(tmp_path / "set"), wrong)
    assert len(task_of(*words(tmp_path / "set"), "task.test_splits=hard").test) == 2
    for wrong in ("[train]", "[test,test]", "[]"):
        assert "task.test_splits" in refusal(*words(tmp_path / "set"), f"task.test_splits={wrong}")
    line = refusal(*words(tmp_path / "set"), "task.test_splits=[test]", "task.test_size=1")
    assert "got both" in line


def test_a_setting_that_such_data_have_no_part_for_is_refused(tmp_path):
    csv, parquet = (words(save(tmp_path / name, 4)) for name in ("t.csv", "t.parquet"))
    classes = {"": {"cat": 3, "dog": 3}}
    images = ["task=images", f"data={save_folders(tmp_path / 'set', classes)}", "dataset_size=4"]
    for data, word, said in [
        (csv, "config=one", "task.config for a file; got one"),
        (images, "config=one", "task.config for folders of images; got one"),
        (parquet, "delimiter=;", "task.delimiter for .parquet files; got ;"),
    ]:
        line = refusal(*data, "task.test_size=2", f"task.{word}")
        assert f"Expected no {said}" in line and "Leave task." in line


def test_configurations_are_named(tmp_path):
    for config, split in (("one", "train"), ("one", "test"), ("two", "train"), ("two", "test")):
        save(tmp_path / "set" / config / f"{split}-00000-of-00001.parquet")
    task = task_of(*words(tmp_path / "set"), "task.config=two")
    assert task.name == "table:set/two"
    assert "Did you mean two?" in refusal(*words(tmp_path / "set"), "task.config=tow")
    assert task_of(*words(tmp_path / "set/one")).name == "table:one"


CARD = """---
configs:
- config_name: mine
  default: true
  data_files:
  - {split: train, path: "a*.csv"}
  - {split: test, path: [b.csv]}
- config_name: other
  data_files: c.csv
dataset_info:
  features:
  - {name: x, dtype: int64}
  - name: y
    dtype: {class_label: {names: {'0': cold, '1': warm}}}
---
# About
"""


def test_a_card_names_files_and_classes(tmp_path):
    for name in ("a1", "a2", "b", "c"):
        save(tmp_path / "set" / f"{name}.csv")
    (tmp_path / "set/README.md").write_text(CARD)
    of_card = [word for word in words(tmp_path / "set", 4) if "num_classes" not in word]
    task = task_of(*of_card)
    assert (len(task.train), len(task.test), task.num_classes) == (4, 2, 2)
    assert task.train.targets.tolist() == [0, 1, 0, 1]
    (tmp_path / "set/README.md").write_text(CARD.replace("default: true", "default: false"))
    assert "its README.md has mine, other" in refusal(*of_card)
    (tmp_path / "set/README.md").write_text(CARD.replace("a*.csv", "../../**/*.csv"))
    assert "Expected a split named train" in refusal(*of_card, "task.config=mine")
    (tmp_path / "set/README.md").write_text("---\n: [\n---\n")
    assert "README.md to open with YAML" in refusal(*of_card)


@pytest.mark.parametrize("copy", ["link", "bytes"])
def test_a_file_for_training_and_testing_is_refused(tmp_path, copy):
    path = save(tmp_path / "set/train.csv")
    other = tmp_path / "set/test.csv"
    other.symlink_to(path) if copy == "link" else other.write_bytes(path.read_bytes())
    line = refusal(*words(tmp_path / "set"))
    assert "train.csv and" in line and "test.csv hold the same" in line
    assert len(task_of(*words(tmp_path / "set"), "task.judged_on_training=true").test) == 2
    (tmp_path / "set/extra-00000-of-00001.csv").write_bytes(path.read_bytes())
    twice = ["task.train_splits=[train,extra]", "task.judged_on_training=true"]
    assert "00001.csv hold the same" in refusal(*words(tmp_path / "set", 4), *twice)


def test_one_split_may_be_trained_and_tested_on_where_that_is_said(tmp_path):
    save(tmp_path / "set/train.csv")
    one = [*words(tmp_path / "set"), "task.test_splits=[train]"]
    assert len(task_of(*one, "task.judged_on_training=true").test) == 2
    for more in ([], ["task.judged_on_training=false"]):
        assert "no split to be used for both" in refusal(*one, *more)


@pytest.mark.parametrize("kind", ["table", "texts"])
def test_training_examples_in_another_file_are_refused_as_test_examples(
    tmp_path, tiny_models, kind
):
    """The files are equal in no byte: the other one has fewer rows, in another order and format."""
    (tmp_path / "set").mkdir()
    if kind == "table":
        said = ["task=table", "task.target=y", "task.columns={x:[0,999]}"]
        rows = [[index, index % 2] for index in range(160)]
    else:
        said = ["task=texts", "task.text_columns=[x]", "task.label_column=y"]
        said += ["task.tokenizer=tiny/bert", f"model_root={tiny_models}", "task.max_length=64"]
        texts = sentences(160, seed=3)
        rows = [[text + " good" * (i % 9), i % 2] for i, text in enumerate(texts)]
        rows[0][0] += " bad" * 30  # training texts are padded further than test texts
    said += [f"data={tmp_path}/set", "dataset_size=100", "task.num_classes=2"]
    save_csv(tmp_path / "set/train.csv", [["x", "y"], *rows[:100]])
    x, y = zip(*rows[99:39:-1], strict=True)
    save_parquet(tmp_path / "set/test.parquet", {"x": [*x], "y": [*y]})
    assert "that are not trained on; most of them are training examples" in refusal(*said)
    for value in ("true", "false"):
        assert len(task_of(*said, f"task.judged_on_training={value}").test) == 60
    assert "task.judged_on_training" in refusal(*said, "task.judged_on_training=1")
    x, y = zip(*rows[:99:-1], strict=True)
    save_parquet(tmp_path / "set/test.parquet", {"x": [*x], "y": [*y]})
    assert len(task_of(*said).test) == 60


def test_a_file_that_is_not_there_is_one_line_with_the_nearest_name(tmp_path):
    save(tmp_path / "houses.csv")
    line = refusal(*words(tmp_path / "house.csv"))
    assert str(tmp_path / "house.csv") in line and "Did you mean houses.csv?" in line
    line = refusal(*words("owner/houses"), f"data_root={tmp_path}")
    assert "HF_HUB_OFFLINE is set" in line
    for kind in (".txt", ".xls", ""):
        (tmp_path / f"x{kind}").write_text("x")
        assert "Convert it" in refusal(*words(tmp_path / f"x{kind}"))


@pytest.mark.parametrize(
    "data", ["/dev/null", "x" * 5000, "/" + "y/" * 3000, "a\\b", "http://x/y.csv"]
)
def test_what_is_no_file_and_no_folder_is_refused(data):
    line = refusal("task=table", f"data={data}")[:200]
    assert "Expected data=" in line


def test_data_root_is_looked_at_before_the_hub_and_the_name_is_the_hubs(tmp_path):
    for split in ("train", "test"):
        save(tmp_path / "owner/houses/data" / f"{split}-00000-of-00001.parquet")
    task = task_of(*words("owner/houses"), f"data_root={tmp_path}")
    assert task.name == "table:owner/houses"


def test_a_name_is_the_last_part_of_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert named("/a/b/flowers.v2") == "flowers.v2" and named("me/mine") == "me/mine"
    assert named(".") == tmp_path.name and named("../x/y/z") == "z"


@pytest.mark.parametrize("name", ["my set", "prêts", "a,b", "2024", "x=1", "[odd]", "a'b", "null"])
def test_a_folder_may_be_called_anything_that_can_be_printed(tmp_path, name):
    for split in ("train", "test"):
        save(tmp_path / name / f"{split}.csv")
    assert task_of(*words(tmp_path / name)).name == f"table:{name}"


def test_a_class_that_is_called_like_a_split_is_a_class(tmp_path):
    root = save_folders(tmp_path / "set", {"": {"train": 3, "plane": 3}})
    task = task_of("task=images", f"data={root}", "dataset_size=4", "task.test_size=2")
    assert task.num_classes == 2


def test_data_without_an_example_are_refused_before_they_are_counted(tmp_path):
    (tmp_path / "train.csv").write_text("x,y\n")
    save(tmp_path / "test.csv")
    some = [word for word in words(tmp_path) if not word.startswith("dataset_size=")]
    assert "holds none" in refusal(*some, "dataset_size=count") == refusal(*some)


def test_data_and_their_number_are_asked_for(tmp_path):
    save(tmp_path / "set/train.csv", 5)
    save(tmp_path / "set/test.csv")
    some = words(tmp_path / "set")
    for missing in ("data", "dataset_size"):
        line = refusal(*(word for word in some if not word.startswith(f"{missing}=")))
        assert line.startswith(f"Expected {missing}, ") and f"Set {missing}" in line
        for wrong in ("[1]", "{a:1}", "true", "''"):
            refused = [w if not w.startswith(f"{missing}=") else f"{missing}={wrong}" for w in some]
            assert f"Expected {missing}" in refusal(*refused)
    line = refusal(*(word for word in some if not word.startswith("dataset_size=")))
    assert "holds 5. Set dataset_size=5, or dataset_size=count" in line
    for wrong in ("0", "-5", "5.5", "many", "4"):
        assert "dataset_size" in refusal(*some, f"dataset_size={wrong}")
    counted = task_of(*some, "dataset_size=count")
    assert counted.dataset_size == 5
    of_task = [w.replace("data=", "task.data=").replace("set_size", "set_size") for w in some]
    assert task_of(*of_task, "dataset_size=5").fingerprint == counted.fingerprint
    assert "Leave one of them out" in refusal(*some, "task.data=elsewhere")


def test_a_data_set_of_the_hub_is_read_from_its_cache(tmp_path):
    commit, repo = "0" * 40, tmp_path / "hub/datasets--owner--houses"
    for name in ("refs/main", f"snapshots/{commit}/README.md"):
        (repo / name).parent.mkdir(parents=True)
        (repo / name).write_text(commit)
    for split in ("train", "test"):
        save(repo / f"snapshots/{commit}/data/{split}-00000-of-00001.parquet")
    assert task_of(*words("owner/houses")).name == "table:owner/houses"


def test_classes_that_two_configurations_name_differently_are_not_guessed(tmp_path):
    save(tmp_path / "set/train.csv")
    save(tmp_path / "set/test.csv")
    other = CARD.replace("dataset_info:", "other:").replace("configs:", "unread:")
    one = "  features: [{name: y, dtype: {class_label: {names: [%s, b]}}}]\n"
    infos = "".join(f"- config_name: c{k}\n{one % name}" for k, name in enumerate("ax"))
    (tmp_path / "set/README.md").write_text(f"---\ndataset_info:\n{infos}---\n{other}")
    of_card = [word for word in words(tmp_path / "set") if "num_classes" not in word]
    assert "to be declared" in refusal(*of_card)
    (tmp_path / "set/README.md").write_text(f"---\ndataset_info:\n{infos.replace('x', 'a')}---\n")
    assert task_of(*of_card).num_classes == 2


def test_splits_that_are_not_read_are_named(tmp_path, caplog):
    for split in ("train", "test", "validation", "unlabelled"):
        save(tmp_path / "set" / f"{split}-00000-of-00001.csv")
    with caplog.at_level("INFO"):
        task_of(*words(tmp_path / "set"))
    assert "splits that are not read: unlabelled, validation" in caplog.text


@pytest.mark.parametrize(
    ("files", "is_told"),
    [
        (("train.csv", "train_old.csv"), True),
        (("train-2024.csv", "train-2025.csv"), False),
        (("train/monday.csv", "train/friday.csv"), False),
    ],
)
def test_files_that_are_joined_by_the_start_of_their_names_are_told_of(
    tmp_path, recwarn, files, is_told
):
    for file in (*files, "test.csv"):
        save(tmp_path / "set" / file)
    assert len(task_of(*words(tmp_path / "set", 4)).train) == 4
    told = [str(each.message) for each in recwarn if "read together" in str(each.message)]
    assert len(told) == is_told and all("train.csv, train_old.csv of" in each for each in told)
