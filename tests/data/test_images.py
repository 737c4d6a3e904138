import os
import socket
import time

import datasets
import huggingface_hub
import numpy as np
import pytest
import torch
from PIL import Image

from dpexp.data.hub import parquet_files
from dpexp.data.images import hub_images
from dpexp.types import ConfigError, MissingData


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("cifar10", {"train": 30, "test": 10}),
        ("svhn", {"train": 30, "test": 10, "extra": 7}),
        ("svhn_extended", {"train": 20, "test": 10, "extra": 10}),
        ("mnist", {"train": 30, "test": 10}),
        ("cifar100", {"train": 30, "test": 10}),
    ],
)
@pytest.mark.parametrize("shards", [1, 3])
def test_every_set_loads_pixel_for_pixel_from_files_laid_out_like_the_hub(
    name, counts, shards, conf, hub_folder
):
    settings = conf(name, dataset_size=30)
    root, written = hub_folder(settings, counts, shards)
    task = hub_images(**{**settings, "data_root": root})
    splits = settings["train_splits"]
    images = np.concatenate([written[split][0] for split in splits])
    labels = np.concatenate([written[split][1] for split in splits])
    assert task.train.inputs.dtype == torch.uint8
    assert np.array_equal(task.train.inputs.numpy(), images)
    assert np.array_equal(task.train.targets.numpy(), labels)
    # Constants of the config move and scale them, never the private images' own.
    given = task.train.batch(torch.arange(len(images))).inputs
    mean, std = (torch.tensor(settings[key]).view(-1, 1, 1) for key in ("mean", "std"))
    torch.testing.assert_close(given, (torch.from_numpy(images) / 255 - mean) / std)
    assert np.array_equal(task.test.inputs.numpy(), written["test"][0])
    assert list(task.input_shape) == settings["input_shape"]
    assert (task.name, task.dataset_size, task.metric) == (name, 30, "test_accuracy")
    assert task.delta == settings["delta"] and task.num_classes == settings["num_classes"]


def test_missing_data_is_one_line_that_says_what_to_put_where_and_comes_soon(
    conf, tmp_path, monkeypatch
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    begun = time.monotonic()
    with pytest.raises(MissingData) as raised:
        hub_images(**conf("cifar10", data_root=str(tmp_path)))
    assert time.monotonic() - begun < 10
    message = str(raised.value)
    assert "train-00000-of-00001.parquet and test-00000-of-00001.parquet" in message
    assert str(tmp_path / "uoft-cs" / "cifar10" / "plain_text") in message
    assert "data_root" in message and "cannot be reached" in message
    assert "\n" not in message


def test_what_no_hub_has_is_not_asked_of_one(tmp_path):
    with pytest.raises(MissingData, match="docs/data.md says how to make it") as raised:
        parquet_files(tmp_path, "public", "imagenet32", ["train"])
    assert str(tmp_path / "public" / "imagenet32") in str(raised.value)
    assert "hub could not" not in str(raised.value) and "network" not in str(raised.value)


@pytest.mark.long
def test_a_hub_that_never_answers_is_given_up_within_ten_seconds(conf, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setattr(
            "huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}"
        )
        begun = time.monotonic()
        with pytest.raises(MissingData, match="hub could not supply it"):
            hub_images(**conf("svhn", data_root=str(tmp_path)))
        assert time.monotonic() - begun < 10


def test_the_hubs_cache_serves_without_a_network(conf, hub_folder, tmp_path, monkeypatch):
    settings = conf("mnist", dataset_size=12)
    root, written = hub_folder(settings, {"train": 12, "test": 4})
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    commit = "0" * 40
    repo = tmp_path / "hub" / "datasets--ylecun--mnist"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    (repo / "snapshots" / commit).mkdir(parents=True)
    (tmp_path / "data" / "ylecun" / "mnist" / "mnist").rename(repo / "snapshots" / commit / "mnist")
    task = hub_images(**{**settings, "data_root": root})
    assert np.array_equal(task.train.inputs.numpy(), written["train"][0])


def test_loading_from_data_root_asks_nothing_of_any_network(cifar, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("looked for a network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert len(cifar().train) == 40


@pytest.mark.parametrize("folder", ["with space", "with [brackets] and *"])
def test_any_folder_name_will_do(folder, cifar, tmp_path):
    (tmp_path / "data").rename(tmp_path / folder)
    assert len(cifar(data_root=str(tmp_path / folder)).train) == 40


def test_a_missing_shard_is_named(conf, hub_folder):
    settings = conf("cifar10", dataset_size=30)
    root, _ = hub_folder(settings, {"train": 30, "test": 5}, shards=3)
    path = f"{root}/uoft-cs/cifar10/plain_text"
    os.remove(f"{path}/train-00002-of-00003.parquet")
    with pytest.raises(ConfigError, match="lacks train-00002-of-00003.parquet"):
        hub_images(**{**settings, "data_root": root})


@pytest.mark.parametrize("damage", ["truncated", "garbage", "empty"])
def test_a_corrupt_parquet_file_is_named_in_one_line(damage, cifar):
    path = cifar.folder / "train-00000-of-00001.parquet"
    whole = path.read_bytes()
    path.write_bytes({"truncated": whole[:-500], "garbage": b"x" * 999, "empty": b""}[damage])
    with pytest.raises(ConfigError, match="corrupt") as raised:
        cifar()
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)


def test_a_file_damaged_in_the_middle_is_an_error_or_other_data(cifar):
    path = cifar.folder / "train-00000-of-00001.parquet"
    whole, honest = bytearray(path.read_bytes()), cifar().fingerprint
    middle = len(whole) // 2
    whole[middle : middle + 64] = bytes(64)
    path.write_bytes(whole)
    try:
        assert cifar().fingerprint != honest
    except ConfigError as error:
        assert "\n" not in str(error)


def test_an_image_that_cannot_be_decoded_is_named_by_row(cifar):
    path = cifar.folder / "test-00000-of-00001.parquet"
    good = cifar.written["test"][0][0].transpose(1, 2, 0)
    table = datasets.Dataset.from_dict({"img": [Image.fromarray(good)] * 3, "label": [0, 1, 2]})
    table = table.cast_column("img", datasets.Image(decode=False))
    rows = table.to_list()
    rows[1]["img"] = {"bytes": rows[1]["img"]["bytes"][:30], "path": None}
    features = datasets.Features({"img": datasets.Image(), "label": datasets.Value("int64")})
    datasets.Dataset.from_list(rows, features=features).to_parquet(path)
    with pytest.raises(ConfigError, match="row 1 of .*test-00000"):
        cifar()


def test_images_of_another_size_are_refused(cifar):
    with pytest.raises(ConfigError, match="Expected 28 x 28 pixels .* got 32 x 32"):
        cifar(input_shape=[3, 28, 28])


def test_a_wrong_column_is_answered_with_those_there_are(cifar):
    with pytest.raises(ConfigError, match="got img, label"):
        cifar(image_column="image")


def test_targets_beyond_the_classes_are_refused(cifar):
    with pytest.raises(ConfigError, match="task.num_classes"):
        cifar(num_classes=2)


def test_another_size_than_declared_is_refused_by_name(cifar):
    with pytest.raises(ConfigError, match="task.dataset_size=50000 .* got 40"):
        cifar(dataset_size=50000)


def test_a_subset_is_the_same_every_time_and_needs_its_size_declared(cifar):
    first, again = (cifar(train_size=16, dataset_size=16) for _ in range(2))
    assert len(first.train) == 16 and first.fingerprint == again.fingerprint
    other = cifar(train_size=16, dataset_size=16, subset_seed=1)
    assert other.fingerprint != first.fingerprint
    assert torch.equal(other.test.inputs, first.test.inputs)
    with pytest.raises(ConfigError, match="task.dataset_size"):
        cifar(train_size=16)
    with pytest.raises(ConfigError, match=r"task.train_size in \[1, 40\]"):
        cifar(train_size=41)


def test_one_pixel_changes_the_fingerprint(cifar, conf, hub_folder):
    before = cifar().fingerprint
    assert cifar().fingerprint == before
    images, labels = cifar.written["train"]
    changed = images.copy()
    changed[7, 1, 20, 3] ^= 1
    datasets.Dataset.from_dict(
        {"img": [Image.fromarray(x.transpose(1, 2, 0)) for x in changed], "label": labels}
    ).to_parquet(cifar.folder / "train-00000-of-00001.parquet")
    after = cifar()
    assert after.fingerprint != before
    assert int((after.train.inputs != torch.from_numpy(images)).sum()) == 1


def test_the_probe_honours_the_clients_own_offline_switch(conf, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert huggingface_hub.is_offline_mode()
    with pytest.raises(MissingData, match="HF_HUB_OFFLINE is set"):
        hub_images(**conf("cifar100", data_root=str(tmp_path)))


@pytest.mark.long
def test_real_cifar10_is_whole_and_quick_to_load_again(conf, real_data_root):
    if not (real_data_root / "uoft-cs" / "cifar10").is_dir():
        pytest.skip(f"no uoft-cs/cifar10 in {real_data_root}")
    settings = conf("cifar10", data_root=str(real_data_root))
    task = hub_images(**settings)
    assert task.train.inputs.shape == (50000, 3, 32, 32) and len(task.test) == 10000
    assert task.train.targets.bincount().tolist() == [5000] * 10
    moments = task.train.batch(torch.arange(0, 50000, 10)).inputs
    assert moments.mean().abs() < 0.05 and 1.0 < moments.std() < 1.4
    begun = time.monotonic()
    again = hub_images(**settings)
    assert again.fingerprint == task.fingerprint
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train_splits": ["train", "train"]}, "each train split once.*Set task.train_splits"),
        ({"train_splits": []}, "each train split once"),
        ({"test_splits": ["test", "test"]}, "each test split once.*Set task.test_splits"),
        ({"test_splits": ["train"]}, "both training and testing; 'train' is"),
    ],
)
def test_no_split_holds_an_example_twice_or_is_trained_and_tested_on(cifar, changes, said):
    with pytest.raises(ConfigError, match=said):
        cifar(**changes)
