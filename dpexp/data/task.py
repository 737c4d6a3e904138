"""A task: its sets of examples, the numbers declared about them, loss and metric."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dpexp.data.examples import ExampleSet
from dpexp.records.predictions import HELD_OUT
from dpexp.types import ConfigError
from dpexp.warned import warn_caller

LossFn = Callable[[Tensor, Tensor], Tensor]
"""Compares outputs [n, c] with targets [n]."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Sum the examples' cross-entropy between logits [n, c] and class indices [n]."""
    return F.cross_entropy(outputs, targets, reduction="sum")


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return 100 where the prediction is correct, else 0, [n]; non-finite outputs are incorrect."""
    return 100.0 * ((outputs.argmax(1) == targets) & are_finite(outputs))


def are_finite(outputs: Tensor) -> Tensor:
    """Return whether each example's outputs [n, c] are finite, [n]; argmax would pick a NaN."""
    return outputs.isfinite().all(1)


class Preprocessing(Protocol):
    """What makes examples of raw inputs (`dpexp.data.preprocessing`).

    Attributes:
        kind: of inputs.
        classes: names by index; empty where they have none.
    """

    kind: ClassVar[str]

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the names of the classes by index; empty where they have none."""

    def examples(self, raw: Sequence[Any]) -> Any:
        """Return raw inputs as examples whose targets are all 0.

        Raises:
            ConfigError: naming the input that the model cannot take.
        """

    def settings(self) -> dict[str, Any]:
        """Return what is needed to make it again, in JSON's types."""

    def save_files(self, folder: Path) -> None:
        """Write the files that it needs beside its settings, such as a vocabulary."""


@dataclass(frozen=True, eq=False)
class Task:
    """Training and test examples, loss and metric of a run.

    Attributes:
        name: as in conf/task.
        train: the private examples.
        test: the examples the metric is computed on.
        public: public examples (`dpexp.data.public`), which get no noise; None without any.
        num_classes: number of classes; 1 for a regression.
        input_shape: of one example, (channels, height, width).
        delta: of the (eps, delta) guarantee.
        dataset_size: the declared N of the training set, which the accounting uses.
        fingerprint: sha256 of the decoded examples, public ones included; identifies a result's
            data.
        metric: its name in result.json.
        loss: training loss, summed over the examples.
        score: per-example scores [n]; the metric is their mean.
        also: further test sets, by the name of their metric.
        preprocessing: makes inputs of raw examples; None where there are none, as for generated
            numbers.
        holdout: training examples that were left out (`dpexp.data.holdout`), for the last
            evaluation alone; None without any.
    """

    name: str
    train: ExampleSet
    test: ExampleSet
    public: ExampleSet | None
    num_classes: int
    input_shape: tuple[int, ...]
    delta: float
    dataset_size: int
    fingerprint: str
    metric: str = "test_accuracy"
    loss: LossFn = cross_entropy
    score: LossFn = accuracy
    also: Mapping[str, ExampleSet] = field(default_factory=dict)
    preprocessing: Preprocessing | None = None
    holdout: ExampleSet | None = None

    @property
    def holdout_metric(self) -> str:
        """The name of the metric on the held-out examples: holdout_accuracy for test_accuracy."""
        return f"{HELD_OUT}{self.metric.removeprefix('test_')}"

    @property
    def holdout_fingerprint(self) -> str:
        """The sha256 of the examples that were held out; "" without any."""
        return "" if self.holdout is None else fingerprint(*self.holdout.tensors())

    @property
    def test_fingerprint(self) -> str:
        """The sha256 of the test sets alone: equal ones mean equal test examples."""
        return _of_sets(self.test, *self.also.values())


def assemble(
    name: str,
    train: ExampleSet,
    test: ExampleSet,
    *,
    num_classes: int,
    delta: float,
    dataset_size: int,
    input_shape: Sequence[int] | None = None,
    metric: str = "test_accuracy",
    also: Mapping[str, ExampleSet] | None = None,
    preprocessing: Preprocessing | None = None,
    size_word: str = "task.dataset_size",
) -> Task:
    """Return a task, after checking its examples against the configuration.

    Args:
        name: as in conf/task.
        train: the private examples.
        test: examples the metric is computed on.
        num_classes: number of classes.
        delta: of the (eps, delta) guarantee.
        dataset_size: the declared N.
        input_shape: of one example; None: the shape of a batch's inputs.
        metric: its name.
        also: further test sets, by the name of their metric.
        preprocessing: makes inputs of raw examples; None: there are none.
        size_word: how N is said, for messages.

    Raises:
        ConfigError: the training set does not hold dataset_size examples, a target is not a class,
            or a test set is empty.
    """
    if len(train) != dataset_size:
        raise ConfigError(
            f"Expected {size_word}={dataset_size} training examples for {name}; got {len(train)}. "
            f"Set {size_word}={len(train)} if that is intended: N is declared, because the "
            "accounting may not depend on private data."
        )
    tests = {metric: test, **(also or {})}
    for part, examples in {"training": train, **tests}.items():
        if not examples.targets.is_floating_point():
            _check_classes(name, part, examples.targets, num_classes)
    for part, examples in tests.items():
        _check_test(name, part, examples.targets)
    return Task(
        name=name,
        train=train,
        test=test,
        public=None,
        num_classes=num_classes,
        input_shape=tuple(_shape(train) if input_shape is None else input_shape),
        delta=delta,
        dataset_size=dataset_size,
        fingerprint=_of_sets(train, *tests.values()),
        metric=metric,
        also=also or {},
        preprocessing=preprocessing,
    )


def as_declared(task: Task, size: int | None, delta: float | None) -> Task:
    """Return a task of anyone's own making, who may have changed it since it was assembled.

    Its fingerprint is made anew: by it a run is found again, and data that changed are noticed.

    Args:
        task: with all its training examples.
        size: N as the config declares it; None: it does not.
        delta: of the (eps, delta) guarantee likewise.

    Raises:
        ConfigError: the training set does not hold that many examples, the task has another delta,
            or the targets are numbers and the loss compares classes.
    """
    declared = task.dataset_size if size is None else size
    if not declared == task.dataset_size == len(task.train):
        raise ConfigError(
            f"Expected task.dataset_size={declared} training examples for {task.name}; the task "
            f"that was made says {task.dataset_size} and has {len(task.train)}. Set "
            "task.dataset_size, and hand it to dpexp.data.task.assemble with all of them."
        )
    if delta is not None and task.delta != delta:
        raise ConfigError(
            f"Expected the delta that is configured for {task.name}, {delta:g}, of which noise and "
            f"certificate are; the task that was made says {task.delta:g}. Set task.delta."
        )
    if task.loss is cross_entropy and task.train.targets.is_floating_point():
        raise ConfigError(
            f"Expected class indices as targets of {task.name}, as its loss compares classes; got "
            f"{task.train.targets.dtype}. Give them as whole numbers, or the task a loss of its "
            "own."
        )
    return replace(task, fingerprint=_of_sets(task.train, task.test, *task.also.values()))


def _of_sets(*sets: ExampleSet) -> str:
    return fingerprint(*(tensor for part in sets for tensor in part.tensors()))


def _shape(examples: ExampleSet) -> Sequence[int]:
    return examples.batch(torch.empty(0, dtype=torch.long)).inputs.shape[1:]


def _check_classes(name: str, part: str, targets: Tensor, num_classes: int) -> None:
    """Check that targets [n] are class indices."""
    low, high = (int(targets.min()), int(targets.max())) if len(targets) else (0, 0)
    if not 0 <= low <= high < num_classes:
        remedy = "Set task.num_classes." if low >= 0 else "Negative targets mark missing labels."
        raise ConfigError(
            f"Expected {part} targets of {name} in [0, {num_classes}); got {low} to {high}. "
            f"{remedy}"
        )


def _check_test(name: str, metric: str, targets: Tensor) -> None:
    """Check that a test set is not empty; warn if it has a single class.

    The training set gets no such check: which classes it has is private.
    """
    if not len(targets):
        raise ConfigError(
            f"Expected at least one example for {metric} of {name}; its test set is empty. "
            "Set another split or file."
        )
    if not targets.is_floating_point() and targets.unique().numel() == 1:
        warn_caller(
            f"{metric} of {name}: all {len(targets):,} test examples are of class "
            f"{int(targets[0])}, so a model that always predicts it scores best."
        )


def with_public(task: Task, public: ExampleSet) -> Task:
    """Return a task with public examples and a fingerprint that includes them.

    Args:
        task: with or without public examples.
        public: the examples, which get no noise.
    """
    both = hashlib.sha256((task.fingerprint + fingerprint(*public.tensors())).encode())
    return replace(task, public=public, fingerprint=both.hexdigest())


def check_splits(train: Sequence[str], tests: Sequence[str], *, may_share: bool = False) -> None:
    """Check that no split is used twice, or, unless it may, for both training and testing.

    An example that occurs twice changes a clipped sum by twice the clip norm.

    Raises:
        ConfigError: a split is; the message names it.
    """
    for splits, kind in ((train, "train"), (tests, "test")):
        if not splits or len(set(splits)) < len(splits):
            raise ConfigError(
                f"Expected each {kind} split once; got {list(splits)}. Set task.{kind}_splits."
            )
    if not may_share and (both := sorted(set(train) & set(tests))):
        raise ConfigError(
            f"Expected no split to be used for both training and testing; {both[0]!r} is. "
            "Set task.test_splits."
        )


def fingerprint(*tensors: Tensor) -> str:
    """Return the sha256, in hex, of the tensors' types, shapes and bytes."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(as_bytes(tensor).data)
    return digest.hexdigest()


def as_bytes(tensor: Tensor) -> np.ndarray:
    """Return the bytes of a tensor [...] of any type, bfloat16 too, as [..., bytes a number]."""
    return tensor.detach().cpu().contiguous().unsqueeze(-1).view(torch.uint8).numpy()
