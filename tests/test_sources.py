"""A run is its config and the bytes it was made of: a look-up compares them, or says so."""

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
from datetime import date
from pathlib import Path

import huggingface_hub
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from dpexp import cli, records
from dpexp.cli import artifact, fingerprints, lookup, named_folders
from dpexp.types import ConfigError
from tests.runs import execute

IMAGES = ["method=dpsgd", "task=cifar10", "profile=embedded", "model=linear", "device=cpu"]
IMAGES += ["task.dataset_size=40", "batch_size=20", "epochs=1", "privacy.delta=1e-3"]


def write_images(root, seed):
    """Write a tiny stand-in for CIFAR-10 as the hub lays it out."""
    rng = np.random.default_rng(seed)
    folder = Path(root) / "uoft-cs" / "cifar10" / "plain_text"
    folder.mkdir(parents=True)
    for split, count in (("train", 40), ("test", 10)):
        pixels = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        encoded = []
        for one in pixels:
            stream = io.BytesIO()
            Image.fromarray(one).save(stream, "png")
            encoded.append({"bytes": stream.getvalue(), "path": None})
        table = pyarrow.table({"img": encoded, "label": rng.permutation(np.arange(count) % 10)})
        pyarrow.parquet.write_table(table, folder / f"{split}-00000-of-00001.parquet")
    return str(root)


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    root = tmp_path_factory.mktemp("roots")
    return {name: write_images(root / name, seed) for seed, name in enumerate(("a", "b"))}


@pytest.fixture(scope="module")
def done(roots, tmp_path_factory):
    """Return the results folder of a run on folder a."""
    results = tmp_path_factory.mktemp("results")
    execute(results, *IMAGES, f"data_root={roots['a']}")
    return results


@pytest.fixture(autouse=True)
def asked_anew():
    """Another process would ask again."""
    lookup._of_data.cache_clear()


def looked_up(results, root, *words):
    return lookup.done_before(
        cli.compose([*IMAGES, *words, f"data_root={root}", f"results={results}"])
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], r"done: test_accuracy \S+, eps [\d.]+ of 8 at delta 0.0001, \S+ s; in "),
        (
            ["sampling=shuffle"],
            r"\S+ s \(shuffled batches: epsilon is paper-compatible, not a guar",
        ),
        (["noise=false", "eps=null"], r"no epsilon, \S+ s \(no noise: no privacy\); in "),
    ],
)
def test_what_came_out_says_what_its_epsilon_is_worth(words, said, tmp_path):
    more = ["method=dpsgd", "task=digits", "profile=embedded", "model=linear", "epochs=0.2"]
    directory = cli.execute(cli.compose([*more, "eps=8", *words, f"results={tmp_path}"]))
    line = lookup.outcome(directory)
    assert re.search(said, line) and line.endswith(str(directory)) and "\n" not in line


def test_a_committed_record_is_said_to_be_the_repositorys(tmp_path):
    folder = tmp_path / "runs" / "0123456789ab"
    folder.mkdir(parents=True)
    (folder / "result.json").write_text("{}")
    assert lookup._whence(folder).startswith(f"the record was made on {date.today()} at ")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "a record"]):
        subprocess.run([*git, *words], check=True)
    said = f"the record is the repository's, committed on {date.today()}: {folder}"
    assert lookup._whence(folder) == said


def test_the_same_bytes_are_done_before_wherever_they_lie(done, roots, tmp_path):
    moved = shutil.copytree(roots["a"], tmp_path / "moved")
    for root in (roots["a"], moved):
        line = looked_up(done, root)
        assert line.startswith("done before: test_accuracy") and "Note" not in line


def test_other_bytes_are_refused_in_one_line_that_says_what_differs(done, roots):
    with pytest.raises(ConfigError) as caught:
        looked_up(done, roots["b"])
    line = str(caught.value)
    assert "the data of cifar10 were" in line and "results=FOLDER" in line and "\n" not in line


def test_other_bytes_of_the_same_name_size_and_time_are_seen(done, roots, tmp_path):
    folder = shutil.copytree(roots["a"], tmp_path / "swapped")
    assert "Note" not in looked_up(done, folder)
    for path in Path(folder).rglob("test-*.parquet"):
        stat = path.stat()
        other = Path(roots["b"]) / path.relative_to(folder)
        path.write_bytes(other.read_bytes())
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    lookup._of_data.cache_clear()
    with pytest.raises(ConfigError, match="were"):
        looked_up(done, folder)


@pytest.mark.parametrize(
    "word", ["data_root", "task.data_root", "model_root", "+task.model_root", "DPEXP_DATA_ROOT"]
)
def test_a_folder_that_is_named_and_is_not_there_is_refused(
    word, done, roots, tmp_path, monkeypatch
):
    """Whether a finished run is looked up or a new one begins, and whatever it would have read."""
    (tmp_path / "file").write_text("")
    for folder, said in ((tmp_path / "nope", "no such folder"), (tmp_path / "file", "a file")):
        words = [f"{word}={folder}"]
        if word == "DPEXP_DATA_ROOT":
            monkeypatch.setenv(word, str(folder))
            words = []
        config = cli.compose([*IMAGES, *words, f"results={done}"])
        for call in (lookup.done_before, cli.execute):
            with pytest.raises(ConfigError) as caught:
                call(config)
            line = str(caught.value)
            assert f"={folder} ({said}). Set " in line and "\n" not in line


def test_a_folder_of_the_default_name_need_not_be_there(monkeypatch, tmp_path):
    monkeypatch.delenv("DPEXP_DATA_ROOT", raising=False)
    monkeypatch.delenv("DPEXP_MODEL_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    config = cli.compose(["method=dpsgd", "task=digits", "profile=embedded"])
    assert {name: config[name] for name in named_folders.DEFAULTS} == named_folders.DEFAULTS
    named_folders.require_named(config)


def test_where_there_are_no_data_the_record_is_shown_and_that_is_said(done, tmp_path):
    line = looked_up(done, tmp_path)
    assert line.startswith("done before: ") and "\n" not in line
    assert "Note: the data of cifar10 were not compared (Expected " in line


def test_data_that_cannot_be_read_are_said_not_to_be_compared(done, roots, tmp_path):
    folder = shutil.copytree(roots["a"], tmp_path / "torn")
    for path in Path(folder).rglob("*.parquet"):
        path.write_bytes(path.read_bytes()[:-100])
    assert "were not compared" in looked_up(done, folder)


def test_nothing_is_fetched_to_look_a_run_up(done, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("urllib.request.urlopen", lambda *a, **k: asked.append(a))
    assert "not compared" in looked_up(done, tmp_path)
    assert not asked and not huggingface_hub.constants.HF_HUB_OFFLINE


# Pretrained weights


@pytest.fixture
def weights(tmp_path):
    """Return a config of a pretrained model, its folder and what its record would say."""
    folder = tmp_path / "models" / "owner" / "name"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(1000))
    (folder / "pytorch_model.bin").write_bytes(b"not read where there are safetensors")
    node = {"_target_": fingerprints.PRETRAINED, "repo": "owner/name"}
    config = {"model": node | {"model_root": str(tmp_path / "models")}}
    return config, folder, {"pretrained_sha256": fingerprints.pretrained(config)}


def test_pretrained_weights_are_named_by_the_hash_of_their_files(weights):
    config, folder, said = weights
    files = said["pretrained_sha256"]["owner/name"]
    assert list(files) == ["config.json", "model.safetensors"]
    assert files["model.safetensors"] == hashlib.sha256(bytes(1000)).hexdigest()
    assert fingerprints.pretrained({"model": {"_target_": "dpexp.models.linear.Linear"}}) == {}
    (folder / "model.safetensors").unlink()
    assert "pytorch_model.bin" in fingerprints.pretrained(config)["owner/name"]


def test_other_weights_are_named_by_file(weights):
    config, folder, said = weights
    assert lookup._compare_pretrained(config, said) == ("", "")
    (folder / "model.safetensors").write_bytes(b"\1" + bytes(999))
    other, unknown = lookup._compare_pretrained(config, said)
    assert other == "here are others: model.safetensors of owner/name" and not unknown


def test_a_file_that_is_gone_or_new_is_another(weights):
    config, folder, said = weights
    (folder / "model.safetensors").unlink()
    assert "pytorch_model.bin" in lookup._compare_pretrained(config, said)[0]


def test_records_without_hashes_and_models_that_are_not_here_say_so(weights):
    config, folder, said = weights
    assert "the record is older" in lookup._compare_pretrained(config, {})[1]
    shutil.rmtree(folder)
    assert "were not compared" in lookup._compare_pretrained(config, said)[1]


# Tokenizers


@pytest.fixture
def words(weights):
    """Return a config whose prompts alone read a tokenizer, its folder and what its record says."""
    config, folder, _ = weights
    (folder / "tokenizer.json").write_text('{"good": 1, "bad": 2}')
    (folder / "added_tokens.json").write_text("{}")
    node = {"tokenizer": "owner/name", "model_root": config["model"]["model_root"]}
    config |= {"prompts": node, "task": {"name": "digits", "tokenizer": None}}
    return config, folder, {"pretrained_sha256": fingerprints.pretrained(config)}


def test_a_tokenizer_is_named_by_the_hash_of_its_files(words):
    config, folder, said = words
    files = said["pretrained_sha256"]["owner/name"]
    assert files["tokenizer.json"] == fingerprints._sha256(folder / "tokenizer.json")
    assert {"added_tokens.json", "model.safetensors"} <= {*files}
    alone = {"model": {"_target_": "dpexp.models.linear.Linear"}, "task": config["prompts"]}
    assert [*fingerprints.pretrained(alone)["owner/name"]] == [
        *("config.json", "tokenizer.json", "added_tokens.json")
    ]


@pytest.mark.parametrize("group", ["prompts", "task", "public"])
def test_another_tokenizer_of_the_same_size_and_time_is_another(words, group):
    config, folder, said = words
    config = {"model": config["model"], group: config["prompts"]}
    assert lookup._compare_pretrained(config, said) == ("", "")
    file = folder / "tokenizer.json"
    stat, before = file.stat(), file.read_text()
    file.write_text('{"bad": 1, "good": 2}')
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert file.stat().st_size == stat.st_size
    other = lookup._compare_pretrained(config, said)
    assert other == ("here are others: tokenizer.json of owner/name", "")
    file.write_text(before)
    (folder / "added_tokens.json").unlink()
    (folder / "merges.txt").write_text("b a")
    said_now = lookup._compare_pretrained(config, said)[0]
    assert "merges.txt of owner/name" in said_now and "added_tokens.json of owner/name" in said_now


def test_a_record_that_names_weights_and_no_tokenizer_says_so_and_weights_are_compared(words):
    config, folder, said = words
    files = said["pretrained_sha256"]["owner/name"]
    older = {name: files[name] for name in ("config.json", "model.safetensors")}
    older = {"pretrained_sha256": {"owner/name": older}}
    other, unknown = lookup._compare_pretrained(config, older)
    assert other == ""
    assert unknown == "the record is older and does not say which tokenizer of owner/name it read"
    (folder / "model.safetensors").write_bytes(b"\1" + bytes(999))
    other, _ = lookup._compare_pretrained(config, older)
    assert other == "here are others: model.safetensors of owner/name"
    unknown = lookup._compare_pretrained(config, {})[1]
    assert "weights of owner/name" in unknown and "tokenizer of owner/name" in unknown


# Words of a record that anyone may have written

EVIL = "\x1b]0;owned\x07\x1b[2J\nerror: pass: epsilon 0.1"


def rewritten(done, roots, tmp_path, **change):
    """Return a results folder whose one record says something else in result.json."""
    results = shutil.copytree(done, tmp_path / "results")
    (path,) = Path(results).rglob("result.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    return results


@pytest.mark.parametrize(
    "change", [{"device": EVIL}, {"metric": EVIL, EVIL: 99.0}], ids=["device", "metric"]
)
def test_a_look_up_prints_no_word_of_a_record_raw(change, done, roots, tmp_path):
    line = looked_up(rewritten(done, roots, tmp_path, **change), roots["a"])
    assert line.startswith("done before: ") and line.isprintable() and "owned" in line


def test_a_fingerprint_is_not_printed_raw_either(done, roots, tmp_path):
    results = rewritten(done, roots, tmp_path, data_fingerprint=EVIL)
    with pytest.raises(ConfigError) as caught:
        looked_up(results, roots["a"])
    assert str(caught.value).isprintable() and "owned" in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"test_accuracy": [99.0]},
        {"test_accuracy": "99"},
        {"test_accuracy": True},
        {"eps": "x"},
        {"eps": EVIL},
        {"metric": ["test_accuracy"]},
        {"metric": "versions"},
        {"device": {"a": 1}},
        {"data_fingerprint": 3},
        {"pretrained_sha256": [1]},
        {"pretrained_sha256": {"owner/name": 1}},
    ],
    ids=str,
)
def test_what_is_of_another_kind_is_one_line_and_no_traceback(change, done, roots, tmp_path):
    results = rewritten(done, roots, tmp_path, **change)
    with pytest.raises(records.RecordError) as caught:
        looked_up(results, roots["a"])
    line = str(caught.value)
    assert line.isprintable() and f"result.json {next(iter(change))}" in line.replace(
        "result.json versions", "result.json metric"
    )


# Tables


class One:
    def __init__(self, config, result):
        self.job = type("Job", (), {"config": config, "run_id": records.run_id(config)})
        self.result = result


def test_a_table_says_which_of_its_runs_are_of_other_bytes_and_mixes_none(done, roots, capsys):
    config = cli.compose([*IMAGES, f"data_root={roots['b']}", f"results={done}"])
    outcome = One(config, records.find(done, config).result)
    artifact._compare([outcome, outcome], [])
    assert "note: 1 finished runs: the data of cifar10 were" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="Expected all runs of a table to read the same bytes"):
        artifact._compare([outcome], [One(config, None).job])
    same = cli.compose([*IMAGES, f"data_root={roots['a']}", f"results={done}"])
    artifact._compare([One(same, outcome.result)], [One(same, None).job])
    assert not capsys.readouterr().err


def test_a_committed_record_can_still_be_compared():
    """Of an older record, by the fingerprint it has."""
    root = Path(__file__).resolve().parents[1] / "results" / "embedded" / "runs"
    words = ["method=rgp", "task=digits", "profile=embedded", "eps=8"]
    config = cli.compose(words)
    path = root / records.run_id(config) / "result.json"
    if not path.is_file():
        pytest.skip("no such run is committed")
    assert lookup.compare(config, json.loads(path.read_text())) == ("", "")
