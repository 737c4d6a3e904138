"""Whether a test set is made of training examples, which no guarantee covers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import Subset

from dpexp.data.task import as_bytes
from dpexp.data.text import Texts


def is_of_training(train: Any, test: Any, inputs: Tensor, test_inputs: Tensor) -> bool:
    """Return whether most examples of a test set are training ones.

    They are where both are rows of one data set or lie at the same places in memory, or else where
    they are equal (`are_repeated`). Labels do not count: the inputs are private too. Inputs that
    were changed before, as by an augmentation, are told by the first alone.

    Args:
        train: as it was handed over: a pair of tensors, or a data set.
        test: likewise.
        inputs: [n, ...], read from train.
        test_inputs: [m, ...], read from test.
    """
    (data, rows), (other, tests) = _origin(train), _origin(test)
    if data is other and _share(tests, set(rows)) > 0.5:
        return True
    if _share(_places(test_inputs), _places(inputs)) > 0.5:
        return True
    return are_repeated(hashes(inputs), hashes(test_inputs))


def are_repeated(train: Sequence[int], test: Sequence[int]) -> bool:
    """Return whether test examples repeat training ones, by hashes of what they hold.

    Data of few values hold equal examples by nature. The share of new examples that training ones
    would equal then is about that of training examples which another one equals (Good and Turing),
    t. Of the rest, more than half must be equal; where t is above a half, equality says nothing,
    unless the sets are the same altogether.

    Args:
        train: of each training example.
        test: of each test example, at least one.
    """
    counts = Counter(train)
    by_nature = 1 - sum(count == 1 for count in counts.values()) / len(train)
    if by_nature <= 0.5 and _share(test, counts) > (1 + by_nature) / 2:
        return True
    return len(train) == len(test) and counts == Counter(test)


def hashes(rows: Tensor) -> list[int]:
    """Return a hash of each row's bytes, [n]; another process has others."""
    return [hash(row.tobytes()) for row in as_bytes(rows)]


def text_hashes(texts: Texts) -> list[int]:
    """Return a hash of each text's tokens, [n], however far it is padded."""
    ids, lengths, seconds = (tensor.cpu() for tensor in texts.encoded)
    rows = zip(ids.numpy(), lengths.tolist(), seconds.tolist(), strict=True)
    return [hash((row[:length].tobytes(), second)) for row, length, second in rows]


def _origin(data: Any) -> tuple[Any, Sequence[int]]:
    """Return the data set that a subset of subsets is taken from, and the rows."""
    if isinstance(data, Subset):
        whole, rows = _origin(data.dataset)
        return whole, [rows[index] for index in data.indices]
    return data, range(len(data))


def _places(rows: Tensor) -> range:
    """Return where in memory rows begin."""
    step = max(rows.stride(0) * rows.element_size(), 1)
    return range(rows.data_ptr(), rows.data_ptr() + step * len(rows), step)


def _share(those: Sequence[int], held: Collection[int]) -> float:
    return sum(one in held for one in those) / len(those)
