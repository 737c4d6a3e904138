"""Nothing lies between a file and a run: what is there is read, and kept in one place."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

from dpexp.data import cache
from dpexp.data.glue import glue
from dpexp.data.hub import parquet_files
from dpexp.data.images import hub_images
from dpexp.data.parquet import batches, count, texts
from dpexp.records.caches import cache_dir
from dpexp.types import ConfigError, MissingData
from tests.data.conftest import ROOT
from tests.marks import some_long
from tests.texts import save_glue

SECRET = "film plot dull"


@pytest.fixture
def sst2(conf, tmp_path, tiny_models, monkeypatch):
    """Loads a few sentences from a file that can be written anew."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    save_glue(tmp_path / "data", "sst2", {"train": 20, "validation": 8})
    where = {"data_root": str(tmp_path / "data"), "model_root": str(tiny_models)}

    def load(**changes):
        settings = {"dataset_size": 20, "max_length": 16, "tokenizer": "tiny/bert", **where}
        return glue(**conf("sst2", **{**settings, **changes}))

    load.where = where
    load.folder = tmp_path / "data" / "nyu-mll" / "glue" / "sst2"
    load.train = load.folder / "train-00000-of-00001.parquet"
    return load


def write_texts(path, sentences):
    table = pa.table({"sentence": sentences, "label": [0, 1] * (len(sentences) // 2)})
    pa.parquet.write_table(table, path)


def test_a_file_replaced_under_an_old_date_is_what_is_read(sst2):
    """Archives give their files the dates they were packed at."""
    fingerprints = set()
    for sentence in ("good film", "dull plot", "bad film"):
        write_texts(sst2.train, [sentence] * 20)
        os.utime(sst2.train, (10**9, 10**9))
        first = sst2()
        fingerprints.add(first.fingerprint)
        words = {tuple(row.tolist()) for row in first.train.encoded.ids}
        assert len(words) == 1
        for entry in (cache_dir() / "decoded").iterdir():
            entry.unlink()
        assert sst2().fingerprint == first.fingerprint
    assert len(fingerprints) == 3


def test_an_image_file_replaced_under_an_old_date_is_what_is_read(cifar, conf, hub_folder):
    path = cifar.folder / "train-00000-of-00001.parquet"
    seen = set()
    for seed in range(3):
        hub_folder(conf("cifar10"), {"train": 40}, seed=seed)
        os.utime(path, (10**9, 10**9))
        seen.add(cifar().fingerprint)
    assert len(seen) == 3


def test_a_file_replaced_while_it_is_read_is_not_kept_under_another_ones_name(tmp_path, own_cache):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def decode():
        path.write_bytes(b"new")
        return (torch.zeros(1),)

    with pytest.raises(ConfigError, match=f"Expected {path} not to change"):
        cache.decoded([path], "recipe", decode)
    assert not own_cache.exists()


@pytest.mark.parametrize("change", ["directory", "dangling"])
def test_a_file_that_cannot_be_read_is_one_line(change, cifar):
    path = cifar.folder / "train-00000-of-00001.parquet"
    path.unlink()
    path.mkdir() if change == "directory" else path.symlink_to("nowhere")
    with pytest.raises(ConfigError, match=f"at {path}"):
        cifar()


SCRIPT = """
import json, sys
from dpexp.data.glue import glue
from dpexp.data.images import hub_images

texts, images = json.load(sys.stdin)
print(glue(**texts).fingerprint, hub_images(**images).fingerprint)
"""


@pytest.mark.parametrize("home", some_long(["home", "/dev/null/home"], ["/dev/null/home"]))
def test_no_home_is_needed_and_no_private_text_is_left_in_one(
    home, sst2, cifar, conf, tmp_path, own_cache
):
    write_texts(sst2.train, [SECRET] * 20)
    text = {"dataset_size": 20, "max_length": 16, "tokenizer": "tiny/bert", **sst2.where}
    image = {"dataset_size": 40, "data_root": str(tmp_path / "data")}
    home = str(tmp_path / home)  # an absolute one stays as it is
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps([conf("sst2", **text), conf("cifar10", **image)]),
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "HOME": home,
            "HF_HOME": f"{home}/hub",
            "TMPDIR": str(tmp_path),
            "DPEXP_CACHE": str(own_cache),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [sst2().fingerprint, cifar().fingerprint]
    others = [path for path in tmp_path.rglob("*") if path.is_file() and path != sst2.train]
    assert [path for path in others if SECRET.encode() in path.read_bytes()] == []
    kept = [path for path in others if own_cache in path.parents]
    assert len(kept) == 4 and {path.stat().st_mode & 0o777 for path in kept} == {0o600}


def test_what_is_kept_is_for_its_owner_alone(cifar, own_cache):
    folder = own_cache / "decoded"
    folder.mkdir(parents=True, mode=0o755)  # as former code left it
    before = os.umask(0)
    try:
        cifar()
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_whoever_has_no_home_has_no_cache(monkeypatch, cifar, caplog):
    def nobody():
        raise RuntimeError("Could not determine home directory.")

    for name in ("DPEXP_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", nobody)
    assert not cache_dir().exists()
    assert len(cifar().train) == 40
    assert "Cannot cache decoded examples" in caplog.text and "DPEXP_CACHE" in caplog.text
    assert "Cannot read" not in caplog.text


# Rows


@pytest.mark.parametrize("folder", ["label=1", "[x]*?", ".hidden", "_hidden", "a%20b", "ü", "s3:"])
def test_no_name_of_a_folder_means_anything(folder, tmp_path):
    path = tmp_path / folder / "image=3" / "_train.parquet"
    path.parent.mkdir(parents=True)
    pa.parquet.write_table(pa.table({"label": [7, 8], "image": ["a", "b"]}), path)
    assert count(path, ["label", "image"], "") == 2
    ((first, (labels, images)),) = batches(path, ["label", "image"])
    assert (first, labels.to_pylist(), images.to_pylist()) == (0, [7, 8], ["a", "b"])


def test_columns_come_as_asked_for_and_rows_are_counted_through_the_file(tmp_path):
    path = tmp_path / "file.parquet"
    table = pa.table({"b": list(range(2500)), "a": [str(k) for k in range(2500)]})
    pa.parquet.write_table(table, path, row_group_size=700)
    seen = 0
    for first, (a, b) in batches(path, ["a", "b"]):
        assert first == seen and b[0].as_py() == first
        assert texts(a, "a", path, first, "")[0] == str(first)
        seen += len(a)
    assert seen == 2500


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    path = tmp_path / "file.parquet"
    both = pa.Table.from_arrays([pa.array([0]), pa.array([1])], ["label", "label"])
    pa.parquet.write_table(both, path)
    with pytest.raises(ConfigError, match="each once; got label, label. Set it"):
        count(path, ["label"], "Set it")


@pytest.mark.parametrize(
    ("values", "row", "value"),
    [
        (["a", None], 6, "None"),
        ([1, 2], 5, "1"),
        ([b"a"], 5, "b'a'"),
        ([["a"]], 5, r"\['a'\]"),
        ([None, None], 5, "None"),
    ],
)
def test_what_is_no_text_is_named_by_its_row(values, row, value):
    with pytest.raises(ConfigError, match=f"column c of file; row {row} holds {value}. Set it"):
        texts(pa.array(values), "c", "file", 5, "Set it")


def test_bytes_that_are_no_text_are_named_by_their_row():
    column = pa.array([b"a", b"\xff\xfe"]).view(pa.string())
    with pytest.raises(ConfigError, match=r"row 6 holds b'\\xff\\xfe'"):
        texts(column, "c", "file", 5, "")


def test_a_page_with_a_wrong_sum_is_no_data(tmp_path):
    path = tmp_path / "file.parquet"
    table = pa.table({"label": list(range(1000))})
    options = {"use_dictionary": False, "compression": "none", "write_page_checksum": True}
    pa.parquet.write_table(table, path, **options)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"parquet file at {path}; it is corrupt"):
        list(batches(path, ["label"]))


# Shards


HASH, OTHER = "-b42a775f407cee45", "-0123456789abcdef"


def shards(folder, *names):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        pa.parquet.write_table(pa.table({"label": [0]}), folder / f"{name}.parquet")
    return folder


def find(tmp_path, split="train"):
    paths = parquet_files(tmp_path, "local", "config", [split])[split]
    return [path.name.removesuffix(".parquet") for path in paths]


@pytest.mark.parametrize(
    "names",
    [
        ["train-00000-of-00001"],
        ["train-00000-of-00001" + HASH],
        ["train-00000-of-00002" + HASH, "train-00001-of-00002" + OTHER],
        ["train-00000-of-00002" + OTHER, "train-00001-of-00002" + HASH],
        [f"train-{k:05d}-of-00012" for k in range(12)],
    ],
)
def test_shards_are_found_with_a_hash_or_without(names, tmp_path):
    shards(
        tmp_path / "local" / "config", *names, "test-00000-of-00001", "train_extra-00000-of-00001"
    )
    assert find(tmp_path) == names


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["00000-of-00003", "00002-of-00003"], "lacks train-00001-of-00003.parquet"),
        (["00000-of-00003" + HASH, "00002-of-00003" + HASH], "lacks train-00001-of-00003.parquet"),
        (["00001-of-00002"], "lacks train-00000-of-00002.parquet"),
        (["00000-of-00001", "00000-of-00001" + HASH], "mixes two versions: train-00000-of-00001"),
        (["00000-of-00001", "00000-of-00002", "00001-of-00002"], "mixes two versions"),
        (["00000-of-00001" + HASH, "00000-of-00001" + OTHER], "mixes two versions"),
        (["00000-of-00000"], "Expected 0 shards"),
        (["00005-of-00002", "00000-of-00002", "00001-of-00002"], "mixes two versions"),
    ],
)
def test_some_of_the_shards_are_not_taken_for_all(names, expected, tmp_path):
    shards(tmp_path / "local" / "config", *(f"train-{name}" for name in names))
    with pytest.raises(ConfigError, match=expected) as raised:
        find(tmp_path)
    assert str(tmp_path / "local" / "config") in str(raised.value)


def test_files_of_other_names_are_told(tmp_path):
    shards(tmp_path / "local" / "config", "train", "validation-0-of-1")
    with pytest.raises(MissingData, match="it holds train.parquet, validation-0-of-1.parquet"):
        find(tmp_path)


def test_a_split_with_signs_of_a_pattern_is_a_name(tmp_path):
    shards(tmp_path / "local" / "config", "trai[n]-00000-of-00001", "train-00000-of-00001")
    assert find(tmp_path, "trai[n]") == ["trai[n]-00000-of-00001"]


def test_a_hub_cache_that_cannot_be_written_is_replaced_by_ours(
    conf, hub_folder, tmp_path, own_cache, monkeypatch
):
    settings = conf("mnist", dataset_size=12)
    root, written = hub_folder(settings, {"train": 12, "test": 4})
    repo = own_cache / "hub" / "datasets--ylecun--mnist"
    commit = "0" * 40
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    (repo / "snapshots" / commit).mkdir(parents=True)
    (tmp_path / "data" / "ylecun" / "mnist" / "mnist").rename(repo / "snapshots" / commit / "mnist")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", "/dev/null/hub")
    task = hub_images(**{**settings, "data_root": root})
    assert np.array_equal(task.train.inputs.numpy(), written["train"][0])
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(MissingData):  # one that can be written is the only one
        hub_images(**{**settings, "data_root": root})
