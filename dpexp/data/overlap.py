"""Whether a test set is made of training examples, which no guarantee covers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import Subset

from dpexp.data.examples import Examples
from dpexp.data.task import as_bytes
from dpexp.data.text import Texts

SURE = 5.0
"""Standard deviations beyond which chance is no explanation (ours)."""

MANY = 20
"""Values whose counts have no common factor by chance (ours)."""


def is_of_training(
    train: Any, test: Any, examples: Examples | Texts, tests: Examples | Texts
) -> bool:
    """Return whether most examples of a test set are training ones.

    They are where both are rows of one data set or lie at the same places in memory, or else where
    they are equal (`are_repeated`). Labels do not count: the inputs are private too. Inputs that
    were changed before, as by an augmentation, are told by the first alone.

    Args:
        train: as it was handed over: a pair of tensors, or a data set.
        test: likewise.
        examples: read from train.
        tests: read from test.
    """
    (data, rows), (other, chosen) = _origin(train), _origin(test)
    if data is other and _share(chosen, set(rows)) > 0.5:
        return True
    if isinstance(examples, Examples) and isinstance(tests, Examples):
        if _share(_places(tests.inputs), _places(examples.inputs)) > 0.5:
            return True
    return are_repeated(hashes_of(examples), hashes_of(tests))


def are_repeated(train: Sequence[int], test: Sequence[int]) -> bool:
    """Return whether test examples repeat training ones, by hashes of what they hold.

    Data of few values hold equal examples by nature. The share of new examples that training ones
    would equal then is about that of training examples which another one equals (Good and Turing),
    t. Of the rest, more than half must be equal, and more than chance explains (`SURE`). That share
    says nothing of training examples that were repeated on purpose, all of them or those of a
    class: a sample of them as large as the test set would hold more equal pairs than it. The test
    set's own share is t then.

    Args:
        train: of each training example.
        test: of each test example, at least one.
    """
    if len(train) == len(test) and Counter(train) == Counter(test):
        return True
    counts, tests = _once(Counter(train)), _once(Counter(test))
    by_nature, few = _repeated(counts), min(counts.total(), tests.total())
    if _are_fewer(_pairs(tests, few), _pairs(counts, few)):
        by_nature = _repeated(tests)
    found = sum(times for value, times in tests.items() if value in counts) / tests.total()
    spread = by_nature * (1 - by_nature) * (1 / tests.total() + 2 / counts.total())
    is_sure = by_nature <= 0.5 or found - by_nature > SURE * math.sqrt(spread)
    return found > (1 + by_nature) / 2 and is_sure


def _once(counts: Counter[int]) -> Counter[int]:
    """Return how often each value occurs in one of the equal sets that a set is made of."""
    times = math.gcd(*counts.values()) if len(counts) >= MANY else 1
    return Counter({value: count // times for value, count in counts.items()})


def _repeated(counts: Counter[int]) -> float:
    """Return the share of examples that another one equals."""
    return 1 - sum(count == 1 for count in counts.values()) / counts.total()


def _pairs(counts: Counter[int], size: int) -> float:
    """Return the mean number of equal pairs among so many of the examples."""
    pairs = sum(count * (count - 1) for count in counts.values()) / 2
    return pairs * size * (size - 1) / max(counts.total() * (counts.total() - 1), 1)


def _are_fewer(found: float, due: float) -> bool:
    """Return whether a Poisson variable of mean `due` is seldom as small (its deviance)."""
    if found >= due:
        return False
    ratio = found * math.log(found / due) if found else 0.0
    return 2 * (due - found + ratio) > SURE**2


def hashes_of(examples: Examples | Texts) -> list[int]:
    """Return a hash of each example, [n], whatever its target."""
    return text_hashes(examples) if isinstance(examples, Texts) else hashes(examples.inputs)


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
