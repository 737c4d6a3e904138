"""Settings of PATE."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from dpexp.privacy.stated import StatedVotes
from dpexp.training.parts import Parts
from dpexp.types import ConfigError, require_word

FARTHEST = 2.0**20
"""Largest ratio of the check's noise to the answers', either way (ours). Beyond it one of them is a
million times too large, or negligible."""


@dataclass(frozen=True)
class PATE:
    """Settings of teachers, queries and student; conf/method/pate.yaml has their sources.

    Attributes:
        teachers: how many, >= 1.
        teacher: makes one for (in_channels, num_classes, image_size).
        teacher_optimizer: maps params to an optimizer.
        teacher_steps: of each teacher's training, >= 1.
        teacher_batch: examples a step, >= 1.
        threshold: what the noisy largest vote must reach, as a share of the teachers, in [0, 1].
        check_ratio: sigma_1 over sigma_2, in [2^-20, 2^20].
        queries: at most so many public inputs are asked, >= 1.
        answers: at most so many are answered, >= 1.
        public: "test-half" (the student's inputs are half of the test set, as in the papers) or
            "task" (the task's public set).
        student_steps: of the student's training, >= 1.
        student_batch: labelled inputs a step, >= 1.

    Raises:
        ConfigError: for a value outside its range.
    """

    teachers: int
    teacher: Callable[..., nn.Module]
    teacher_optimizer: Callable[..., torch.optim.Optimizer]
    teacher_steps: int
    teacher_batch: int
    threshold: float
    check_ratio: float
    queries: int
    answers: int
    public: str
    student_steps: int
    student_batch: int

    @property
    def public_size(self) -> int:
        """Number of examples needed of the task's public set; none are loaded if 0."""
        return 0 if self.public == "test-half" else self.queries

    @staticmethod
    def stated_votes(settings: Mapping[str, Any], available: int | None) -> list[StatedVotes]:
        """Return the queries that verification expects: all are checked, and some are answered.

        One teacher's vote moves the largest entry of a histogram by 1, and all of it by sqrt 2 in
        l2: it leaves one class and joins another.
        """
        asked = settings["queries"] if available is None else min(settings["queries"], available)
        return [
            StatedVotes("check", 1.0, settings["check_ratio"], asked),
            StatedVotes("votes", math.sqrt(2), 1.0, min(settings["answers"], asked)),
        ]

    def __post_init__(self) -> None:
        """Check the ranges."""
        require_word("method.public", self.public, ("test-half", "task"))
        counts = ("teachers", "teacher_steps", "teacher_batch", "queries", "answers")
        for name in (*counts, "student_steps", "student_batch"):
            value = getattr(self, name)
            if value < 1:
                raise ConfigError(f"Expected method.{name} >= 1; got {value}. Set method.{name}.")
        if not 0 <= self.threshold <= 1 or not 0 < self.check_ratio < math.inf:
            raise ConfigError(
                "Expected method.threshold in [0, 1] and method.check_ratio > 0; got "
                f"{self.threshold} and {self.check_ratio}."
            )
        if not 1 / FARTHEST <= self.check_ratio <= FARTHEST:
            raise ConfigError(
                f"Expected method.check_ratio between {1 / FARTHEST:.2g} and {FARTHEST:.2g}; got "
                f"{self.check_ratio:g}. Set method.check_ratio."
            )


def settings_of(parts: Parts) -> PATE:
    """Return the settings that a run of this loop has in its method's place."""
    return cast(PATE, parts.method)
