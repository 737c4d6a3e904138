"""Public sets: brought to any image task's shape, apart from what a run is judged on, recorded."""

import inspect
from dataclasses import replace
from pathlib import Path

import hydra
import numpy as np
import pytest
import torch
import yaml

from dpexp import cli
from dpexp.data import Examples, grammar
from dpexp.data.public import generated, hub_images, none, require, scanned
from dpexp.data.shapes import shapes
from dpexp.data.task import assemble
from dpexp.types import ConfigError, MissingData
from tests.marks import few

SETS = sorted(  # of images; tests/data/test_public_texts.py has the others
    path.stem
    for path in (cli.CONF / "public").glob("*.yaml")
    if "dpexp.data.public." in path.read_text()
)
TASKS = sorted(
    path.stem
    for path in (cli.CONF / "public" / "auto").glob("*.yaml")
    if path.read_text().rpartition("/")[2].partition("@")[0] in SETS
)


def task_of(shape, name="own", classes=10):
    """A tiny task whose images say which one they are."""
    inputs = torch.arange(20, dtype=torch.uint8).view(-1, *[1] * len(shape)).repeat(1, *shape)
    examples = Examples(inputs, torch.arange(20) % classes, [0.5] * shape[0], [0.25] * shape[0])
    part = {"num_classes": classes, "delta": 1e-5, "dataset_size": 20}
    return assemble(name, examples, examples, **part)


def texts(name="sentiment"):
    """A tiny task of generated texts."""
    part = {"data_seed": 0, "dataset_size": 12, "delta": 1e-3, "vocabulary": 57, "max_length": 32}
    part |= {"test_size": 4, "tokenizer": None, "model_root": ""}
    task = grammar.generated(name="sentiment", **part)
    return replace(task, name=name)


def settings(name, **changes):
    said = yaml.safe_load((cli.CONF / "public" / f"{name}.yaml").read_text())
    said.pop("_target_")
    return {**said, **changes}


@pytest.fixture
def hub(hub_folder):
    """Loads a set of the hub from files that lie in a folder of data_root, as real ones do."""

    def load(task, name, count=40, **changes):
        said = settings(name, **changes)
        files = {"input_shape": [3, 32, 32], "num_classes": 10, "label_column": "unused"}
        root, written = hub_folder({**said, **files}, {said["split"]: count}, shards=2)
        return hub_images(task, **{**said, "data_root": root}), written[said["split"]][0]

    return load


@pytest.mark.parametrize("name", ["imagenet32", "cifar100", "cifar10-test"])
def test_a_set_of_the_hub_is_used_pixel_for_pixel_and_without_labels(hub, name):
    task = task_of((3, 32, 32))
    got, pixels = hub(task, name, size=25, subset_seed=3)
    assert got.public.inputs.dtype == torch.uint8 and len(got.public) == 25
    written = {image.tobytes() for image in pixels}
    images = [image.tobytes() for image in got.public.inputs.numpy()]
    assert len(set(images)) == 25 and set(images) <= written
    assert (got.public.targets == -1).all()
    assert torch.equal(got.test.inputs, task.test.inputs)
    other, _ = hub(task, name, size=25, subset_seed=4)
    assert not torch.equal(other.public.inputs, got.public.inputs)


@pytest.mark.parametrize("name", ["imagenet32", "cifar100", "digits", "shapes"])
def test_images_that_are_private_too_are_refused(hub, name):
    """Also where the private ones came in files, under another name."""

    def with_public(task):
        made = {"digits": scanned, "shapes": generated}.get(name)
        return made(task, **settings(name, size=25)) if made else hub(task, name, size=25)[0]

    task = task_of((3, 32, 32))
    train = Examples(with_public(task).public.inputs[:20], task.train.targets)
    private = assemble("own", train, train, num_classes=10, delta=1e-5, dataset_size=20)
    with pytest.raises(ConfigError, match=f"20 of 25 images of public={name} are training"):
        with_public(private)


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 16, 16), (3, 48, 40)])
@pytest.mark.parametrize("name", ["imagenet32", "shapes"])
def test_images_are_brought_to_the_tasks_shape_and_normalisation(hub, name, shape):
    task = task_of(shape)
    if name == "shapes":
        got = generated(task, **settings(name, size=30))
    else:
        got, _ = hub(task, name, size=30)
    assert tuple(got.public.inputs.shape) == (30, *shape)
    assert (got.public.mean, got.public.std) == (task.train.mean, task.train.std)
    batch = got.public.batch(torch.arange(30)).inputs
    assert 0.02 < batch.std() and batch.abs().max() <= 2.0 + 1e-6  # (1 - 0.5) / 0.25


def test_shrinking_keeps_an_images_mean(hub):
    got, pixels = hub(task_of((1, 8, 8)), "imagenet32", size=40)
    grey = np.tensordot(np.array([0.299, 0.587, 0.114]), pixels, axes=(0, 1)).mean((1, 2))
    shrunk = got.public.inputs.double().mean((1, 2, 3))
    assert np.abs(np.sort(grey) - np.sort(shrunk.numpy())).max() < 2.0


def test_generated_images_are_none_of_the_shapes_tasks(conf):
    task = shapes(**conf("shapes", dataset_size=300, test_size=100))
    public = generated(task, **settings("shapes", size=300)).public
    private = {
        image.tobytes() for image in torch.cat([task.train.inputs, task.test.inputs]).numpy()
    }
    assert not private & {image.tobytes() for image in public.inputs.numpy()}
    assert public.targets.unique().tolist() == list(range(10))  # the task's own classes
    again = generated(task, **settings("shapes", size=300)).public
    assert torch.equal(public.inputs, again.inputs)


def test_digits_stand_for_images_of_another_source_but_not_for_the_digits_task():
    got = scanned(task_of((3, 16, 16)), **settings("digits", size=9))
    assert got.public.inputs.shape == (9, 3, 16, 16) and (got.public.targets == -1).all()
    assert got.public.inputs.float().mean((1, 2, 3)).std() > 1, "they differ from each other"
    assert int(got.public.inputs.max()) > 200, "the darkest pixels are near 255"
    with pytest.raises(ConfigError, match="images of task=digits"):
        scanned(task_of((1, 8, 8), "digits"), **settings("digits"))


def test_public_test_images_leave_the_test_set():
    """gep Table 5: with CIFAR-10's test images public, accuracy is of the others."""
    task = task_of((3, 32, 32), "cifar10")
    with pytest.raises(ConfigError, match="5 of 5 images of public=cifar10-test are training"):
        hub_images(task, **settings("cifar10-test", size=5, data_root="nowhere"))
    others = task.train.take(torch.zeros(1, dtype=torch.long))
    task = replace(task, train=replace(others, inputs=others.inputs + 99))
    with pytest.warns(UserWarning, match=r"takes 5 of cifar10's 20 test examples.*other 15"):
        got = hub_images(task, **settings("cifar10-test", size=5, data_root="nowhere"))
    tags = [set(e.inputs[:, 0, 0, 0].tolist()) for e in (got.public, got.test)]
    assert tags[0] | tags[1] == set(range(20)) and not tags[0] & tags[1]
    assert torch.equal(got.public.targets, got.public.inputs[:, 0, 0, 0].long() % 10)
    assert len(task.test) == 20  # the task itself is as it was


def test_a_run_that_uses_public_data_has_a_fingerprint_of_its_own():
    task = task_of((3, 16, 16))
    prints = {
        generated(task, **settings("shapes", size=size, data_seed=seed)).fingerprint
        for size, seed in ((10, 0), (10, 1), (11, 0))
    }
    assert len({task.fingerprint, *prints}) == 4
    assert none(task, **settings("none")) is task


# Mistakes


@pytest.mark.parametrize("size", [0, 41])
def test_more_images_than_there_are_is_one_line(hub, size):
    with pytest.raises(ConfigError, match=rf"public\.size in \[1, 40\].*got {size}"):
        hub(task_of((3, 32, 32)), "cifar100", size=size)


def test_a_task_that_is_not_of_images_is_refused_by_name(hub):
    task = task_of((14,))
    for load in (
        lambda: generated(task, **settings("shapes")),
        lambda: hub_images(task, **settings("imagenet32", data_root="nowhere")),
    ):
        with pytest.raises(ConfigError, match=r"task of images.*own has inputs of shape \(14,\)"):
            load()


def test_missing_files_say_what_to_put_where(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(MissingData) as caught:
        hub_images(task_of((3, 32, 32)), **settings("imagenet32", data_root=str(tmp_path)))
    said = str(caught.value)
    assert str(tmp_path / "public" / "imagenet32") in said and "\n" not in said


@pytest.mark.parametrize(
    ("damage", "remedy"),
    [
        ("file", "Fetch it again"),
        ("column", "got other, unused. Set public.image_column"),
        ("image", "Fetch the file again"),
    ],
)
def test_damage_is_named_in_one_line(hub_folder, damage, remedy):
    said = settings("imagenet32", size=5)
    column = "other" if damage == "column" else "image"
    files = {"input_shape": [3, 32, 32], "num_classes": 10, "label_column": "unused"}
    root, _ = hub_folder({**said, **files, "image_column": column}, {"train": 5})
    (path,) = (Path(root) / "public" / "imagenet32").iterdir()
    whole = path.read_bytes()
    if damage == "file":
        path.write_bytes(whole[:-300])
    if damage == "image":
        path.write_bytes(whole.replace(b"IHDR", b"XXXX"))
    with pytest.raises(ConfigError, match=remedy) as caught:
        hub_images(task_of((3, 32, 32)), **{**said, "data_root": root})
    assert "\n" not in str(caught.value)


def test_what_a_method_takes_must_be_there():
    task = task_of((3, 16, 16))
    require(task, 0)
    with pytest.raises(ConfigError, match="uses 8 public examples, but public=none"):
        require(task, 8)
    some = generated(task, **settings("shapes", size=8))
    require(some, 8)
    with pytest.raises(ConfigError, match=r"at least 9 public examples; got 8. Set public\.size"):
        require(some, 9)


@pytest.mark.parametrize(
    ("made", "remedy"),
    [
        (lambda: task_of((3, 16, 16)), "Set public=imagenet32, cifar100, .* method.basis=random"),
        (lambda: task_of((5,), "table:t.csv"), "There is none for such inputs. Set a method that"),
        (lambda: texts("texts:t.csv"), "There is none for such inputs"),
        (texts, "Set public=texts; or, with GEP"),
        (lambda: texts("sst2"), "Set public=film_reviews; or, with GEP"),
    ],
)
def test_the_remedy_for_no_public_examples_is_one_that_the_task_takes(made, remedy):
    with pytest.raises(ConfigError, match=rf"uses 8 .* public=none. {remedy}"):
        require(made(), 8)


# Configuration


@pytest.mark.parametrize("name", SETS)
def test_settings_are_exactly_what_the_set_takes(name):
    node = cli.compose(["method=gep", "task=cifar10", f"public={name}"])["public"]
    assert node["name"] == name
    takes = inspect.signature(hydra.utils.get_object(node["_target_"])).parameters
    assert set(node) - {"_target_"} == set(takes) - {"task"}


@pytest.mark.parametrize("task", few(TASKS, ["digits", "cifar10"]))
def test_every_image_task_has_a_public_set_and_a_method_that_takes_one_asks_for_it(task):
    for method in ("gep", "bgep"):
        chosen = cli.compose([f"method={method}", f"task={task}"])["public"]["name"]
        assert chosen == ("shapes" if task in ("digits", "shapes") else "imagenet32")
    assert "public" not in cli.compose(["method=dpsgd", f"task={task}"])
