"""GLUE from parquet files laid out like the hub: tokenised once, kept by content."""

import os
import time

import datasets
import pytest
import torch

from dpexp.data.glue import glue
from dpexp.types import ConfigError, MissingData
from tests.texts import SPECIAL, WORDS, real_model, save_glue, save_model, save_tokenizer

COUNTS = {
    "sst2": {"train": 30, "validation": 10},
    "qnli": {"train": 30, "validation": 10},
    "qqp": {"train": 30, "validation": 10},
    "mnli": {"train": 30, "validation_matched": 10, "validation_mismatched": 14},
}


@pytest.fixture(autouse=True)
def no_hub_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def saved(conf, tmp_path, tiny_models):
    """Loads a task from files written once, with any settings."""

    def save(name, counts=None):
        data = tmp_path / "data"
        written = save_glue(data, name, COUNTS[name] if counts is None else counts)
        fixed = {"data_root": str(data), "model_root": str(tiny_models), "tokenizer": "tiny/bert"}

        def load(**changes):
            return glue(**conf(name, **{"dataset_size": 30, "max_length": 16, **fixed, **changes}))

        load.written, load.folder = written, data / "nyu-mll" / "glue" / name
        return load

    return save


def rewrite(load, split, rows):
    datasets.Dataset.from_dict(rows).to_parquet(load.folder / f"{split}-00000-of-00001.parquet")


def decoded_words(examples, architecture="bert"):
    """Read the tokens back as words, one list a text, special ones included."""
    words = [*SPECIAL[architecture].values(), *WORDS]
    ids, lengths, _ = examples.encoded
    return [[words[i] for i in row[:n].tolist()] for row, n in zip(ids, lengths, strict=True)]


@pytest.mark.parametrize("name", COUNTS)
def test_every_task_loads_word_for_word(name, saved, conf):
    load, settings = saved(name), conf(name)
    task = load()
    tests = {"test_accuracy": task.test, **task.also}
    assert list(tests) == list(settings["test_splits"])
    parts = {"train": task.train}
    parts |= {split: tests[metric] for metric, split in settings["test_splits"].items()}
    for split, examples in parts.items():
        rows = load.written[split]
        columns = [rows[column] for column in settings["text_columns"]]
        for words, *pieces in zip(decoded_words(examples), *columns, strict=True):
            expected = ["[CLS]"]
            for piece in pieces:
                expected += [*piece.split(), "[SEP]"]
            assert words == expected
        assert examples.targets.tolist() == rows["label"]
        has_second = examples.encoded.seconds < examples.encoded.lengths
        assert has_second.all() if len(columns) == 2 else not has_second.any()
    assert (task.name, task.dataset_size, task.metric) == (name, 30, "test_accuracy")
    assert task.delta == settings["delta"] and task.num_classes == settings["num_classes"]


def test_shards_are_read_in_order(saved):
    load = saved("sst2")
    whole = load().fingerprint
    os.remove(load.folder / "train-00000-of-00001.parquet")
    rows = datasets.Dataset.from_dict(load.written["train"])
    for index in range(3):
        part = rows.shard(3, index, contiguous=True)
        part.to_parquet(load.folder / f"train-{index:05d}-of-00003.parquet")
    assert load().fingerprint == whole


# The cache


def entries(own_cache):
    found = (own_cache / "decoded").glob("*")
    return {path.name: path.stat().st_mtime_ns for path in found}


def test_a_second_load_reads_what_the_first_kept(saved, own_cache):
    load = saved("mnli")
    first = load()
    kept = entries(own_cache)
    assert len(kept) == 3  # a training and two test splits
    again = load()
    assert again.fingerprint == first.fingerprint
    assert entries(own_cache) == kept  # what is tokenised is written
    for path in (own_cache / "decoded").iterdir():
        path.unlink()
    assert load().fingerprint == first.fingerprint
    later = entries(own_cache)
    assert later.keys() == kept.keys() and all(later[name] > kept[name] for name in kept)


def test_a_changed_file_is_tokenised_anew_and_it_alone(saved, own_cache):
    load = saved("sst2")
    before, kept = load(), entries(own_cache)
    rows = load.written["train"]
    rows["sentence"][3] = "good good good"
    rewrite(load, "train", rows)
    after = load()
    assert after.fingerprint != before.fingerprint
    assert decoded_words(after.train)[3] == ["[CLS]", *["good"] * 3, "[SEP]"]
    later = entries(own_cache)
    assert len(later) == 3 and kept.items() <= later.items()


def test_another_tokenizer_column_or_length_is_another_entry(saved, own_cache, tmp_path):
    load = saved("qnli")
    save_model(tmp_path / "models", "bert")
    seen = {load().fingerprint}
    for changes in (
        {"tokenizer": "tiny/roberta"},
        {"max_length": 9},
        {"text_columns": ["sentence", "question"]},
        {"text_columns": ["sentence"]},
    ):
        count = len(entries(own_cache))
        seen.add(load(**changes).fingerprint)
        assert len(entries(own_cache)) == count + 2
    elsewhere = {"model_root": str(tmp_path / "models")}
    count = len(entries(own_cache))
    load(**elsewhere)
    assert len(entries(own_cache)) == count  # the same bytes in another place
    words = "very not was is fine dull bad good plot film the a".split()
    save_tokenizer(tmp_path / "models" / "tiny" / "bert", "bert", words)
    seen.add(load(**elsewhere).fingerprint)
    assert len(entries(own_cache)) == count + 2
    assert len(seen) == 6


def test_a_subset_is_drawn_from_its_own_seed(saved):
    load = saved("sst2")
    first, again = (load(train_size=12, dataset_size=12) for _ in range(2))
    assert len(first.train) == 12 and first.fingerprint == again.fingerprint
    other = load(train_size=12, dataset_size=12, subset_seed=1)
    assert other.fingerprint != first.fingerprint
    whole = decoded_words(load().train)
    assert all(text in whole for text in decoded_words(first.train))
    assert torch.equal(first.test.encoded.ids, other.test.encoded.ids)


# Mistakes


def test_nothing_is_printed_while_files_are_read(saved, capfd):
    load = saved("sst2")
    capfd.readouterr()
    load()
    assert capfd.readouterr() == ("", "")


def the_line(load, kind=ConfigError, **changes):
    began = time.monotonic()
    with pytest.raises(kind) as raised:
        load(**changes)
    assert time.monotonic() - began < 10
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("offline", [True, False], ids=["offline", "nobody answers"])
def test_missing_data_is_one_line(offline, saved, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    said = the_line(saved("mnli"), MissingData, data_root=str(tmp_path / "none"))
    assert "train-00000-of-00001.parquet and validation_matched-00000-of-00001.parquet" in said
    assert str(tmp_path / "none" / "nyu-mll" / "glue" / "mnli") in said and "data_root" in said
    assert ("HF_HUB_OFFLINE is set" if offline else "cannot be reached") in said


@pytest.mark.parametrize("offline", [True, False], ids=["offline", "nobody answers"])
def test_a_missing_model_is_one_line(offline, saved, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    said = the_line(saved("sst2"), MissingData, model_root=str(tmp_path / "none"))
    assert str(tmp_path / "none" / "tiny" / "bert") in said and "model_root" in said


def test_a_missing_column_is_answered_with_those_there_are(saved):
    said = the_line(saved("sst2"), text_columns=["text"])
    assert "Expected columns text, label" in said and "sentence, label, idx" in said
    assert "label2" in the_line(saved("sst2"), label_column="label2")


@pytest.mark.parametrize("split", ["train", "validation"])
def test_hidden_labels_are_refused_in_one_line(split, saved):
    """GLUE's own test split has -1 for every label."""
    load = saved("sst2")
    rows = load.written[split]
    rows["label"] = [-1] * len(rows["label"])
    rewrite(load, split, rows)
    said = the_line(load)
    assert "-1" in said and "sst2" in said


def test_more_classes_than_declared_are_refused(saved):
    assert "task.num_classes" in the_line(saved("mnli"), num_classes=2)


@pytest.mark.parametrize(
    ("column", "values"),
    [("label", [None] * 30), ("label", ["good"] * 30), ("sentence", [None] * 30)],
    ids=["no labels", "words for labels", "no texts"],
)
def test_a_column_of_the_wrong_kind_is_one_line(column, values, saved):
    load = saved("sst2")
    rewrite(load, "train", {**load.written["train"], column: values})
    said = the_line(load)
    assert column in said and "train-00000-of-00001.parquet" in said


@pytest.mark.parametrize("damage", ["truncated", "garbage", "empty"])
def test_a_corrupt_file_is_named(damage, saved):
    load = saved("sst2")
    path = load.folder / "train-00000-of-00001.parquet"
    whole = path.read_bytes()
    path.write_bytes({"truncated": whole[:-400], "garbage": b"x" * 999, "empty": b""}[damage])
    assert str(path) in the_line(load)


def test_a_model_without_a_tokenizer_is_refused_before_any_file_is_read(saved, tmp_path):
    said = the_line(saved("sst2"), tokenizer=None, data_root=str(tmp_path / "none"))
    assert "Set model to minilm" in said


# The real one


@pytest.mark.long
def test_real_sst2_is_whole_with_minilms_own_ids(conf, real_data_root):
    if not (real_data_root / "nyu-mll" / "glue" / "sst2").is_dir():
        pytest.skip(f"no nyu-mll/glue in {real_data_root}")
    repo = "sentence-transformers/all-MiniLM-L6-v2"
    roots = {"data_root": str(real_data_root), "model_root": real_model(repo)}
    settings = conf("sst2", tokenizer=repo, **roots)
    task = glue(**settings)
    assert len(task.train) == 67_349 and len(task.test) == 872
    ids, lengths, seconds = task.train.encoded
    assert torch.equal(lengths, seconds) and int(lengths.max()) <= 128
    # "hide new secretions from the parental units", the hub's first; copies differ in their order.
    known = torch.tensor([101, 5342, 2047, 3595, 8496, 2013, 1996, 18643, 3197, 102])
    is_same = (ids[:, : len(known)] == known).all(1) & (lengths == len(known))
    assert is_same.sum() == 1 and task.train.targets[is_same].tolist() == [0]
    # "it 's a charming and often affecting journey . "
    ids, lengths, _ = task.test.encoded
    known = [101, 2009, 1005, 1055, 1037, 11951, 1998, 2411, 12473, 4990, 1012, 102]
    assert ids[0, : lengths[0]].tolist() == known
    assert task.train.targets.bincount().tolist() == [29_780, 37_569]
    assert task.test.targets.bincount().tolist() == [428, 444]
