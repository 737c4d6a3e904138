"""Frozen features: a task's images, encoded once by a pretrained model (gep, Appendix A)."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from dpexp.data.cache import content_hashes, decoded
from dpexp.data.encoders import beside, load, named
from dpexp.data.examples import Examples, ExampleSet, in_tensors
from dpexp.data.preprocessing import Images
from dpexp.data.task import Task, fingerprint
from dpexp.types import ConfigError

log = logging.getLogger("dpexp")

_WANTED = ContextVar("features are wanted", default=True)


@contextmanager
def unwanted() -> Iterator[None]:
    """Let `encode` leave out the features within the context, for their fingerprint alone.

    The task that it returns has its images still. Encoding takes up to hours, its fingerprint none.
    """
    token = _WANTED.set(False)
    try:
        yield
    finally:
        _WANTED.reset(token)


ENCODE_BATCH = 64  # ours; changes no result

PIECE = 5_000
"""Images encoded and kept at once: what a run that is stopped loses at most."""


def encode(
    task: Task,
    device: torch.device,
    *,
    name: str,
    encoder: str,
    image_size: int,
    mean: Sequence[float],
    std: Sequence[float],
    also: str | Sequence[str],
    model_root: str,
) -> Task:
    """Replace a task's images by their features, computed once and cached by content.

    They are cached in pieces as they are computed: what was stopped goes on where it was. The
    task's fingerprint is of the images, the encoder's files and the settings, not of the features,
    whose last digits differ between machines.

    Each example's features are centred and scaled to norm one on their own. The customary mean and
    variance of the training set would consume privacy budget. Of several modules' outputs each is
    centred and scaled, then all of them together.

    Args:
        task: of images with 1 or 3 channels; its public examples are encoded too.
        device: where the encoder runs.
        name: as in conf/features.
        encoder: "torchvision/resnet152" or another of its ResNets, "timm/resnet152.tv_in1k" or
            another model of timm, or owner/name of an image encoder on the hub that transformers
            can load.
        image_size: side that images are resized to, in pixels.
        mean: of the encoder's inputs in [0, 1], per channel.
        std: likewise, > 0.
        also: names of the encoder's modules whose outputs, averaged over positions, stand beside
            its features. What an early layer sees is often missing from the last.
        model_root: a folder laid out like hub snapshots, searched before any server.

    Raises:
        MissingData: the encoder was not found.
        ConfigError: the task is not of images, or the encoder cannot be used.
    """
    if len(task.input_shape) != 3 or task.input_shape[0] not in (1, 3):
        raise ConfigError(
            f"Expected a task of images with 1 or 3 channels for features={name}; {task.name} has "
            f"inputs of shape {tuple(task.input_shape)}. Leave features out, or set another task."
        )
    loaded, also = load(encoder, model_root, device), named(also)
    module, of_files = beside(loaded, encoder, also), content_hashes(loaded.files)
    settings = json.dumps([encoder, image_size, list(mean), list(std), *also])

    def piece(part: Examples, begin: int, total: int) -> Tensor:
        recipe = " ".join(["features 3", settings, *of_files, fingerprint(part.inputs)])

        def compute() -> tuple[Tensor]:
            end = begin + len(part)
            which = f"{total:,}" if len(part) == total else f"{begin + 1:,} to {end:,} of {total:,}"
            log.info("%s: features of %s images", encoder, which)
            return (_encoded(module, part, image_size, mean, std, device),)

        return decoded((), recipe, compute)[0]

    def features(examples: ExampleSet) -> Examples:
        plain = replace(in_tensors(examples), mean=None, std=None)
        total = len(plain)
        pieces = [
            piece(plain.take(torch.arange(begin, min(begin + PIECE, total))), begin, total)
            for begin in range(0, total, PIECE)
        ]
        return Examples(torch.cat(pieces), plain.targets)

    parts = [part for part in (task.train, task.test, task.public) if part is not None]
    hashes = [fingerprint(*part.tensors()) for part in parts] + of_files
    of_all = hashlib.sha256(" ".join([settings, *hashes]).encode()).hexdigest()
    if not _WANTED.get():
        return replace(task, fingerprint=of_all)
    train, test = features(task.train), features(task.test)
    public = None if task.public is None else features(task.public)
    return replace(
        task,
        train=train,
        test=test,
        public=public,
        input_shape=tuple(train.inputs.shape[1:]),
        fingerprint=of_all,
        preprocessing=_after(
            task.preprocessing,
            encoder,
            image_size,
            tuple(mean),
            tuple(std),
            model_root,
            tuple(also),
        ),
    )


@dataclass(frozen=True)
class Features:
    """Images of one size, encoded by a pretrained model, whose files are looked for when used.

    Attributes:
        images: what makes the encoder's images.
        encoder: see `encode`.
        image_size: see `encode`.
        mean: see `encode`.
        std: see `encode`.
        model_root: see `encode`.
        also: see `encode`; models that were kept before it was an option lack it.
    """

    kind: ClassVar[str] = "features"
    images: Images
    encoder: str
    image_size: int
    mean: Sequence[float]
    std: Sequence[float]
    model_root: str
    also: Sequence[str] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the names of the classes by index; empty where they have none."""
        return self.images.classes

    def examples(self, raw: Sequence[Any]) -> Examples:
        """Return the features of images, as `Images.examples` takes them.

        Raises:
            MissingData: the encoder was not found.
            ConfigError: naming the first that is no image of this shape.
        """
        plain, cpu = replace(self.images, mean=None, std=None).examples(raw), torch.device("cpu")
        module = beside(load(self.encoder, self.model_root, cpu), self.encoder, self.also)
        inputs = _encoded(module, plain, self.image_size, self.mean, self.std, cpu)
        return Examples(inputs, plain.targets)

    def settings(self) -> dict[str, Any]:
        """Return what is needed to make it again, in JSON's types."""
        said = {key: value for key, value in vars(self).items() if key != "images"}
        return {"images": self.images.settings(), "encoder": said}

    def save_files(self, folder: Path) -> None:
        """The encoder's files stay where they are."""


def _after(images: Any, *settings: Any) -> Features | None:
    """Return what makes features; None where the task does not say how its images are made."""
    return Features(images, *settings) if isinstance(images, Images) else None


def _encoded(
    module: Callable[[Tensor], tuple[Tensor, ...]],
    images: Examples,
    size: int,
    mean: Sequence[float],
    std: Sequence[float],
    device: torch.device,
) -> Tensor:
    """Return the features of images that are not normalised, [n, d] on the CPU."""
    with torch.no_grad():
        parts = [
            _features(module, images.batch(indices).inputs, size, mean, std, device)
            for indices in torch.arange(len(images)).split(ENCODE_BATCH)
        ]
    return torch.cat(parts)


def _features(
    module: Callable[[Tensor], tuple[Tensor, ...]],
    images: Tensor,
    size: int,
    mean: Sequence[float],
    std: Sequence[float],
    device: torch.device,
) -> Tensor:
    """Return features [n, d] of mean zero and norm one for images [n, c, h, w] in [0, 1]."""
    images = images.to(device).expand(-1, 3, -1, -1)
    images = F.interpolate(images, (size, size), mode="bilinear", antialias=True)
    shift, scale = (torch.tensor(list(of), device=device).view(1, 3, 1, 1) for of in (mean, std))
    parts = module((images - shift) / scale)
    if not all(each.isfinite().all() for each in parts):
        raise ConfigError(
            "Expected finite features for every image; the encoder returns some that are not. "
            "Set features.encoder, or features.mean and features.std."
        )
    scaled = [F.normalize(each - each.mean(1, keepdim=True), dim=1) for each in parts]
    return (scaled[0] if len(scaled) == 1 else F.normalize(torch.cat(scaled, 1), dim=1)).cpu()
