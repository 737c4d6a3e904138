"""Public images, converted to a task's shape and normalisation.

Each function returns the task with `public` set. Images whose class is not one of the task's have
the label -1.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor

from dpexp.data import parquet
from dpexp.data.digits import DARKEST
from dpexp.data.examples import Examples, in_tensors
from dpexp.data.hub import parquet_files
from dpexp.data.pixels import picture
from dpexp.data.public_texts import SETS
from dpexp.data.shapes import draw
from dpexp.data.task import Task, with_public
from dpexp.data.text import Texts
from dpexp.types import ConfigError
from dpexp.warned import warn_caller

UNKNOWN = -1
"""Label of an image whose class is not one of the task's."""

GENERATED_PART = 2
"""Random stream; 0 and 1 are the train and test sets of task=shapes."""


def hub_images(
    task: Task,
    *,
    name: str,
    repo: str,
    config: str,
    image_column: str,
    split: str,
    of_task: str | None,
    size: int,
    subset_seed: int,
    data_root: str,
) -> Task:
    """Use images published as parquet files.

    Args:
        task: the images get its input shape, mean and std.
        name: as in conf/public.
        repo: owner/name on the hub, or a folder of data_root.
        config: a folder of the repository.
        image_column: the column that holds the encoded images.
        split: to read.
        of_task: task whose test set this is. For that task the images are removed from its test
            set and keep their labels (gep, Appendix C).
        size: number of images, drawn from subset_seed.
        subset_seed: seed of that draw, separate from a run's seed: all runs see the same ones.
        data_root: a folder laid out like hub snapshots, searched before the hub.

    Raises:
        ConfigError: data are missing, corrupt or too few, or the task is not of images.
    """
    _shape(task, name)
    if task.name == of_task:
        return _from_test(task, name, size, subset_seed)
    files = parquet_files(data_root, repo, config, [split])[split]
    counts = [parquet.count(path, [image_column], "Set public.image_column.") for path in files]
    chosen = _chosen(sum(counts), size, subset_seed, name).tolist()
    pictures = _pictures(files, counts, image_column, chosen)
    labels = torch.full((size,), UNKNOWN)
    images = _fitted(pictures, task, name)
    refuse_private(task, images, f"public={name}")
    return _with_public(task, images, labels)


def generated(task: Task, *, name: str, size: int, noise: float, data_seed: int) -> Task:
    """Generate further images of the kind of task=shapes.

    Args:
        task: the images get its input shape, mean and std.
        name: as in conf/public.
        size: number of images.
        noise: standard deviation of each pixel's noise, for inputs in [0, 1].
        data_seed: seed of all draws.

    Raises:
        ConfigError: the task is not of images, size is below 1, or an image is a training one.
    """
    _, height, width = _shape(task, name)
    if size < 1:
        raise ConfigError(f"Expected public.size >= 1; got {size}. Set public.size.")
    rng = np.random.default_rng([data_seed, GENERATED_PART])
    images, labels = draw(size, max(height, width), noise, rng)
    pictures = [Image.fromarray(image) for image in images.permute(0, 2, 3, 1).numpy()]
    if task.name != "shapes":
        labels = torch.full_like(labels, UNKNOWN)
    fitted = _fitted(pictures, task, name)
    refuse_private(task, fitted, f"public={name}")
    return _with_public(task, fitted, labels)


def scanned(task: Task, *, name: str, size: int, subset_seed: int) -> Task:
    """Use scikit-learn's handwritten digits, from another source than the generated images.

    Args:
        task: the images get its input shape, mean and std.
        name: as in conf/public.
        size: number of images out of 1,797, drawn from subset_seed.
        subset_seed: seed of that draw, separate from a run's seed: all runs see the same ones.

    Raises:
        ConfigError: the task is digits, which has the same images, or not of images; size is out
            of range, or an image is a training one, as of digits in files of one's own.
    """
    if task.name == name:
        raise ConfigError(
            f"Expected public images that are not private; public={name} are the images of "
            f"task={name}. Set public to another set."
        )
    images = load_digits().images
    chosen = images[_chosen(len(images), size, subset_seed, name).numpy()]
    pictures = [Image.fromarray(np.uint8(255 * image / DARKEST)) for image in chosen]
    fitted = _fitted(pictures, task, name)
    refuse_private(task, fitted, f"public={name}")
    return _with_public(task, fitted, torch.full((size,), UNKNOWN))


def none(task: Task, *, name: str) -> Task:
    """Return the task without public images."""
    return task


def require(task: Task, size: int) -> None:
    """Check that a task has as many public examples as a run uses.

    Raises:
        ConfigError: it has fewer.
    """
    if not size:
        return
    if task.public is None:
        raise ConfigError(
            f"Expected public data for {task.name}: this run uses {size} public examples, but "
            f"public=none. {_remedy(task)}"
        )
    if len(task.public) < size:
        raise ConfigError(
            f"Expected at least {size} public examples; got {len(task.public)}. Set public.size, "
            "or fewer in the method or warm_start."
        )


def _remedy(task: Task) -> str:
    """Return what to do about a task without public examples that a run uses."""
    of_texts = [name for name, tasks in SETS.items() if task.name in tasks]
    if isinstance(task.train, Texts) and of_texts:
        return f"Set public={' or '.join(of_texts)}; or, with GEP, method.basis=random."
    if _is_of_images(task):
        return (
            "Set public=imagenet32, cifar100, cifar10-test, digits or shapes; or, with GEP, "
            "method.basis=random."
        )
    return (
        "There is none for such inputs. Set a method that takes none, such as dpsgd, or, with GEP, "
        "method.basis=random; leave warm_start out, and an analysis that takes public examples."
    )


def _is_of_images(task: Task) -> bool:
    return len(task.input_shape) == 3 and task.input_shape[0] in (1, 3)


def _from_test(task: Task, name: str, size: int, seed: int) -> Task:
    """Split a task's test set into a public and a smaller test set."""
    test = task.test
    chosen = _chosen(len(test) - 1, size, seed, f"{task.name}'s test set, which keeps one")
    kept = torch.ones(len(test), dtype=torch.bool)
    kept[chosen] = False
    warn_caller(
        f"public={name} takes {size:,} of {task.name}'s {len(test):,} test examples, labels "
        f"included: accuracy is measured on the other {len(test) - size:,}."
    )
    public = in_tensors(test.take(chosen))
    refuse_private(task, public.inputs, f"public={name}")
    return _with_public(replace(task, test=test.take(kept)), public.inputs, public.targets)


def refuse_private(
    task: Task, images: Tensor, name: str, remedy: str = "Set public to another set."
) -> None:
    """Refuse a public set that holds training images: public data get no noise.

    Args:
        task: with its training images.
        images: the public ones, [n, c, h, w] of the training images' type.
        name: what they are.
        remedy: what to do, as the end of the message.

    Raises:
        ConfigError: one of them is a training image.
    """
    public = [image.tobytes() for image in images.numpy()]
    wanted = {*public}  # the smaller of the two sets
    private = (image.tobytes() for image in in_tensors(task.train).inputs.cpu().numpy())
    found = {image for image in private if image in wanted}
    shared = sum(image in found for image in public)
    if shared:
        raise ConfigError(
            f"Expected public images that are not private; {shared} of {len(images)} images of "
            f"{name} are training images of {task.name}. {remedy}"
        )


def _with_public(task: Task, inputs: Tensor, targets: Tensor) -> Task:
    train = in_tensors(task.train)
    return with_public(task, Examples(inputs, targets, train.mean, train.std))


def _shape(task: Task, name: str) -> tuple[int, ...]:
    if not _is_of_images(task):
        raise ConfigError(
            f"Expected a task of images with 1 or 3 channels for public={name}; {task.name} has "
            f"inputs of shape {tuple(task.input_shape)}. Leave public out, or set another task."
        )
    return task.input_shape


def _chosen(total: int, size: int, seed: int, name: str) -> Tensor:
    if not 1 <= size <= total:
        raise ConfigError(
            f"Expected public.size in [1, {total}], the images of {name}; got {size}. "
            "Set public.size."
        )
    return torch.randperm(total, generator=torch.Generator().manual_seed(seed))[:size]


def _pictures(
    files: list[Path], counts: list[int], column: str, chosen: list[int]
) -> list[Image.Image]:
    """Return the pictures of the chosen rows, in their order; rows count through all files."""
    wanted, decoded, begin = set(chosen), {}, 0
    for path, count in zip(files, counts, strict=True):
        for first, (images,) in parquet.batches(path, [column]):
            for row in range(first, first + len(images)):
                if begin + row in wanted:
                    where = f"row {row} of {path}"
                    decoded[begin + row] = picture(images[row - first].as_py(), where)
        begin += count
    return [decoded[row] for row in chosen]


def _fitted(pictures: list[Image.Image], task: Task, name: str) -> Tensor:
    """Convert pictures to the task's channels, height and width, uint8 [n, c, h, w]."""
    channels, height, width = _shape(task, name)
    mode = "L" if channels == 1 else "RGB"
    fitted = [
        np.asarray(image.convert(mode).resize((width, height), Image.Resampling.BILINEAR))
        for image in pictures
    ]
    images = np.stack(fitted).reshape(len(fitted), height, width, channels)
    return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
