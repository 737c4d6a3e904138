"""Several augmented views of an example, whose gradients are averaged before the clip."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from dpexp.types import Batch, ConfigError

WIDEST = 2**24
"""Largest padding (ours), far above any image's size."""

FEWER = "Set a smaller augmentation.multiplicity."
"""What to do about views that do not fit in memory."""


class Augmentation(Protocol):
    """Makes views of examples.

    Attributes:
        multiplicity: views of an example, >= 1.
    """

    multiplicity: int

    def draws(self, num_examples: int, gen: torch.Generator) -> Tensor:
        """Return the random numbers of every example's views at one step, [num_examples, ...]."""

    def views(self, batch: Batch, draws: Tensor) -> Batch:
        """Return the views of a batch, an example's one after another.

        Args:
            batch: n examples.
            draws: theirs, [n, ...].
        """


@dataclass(frozen=True)
class CropFlip:
    """Random crops of an image padded by its mirror, and horizontal flips.

    Source: De et al. 2022, arXiv 2204.13650, Section 3.2; the padding is from their code.

    Attributes:
        multiplicity: views of an example (their K), >= 1.
        padding: pixels at each side, >= 0 and at most the image's size, and 2^24.
    """

    multiplicity: int
    padding: int

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ConfigError: for a value outside its range.
        """
        for name, least in (("multiplicity", 1), ("padding", 0)):
            if getattr(self, name) < least:
                raise ConfigError(
                    f"Expected augmentation.{name} >= {least}; got {getattr(self, name)}. Set "
                    f"augmentation.{name}."
                )
        if self.padding > WIDEST:
            raise ConfigError(
                "Expected augmentation.padding to be at most the images' size; got "
                f"{self.padding}. Set augmentation.padding."
            )

    def draws(self, num_examples: int, gen: torch.Generator) -> Tensor:
        """Return each view's first row, first column and flip, [num_examples, K, 3]."""
        highest = 2 * (2 * self.padding + 1) ** 2
        drawn = torch.randint(highest, (num_examples, self.multiplicity), generator=gen)
        offset = drawn // 2
        side = 2 * self.padding + 1
        return torch.stack([offset // side, offset % side, drawn % 2], dim=-1)

    def views(self, batch: Batch, draws: Tensor) -> Batch:
        """Return the crops and flips of images [n, c, h, w], [n * K, c, h, w].

        Raises:
            ConfigError: if the inputs are no images, or smaller than the padding.
        """
        images = batch.inputs
        if images.ndim != 4:
            raise ConfigError(
                "Expected images, [channels, height, width] each, for augmentation=crop_flip; got "
                f"inputs of shape {list(images.shape[1:])}. Leave augmentation out."
            )
        if min(images.shape[2:]) < self.padding:
            raise ConfigError(
                f"Expected images of at least {self.padding} pixels for augmentation=crop_flip; "
                f"got inputs of shape {list(images.shape[1:])}. Leave augmentation out, or set "
                "augmentation.padding."
            )
        height, width = images.shape[2:]
        top, left, flip = draws.to(images.device).flatten(0, 1).unbind(1)
        rows, columns = (torch.arange(size, device=top.device) for size in (height, width))
        rows = _mirrored(top[:, None] + rows, self.padding, height)
        columns = columns.expand(len(top), -1)
        columns = torch.where(flip[:, None] > 0, width - 1 - columns, columns)
        columns = _mirrored(left[:, None] + columns, self.padding, width)
        example = torch.arange(len(images), device=top.device).repeat_interleave(self.multiplicity)
        channels = torch.arange(images.shape[1], device=top.device)
        seen = images[
            example[:, None, None, None],
            channels[:, None, None],
            rows[:, None, :, None],
            columns[:, None, None, :],
        ]
        targets = batch.targets.repeat_interleave(self.multiplicity)
        return replace(batch, inputs=seen, targets=targets, views=self.multiplicity)


def _mirrored(places: Tensor, padding: int, size: int) -> Tensor:
    """Map places in a padded axis to those in the axis; the edge itself is mirrored too."""
    places = places - padding
    places = torch.where(places < 0, -1 - places, places)
    return torch.where(places >= size, 2 * size - 1 - places, places)
