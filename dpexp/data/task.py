"""A task: examples as tensors, the numbers declared about them, loss and metric."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dpexp.records.predictions import HELD_OUT
from dpexp.types import Batch, ConfigError


class ExampleSet(Protocol):
    """What a run reads examples from: `Examples`, `dpexp.data.text.Texts`, or one's own.

    Attributes:
        targets: [n], class indices, or numbers in a regression.
    """

    @property
    def targets(self) -> Tensor:
        """Return what is to be predicted, [n]."""

    @property
    def nbytes(self) -> int:
        """Memory of the examples, in bytes."""

    def __len__(self) -> int:
        """Return n."""

    def tensors(self) -> tuple[Tensor, ...]:
        """Return all tensors, to be hashed."""

    def to(self, device: torch.device | str) -> Self:
        """Return the same examples on a device."""

    def take(self, indices: Tensor) -> Self:
        """Return the examples of the indices [m]."""

    def batch(self, indices: Tensor) -> Batch:
        """Return the batch of the indices [m] (m may be 0)."""

    def micro_batches(self, indices: Tensor, size: int) -> Iterable[Tensor]:
        """Split indices [m] (m may be 0) into micro-batches of at most `size` examples' cost."""


AnySet = TypeVar("AnySet", bound=ExampleSet)


@dataclass(frozen=True, eq=False)
class Examples:
    """A set of examples, small enough for one device.

    Attributes:
        inputs: [n, ...]; uint8 in [0, 255], scaled to [0, 1] in batches, or floats or other
            integers, used as stored.
        targets: [n], class indices, or numbers in a regression.
        mean: of the inputs in [0, 1], one number per channel (dimension 1); None: not normalised.
        std: likewise.
    """

    inputs: Tensor
    targets: Tensor
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None

    def __post_init__(self) -> None:
        """Check mean and std.

        Raises:
            ConfigError: their length is not the number of channels or one, or a std is not
                positive.
        """
        for name, lowest in (("mean", -math.inf), ("std", 0.0)):
            values = getattr(self, name)
            if values is not None and not _are_above(lowest, values, self.inputs.shape[1]):
                which = "positive numbers" if name == "std" else "numbers"
                raise ConfigError(
                    f"Expected task.{name} to be {which}, one a channel or one for all; got "
                    f"{list(values)}. Set task.{name}."
                )

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def nbytes(self) -> int:
        """Memory of the examples, in bytes."""
        return self.inputs.nbytes + self.targets.nbytes

    def tensors(self) -> tuple[Tensor, ...]:
        """Return all tensors, to be hashed."""
        return self.inputs, self.targets

    def to(self, device: torch.device | str) -> Examples:
        """Return the same examples on a device."""
        return replace(self, inputs=self.inputs.to(device), targets=self.targets.to(device))

    def take(self, indices: Tensor) -> Examples:
        """Return the examples of the indices [m]."""
        return replace(self, inputs=self.inputs[indices], targets=self.targets[indices])

    def batch(self, indices: Tensor) -> Batch:
        """Return the normalised batch of the indices [m] (m may be 0); uint8 becomes float32."""
        indices = indices.to(self.inputs.device)
        inputs = self.inputs.index_select(0, indices)
        inputs = inputs.to(torch.float32) if inputs.dtype == torch.uint8 else inputs
        scale, shift = self._affine
        if scale is not None and shift is not None:
            inputs = inputs.mul_(scale).sub_(shift)
        return Batch(inputs, self.targets.index_select(0, indices))

    def micro_batches(self, indices: Tensor, size: int) -> Iterable[Tensor]:
        """Split indices [m] (m may be 0) into micro-batches of at most `size`."""
        return indices.split(size) if len(indices) else ()

    @cached_property
    def _affine(self) -> tuple[Tensor | None, Tensor | None]:
        """Fold [0, 255] -> [0, 1] -> normalised into one scale and shift, [1, c, 1, ...]."""
        unit = 255.0 if self.inputs.dtype == torch.uint8 else 1.0
        if self.mean is None and unit == 1.0:
            return None, None
        mean = torch.tensor([0.0] if self.mean is None else list(self.mean), dtype=torch.float64)
        std = torch.tensor([1.0] if self.std is None else list(self.std), dtype=torch.float64)
        shape = (1, -1) + (1,) * (self.inputs.ndim - 2)
        device = self.inputs.device
        scale, shift = (1.0 / (unit * std)).float(), (mean / std).float()
        return scale.view(shape).to(device), shift.view(shape).to(device)


def _are_above(lowest: float, values: Sequence[float], channels: int) -> bool:
    are_numbers = all(isinstance(v, int | float) and lowest < v < math.inf for v in values)
    return are_numbers and len(values) in (1, channels)


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


def in_tensors(examples: ExampleSet) -> Examples:
    """Return examples that are inputs and targets in tensors, and nothing else, as such."""
    assert isinstance(examples, Examples), type(examples).__name__
    return examples


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
        tests = (self.test, *self.also.values())
        return fingerprint(*(tensor for part in tests for tensor in part.tensors()))


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
        fingerprint=fingerprint(*(t for part in (train, *tests.values()) for t in part.tensors())),
        metric=metric,
        also=also or {},
        preprocessing=preprocessing,
    )


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
        warnings.warn(
            f"{metric} of {name}: all {len(targets):,} test examples are of class "
            f"{int(targets[0])}, so a model that always predicts it scores best.",
            stacklevel=4,
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


def subset(examples: AnySet, size: int | None, seed: int) -> AnySet:
    """Return the first `size` examples of a permutation drawn from `seed`; all for None.

    Raises:
        ConfigError: there are fewer than `size` examples.
    """
    if size is None:
        return examples
    if not 1 <= size <= len(examples):
        raise ConfigError(f"Expected task.train_size in [1, {len(examples)}]; got {size}.")
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(seed))
    return examples.take(order[:size])


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
