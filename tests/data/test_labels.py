"""Labels as files hold them: whole numbers that mean the same class everywhere, or a refusal."""

import json
import warnings

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpexp.data import Examples
from dpexp.data.glue import glue
from dpexp.data.labels import IMAGES, TEXTS, class_indices
from dpexp.data.parquet import class_names
from dpexp.data.task import assemble
from dpexp.types import ConfigError
from tests.texts import save_glue

INTEGERS = [getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64)]


def indices(values, num_classes=3, kind=None, first=0):
    column = pa.array(values, kind)
    return class_indices(column, num_classes, column="label", path="a file", first=first)


@given(
    labels=st.lists(st.integers(0, 2), max_size=9),
    kind=st.sampled_from([*INTEGERS, pa.float32(), pa.float64()]),
)
def test_whole_numbers_are_taken_in_any_type(labels, kind):
    found = indices(labels, kind=kind)
    assert found.dtype == np.int64 and found.tolist() == labels


def test_whole_numbers_are_taken_as_categories_too():
    column = pa.array([2, 0, 2]).dictionary_encode()
    assert class_indices(column, 3, column="label", path="a file", first=0).tolist() == [2, 0, 2]


@given(
    before=st.lists(st.integers(0, 2), max_size=5),
    odd=st.one_of(
        st.none(),
        st.integers(-(2**62), 2**62).filter(lambda x: not 0 <= x < 3),
        st.floats().filter(lambda x: x not in (0, 1, 2)),
    ),
    after=st.lists(st.integers(0, 2), max_size=5),
)
def test_any_other_number_is_refused_by_its_row(before, odd, after):
    values = [*before, odd, *after]
    if isinstance(odd, float):
        values = [None if value is None else float(value) for value in values]
    with pytest.raises(ConfigError) as raised:
        indices(values, first=1000)
    said = str(raised.value)
    assert f"row {1000 + len(before)} holds" in said and "column label of a file" in said
    assert "\n" not in said


HIDDEN = "unlabelled.*Set the split"
SET_COLUMN = "Set task.label_column, or write every class as its index"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 1, 0.5], f"row 2 holds 0.5, which is not an index. {SET_COLUMN}"),
        ([0.0, float("nan")], "row 1 holds nan"),
        ([float("inf")], "row 0 holds inf"),
        ([1, None], f"row 1 holds None. {SET_COLUMN}"),
        ([None, None], "row 0 holds None"),
        (["cat", "dog"], f"row 0 holds 'cat'. {SET_COLUMN}"),
        (["0", "1"], "row 0 holds '0'"),
        ([True, False], f"row 0 holds True. {SET_COLUMN}"),
        ([[1], [2]], r"row 0 holds \[1\]"),
        ([b"1"], "row 0 holds b'1'"),
        ([0, -1], f"row 1 holds -1, .*{HIDDEN}"),
        ([0.0, -1.0], f"row 1 holds -1.0, .*{HIDDEN}"),
        ([0, -2], f"row 1 holds -2, which is not an index. {SET_COLUMN}"),
        ([2, 3], "row 1 holds 3. Set task.num_classes; indices start at 0"),
        ([2, 2**64 - 1], "Set task.num_classes"),
    ],
)
def test_each_mistake_has_the_remedy_that_helps(values, expected):
    kind = pa.uint64() if values[-1] == 2**64 - 1 else None
    with pytest.raises(ConfigError, match=expected) as raised:
        indices(values, kind=kind)
    assert ("num_classes" in str(raised.value)) == ("num_classes" in expected)


def test_words_are_refused_as_categories_too():
    column = pa.array(["cat", "dog"]).dictionary_encode()
    with pytest.raises(ConfigError, match="row 0 holds 'cat'"):
        class_indices(column, 2, column="label", path="a file", first=0)


# Names


def write(path, labels, names=None, **columns):
    """Write a file as the hub's library does, classes named or not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    feature = datasets.ClassLabel(names=list(names)) if names else datasets.Value("int64")
    kinds = {name: datasets.Value("string") for name in columns}
    kinds = datasets.Features({**kinds, "label": feature})
    table = datasets.Dataset.from_dict({**columns, "label": labels}, features=kinds)
    pa.parquet.write_table(table.data.table, path)


def test_names_are_read_as_the_hubs_library_writes_them(tmp_path):
    path = tmp_path / "file.parquet"
    write(path, [0, 1], ("bad", "good"))
    assert class_names(path, "label") == ("bad", "good")
    assert class_names(path, "other") is None
    write(path, [0, 1])
    assert class_names(path, "label") is None


@pytest.mark.parametrize(
    "kept", ["", "{", "[]", '{"info": null}', '{"info": {"features": {"label": {"_type": "X"}}}}']
)
def test_metadata_of_another_kind_name_nothing(kept, tmp_path):
    table = pa.table({"label": [0, 1]}).replace_schema_metadata({"huggingface": kept})
    pa.parquet.write_table(table, tmp_path / "file.parquet")
    assert class_names(tmp_path / "file.parquet", "label") is None


def name_classes(path, column, names):
    """Return the classes of a file other names, as its metadata keep them."""
    table = pa.parquet.read_table(path)
    features = json.loads(table.schema.metadata[b"huggingface"])
    features["info"]["features"][column] = {"names": list(names), "_type": "ClassLabel"}
    kept = {**table.schema.metadata, b"huggingface": json.dumps(features).encode()}
    pa.parquet.write_table(table.replace_schema_metadata(kept), path)


@pytest.fixture
def named(cifar):
    """Loads the stand-in for CIFAR-10 with names for the classes of either file."""

    def load(train, test):
        for split, names in (("train", train), ("test", test)):
            if names is not None:
                name_classes(cifar.folder / f"{split}-00000-of-00001.parquet", "label", names)
        return cifar()

    load.folder = cifar.folder
    return load


OWN = IMAGES["cifar10"]
WORDS = tuple("abcdefghij")
COUNT = tuple("0123456789")


@pytest.mark.parametrize(
    ("train", "test"),
    [
        (OWN, OWN),
        (OWN, None),
        (WORDS, WORDS),
        (("plane", "car", *OWN[2:]), ("Plane", "CAR", *OWN[2:])),
        (COUNT, COUNT),
        (COUNT, WORDS),
        (WORDS, COUNT),
    ],
)
def test_classes_in_one_order_are_taken(train, test, named):
    assert len(named(train, test).train) == 40


@pytest.mark.parametrize(
    ("train", "test", "expected"),
    [
        (WORDS, WORDS[::-1], "class 0 of column label to be a, as .*train.* in .*test.* it is j"),
        (WORDS, (*WORDS[:8], "j", "i"), "class 8 of column label to be i"),
        (OWN, OWN[::-1], "class 0 .* to be airplane, as in task=cifar10.*test.* it is truck"),
        (OWN[::-1], OWN[::-1], "class 0 .* as in task=cifar10.*train"),
        (None, OWN[::-1], "class 0 .* as in task=cifar10.*test"),
        (OWN, ("cat", *OWN[1:]), "class 0 .* to be airplane, as in task=cifar10"),
        (OWN, ("plane", *OWN[1:]), "class 0 .* to be airplane, as .*train"),
        (COUNT, COUNT[::-1], "class 0 of column label to be 0, as .*train.* it is 9"),
        (COUNT[::-1], COUNT, "class 0 of column label to be 9, as .*train.* it is 0"),
        (COUNT[::-1], WORDS, "class 0 of column label to be 9, as .*train.* it is a"),
        (OWN[:9], OWN[:9], "Expected 10 classes in column label of .*train.*; it names 9"),
    ],
)
def test_classes_in_two_orders_are_refused(train, test, expected, named):
    with pytest.raises(ConfigError, match=expected):
        named(train, test)


@pytest.mark.parametrize("task", TEXTS)
def test_a_text_task_keeps_its_own_order(task, conf, tmp_path, tiny_models, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    settings = conf(task, dataset_size=20, max_length=16, tokenizer="tiny/bert")
    splits = ["train", *settings["test_splits"].values()]
    save_glue(tmp_path, task, dict.fromkeys(splits, 20))
    folder = tmp_path / settings["repo"] / settings["config"]
    settings |= {"data_root": str(tmp_path), "model_root": str(tiny_models)}
    metadata = {split: folder / f"{split}-00000-of-00001.parquet" for split in splits}
    fingerprint = glue(**settings).fingerprint
    for names in (TEXTS[task], [str(k) for k in range(len(TEXTS[task]))]):
        for path in metadata.values():
            name_classes(path, "label", names)
        assert glue(**settings).fingerprint == fingerprint
    for names in (TEXTS[task][::-1], [f"class {k}" for k in range(len(TEXTS[task]))]):
        name_classes(metadata[splits[-1]], "label", names)
        with pytest.raises(ConfigError, match=f"to be {TEXTS[task][0]}, as in task={task}"):
            glue(**settings)


def test_real_names_are_the_tasks_own(real_data_root):
    found = {
        task: class_names(next((real_data_root / where).glob("train-*.parquet")), "label")
        for task, where in (
            *((name, f"nyu-mll/glue/{name}") for name in TEXTS),
            ("cifar10", "uoft-cs/cifar10/plain_text"),
        )
        if (real_data_root / where).is_dir()
    }
    if not found:
        pytest.skip(f"neither GLUE nor CIFAR-10 in {real_data_root}")
    assert found == {task: {**TEXTS, **IMAGES}[task] for task in found}


# Through the loaders


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([0.5, 1.5] * 5, "row 0 holds 0.5"),
        ([None] * 10, "row 0 holds None"),
        (["cat"] * 10, "row 0 holds 'cat'"),
        ([*range(9), -1], "row 9 holds -1, .*unlabelled"),
    ],
)
@pytest.mark.parametrize("split", ["train", "test"])
def test_images_with_no_such_labels_are_refused(labels, expected, split, cifar):
    path = cifar.folder / f"{split}-00000-of-00001.parquet"
    table = pa.parquet.read_table(path).slice(0, 10)
    pa.parquet.write_table(table.set_column(1, "label", pa.array(labels)), path)
    with pytest.raises(ConfigError, match=f"column label of {path}; {expected}"):
        cifar()


def test_rows_are_counted_in_the_file_that_holds_them(conf, hub_folder):
    from dpexp.data.images import hub_images

    settings = conf("cifar10", dataset_size=30)
    root, _ = hub_folder(settings, {"train": 30, "test": 5}, shards=3)
    path = f"{root}/uoft-cs/cifar10/plain_text/train-00001-of-00003.parquet"
    table = pa.parquet.read_table(path)
    labels = table["label"].to_pylist()
    labels[4] = 10
    pa.parquet.write_table(table.set_column(1, "label", pa.array(labels)), path)
    with pytest.raises(ConfigError, match=f"{path}; row 4 holds 10"):
        hub_images(**{**settings, "data_root": root})


# Test sets that tell nothing


def examples(targets):
    return Examples(torch.zeros(len(targets), 1, 2, 2), torch.tensor(targets, dtype=torch.long))


@pytest.mark.parametrize("also", [False, True])
def test_a_test_set_of_one_class_does_not_pass_without_a_word(also):
    train, odd, good = examples([0, 1, 2]), examples([1, 1, 1]), examples([0, 1])
    tests = {"test": good, "also": {"other": odd}} if also else {"test": odd}
    with pytest.warns(UserWarning, match="all 3 test examples are of class 1"):
        assemble("x", train, **tests, num_classes=3, delta=1e-5, dataset_size=3)


def test_which_classes_are_private_is_not_told():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one, two = examples([1, 1, 1]), examples([0, 1])
        assemble("x", one, two, num_classes=3, delta=1e-5, dataset_size=3)


def test_an_empty_test_set_is_refused():
    with pytest.raises(ConfigError, match="at least one example for test_accuracy of x"):
        assemble("x", examples([0]), examples([]), num_classes=3, delta=1e-5, dataset_size=1)
