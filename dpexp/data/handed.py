"""Read what is handed over in memory: pairs of arrays, or data sets of pairs, of anyone's kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from numbers import Number
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.data import DataLoader

from dpexp.types import ConfigError, one_line
from dpexp.warned import warn_caller

LABELS = ("labels", "label")
"""What the target of an item that is a dict is called."""

WHAT = "a pair of tensors (inputs, targets), or a torch data set of such pairs"


def pair(data: Any, name: str) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of whatever holds them.

    Args:
        data: a pair of tensors or arrays, or a data set of pairs.
        name: "train" or "test", for messages.

    Raises:
        ConfigError: it is neither, its items do not fit each other, or reading it fails.
    """
    if isinstance(data, tuple | list) and len(data) == 2 and _are_arrays(*data):
        try:
            inputs, targets = tensor_of(data[0]), tensor_of(_array_of(data[1]))
        except Exception as error:  # anyone's array, which may raise anything
            raise ConfigError(
                f"Expected {name} to be {WHAT}, of numbers in dense memory; "
                f"{one_line(error)[:200]}."
            ) from error
        return inputs, targets
    is_table = _is_array(data) and not isinstance(data, np.ndarray)
    if is_table or isinstance(data, dict | str) or not hasattr(type(data), "__getitem__"):
        way = "Pass inputs and targets as a pair"
        if isinstance(data, DataLoader):
            way = "Pass the data set that it loads, its .dataset"
        elif isinstance(data, Iterator):
            way = "Read it into a list of such pairs"
        raise ConfigError(f"Expected {name} to be {WHAT}; got {type(data).__name__}. {way}.")
    pairs = _items(data, name) if _length(data, name) else []
    firsts, seconds = [first for first, _ in pairs], [second for _, second in pairs]
    try:
        return _stacked(firsts, "input"), _stacked(seconds, "target").reshape(len(pairs))
    except Exception as error:  # anyone's items, which may raise anything
        raise ConfigError(
            f"Expected {name} to be {WHAT}, all inputs of one shape and type; its items cannot be "
            f"stacked ({type(error).__name__}: {one_line(error)[:200]}). Transform them into "
            "tensors of one shape and type."
        ) from error


def inputs_of(raw: Any) -> Tensor:
    """Return inputs [n, ...] without targets, of an array or of a list of n inputs.

    Raises:
        ConfigError: they are neither, or of several shapes or types.
    """
    try:
        if not _is_array(raw) and not isinstance(raw, list):
            raise TypeError(f"got {type(raw).__name__}")
        inputs = tensor_of(raw) if _is_array(raw) else _stacked(raw, "input")
        if not inputs.ndim:
            raise TypeError("got a single number")
    except Exception as error:  # anyone's array, which may raise anything
        raise ConfigError(
            "Expected inputs as a tensor or array [n, ...], or a list of them; "
            f"{one_line(error)[:200]}. Pass them as dpexp.train takes them, without targets."
        ) from error
    return inputs


def _are_arrays(inputs: Any, targets: Any) -> bool:
    """Return whether a pair holds all inputs and all targets, which may be a plain list."""
    return _is_array(inputs) and (_is_array(targets) or isinstance(targets, list))


def _array_of(targets: Any) -> Any:
    """Return targets as an array where they are a list; words stay words, to be refused."""
    if not isinstance(targets, list):
        return targets
    if not all(isinstance(one, type(targets[0])) for one in targets):
        raise TypeError("got a list of targets of several types. Give them one type")
    return np.array(targets) if targets else np.zeros(0, np.int64)


def _is_array(part: Any) -> bool:
    """Return whether a part of a pair holds all examples, as a tensor or a column of pandas."""
    return isinstance(part, Tensor) or hasattr(type(part), "__array__")


def _length(data: Any, name: str) -> int:
    try:
        return len(data)
    except Exception as error:  # as of data sets that can only be iterated over
        raise ConfigError(
            f"Expected {name} to be {WHAT}, with a length; {type(data).__name__} has none "
            f"({type(error).__name__}: {one_line(error)[:200]}). Read it into tensors."
        ) from error


def _items(data: Any, name: str) -> list[tuple[Any, Any]]:
    """Return the items of a data set, each read once, and warn where a second reading differs."""
    items, index = [], 0
    try:
        for index in range(len(data)):
            items.append(_pair_of(data[index]))
    except Exception as error:  # anyone's data set, which may raise anything
        way = "Remove it, or let its items be (input, target)"
        if len(data) == 2 and isinstance(data[0], list) and isinstance(data[1], list):
            way = "Make a tensor of each list, if they are inputs and targets"
        elif type(data) in (tuple, list) and issubclass(type(data[index]), str | bytes | PathLike):
            way = "Read files into tensors, or train on them by dpexp.run, with task= and data="
        raise ConfigError(
            f"Expected {name} to be {WHAT}; item {index} of {type(data).__name__} cannot be read "
            f"as one ({type(error).__name__}: {one_line(error)[:200]}). {way}."
        ) from error
    if _differs(data, items):
        warn_caller(
            f"Items of {name} differ from one reading to the next, as by a random augmentation: "
            "each is read once, and is what it was then. Its run is found again by no later call."
        )
    return items


def _pair_of(item: Any) -> tuple[Any, Any]:
    """Return an item's input and target.

    Raises:
        Exception: it has none, or numbers behind the first two; of a dict, unless there is a label
            and one thing else.
    """
    if isinstance(item, str | bytes | PathLike):
        raise TypeError("it is text, not an input and its target")
    if not isinstance(item, Mapping):
        more = item[2:] if isinstance(item, tuple | list | Tensor | np.ndarray) else ()
        if any(_is_number(part) for part in more):  # a second input, a target, a weight?
            raise TypeError(
                f"it has {len(item)} parts, and which is the target is not clear. Leave an index "
                "or a weight out; several inputs go into one tensor, which the model takes apart"
            )
        return item[0], item[1]
    label, rest = _label_of(item), [key for key in item if key not in LABELS]
    if len(rest) != 1:
        raise TypeError(f"a dict of a label and {', '.join(map(str, rest)) or 'nothing'}")
    return item[rest[0]], label


def _is_number(part: Any) -> bool:
    """Return whether a model or a loss could read a part of an item: numbers, however held."""
    if isinstance(part, Mapping):
        return any(map(_is_number, part.values()))
    if isinstance(part, list | tuple | set | frozenset):
        return any(map(_is_number, part))
    return isinstance(part, Number | Tensor | np.ndarray | np.generic)


def _label_of(item: Mapping[str, Any]) -> Any:
    named = [key for key in LABELS if key in item]
    if len(named) != 1:
        raise TypeError(f"a dict with {len(named)} of {' and '.join(LABELS)}, not one")
    return item[named[0]]


def has_tokens(data: Any, needed: str) -> bool:
    """Return whether items are dicts of tokens, as those of tokenised texts in datasets."""
    if isinstance(data, Tensor | Mapping | str) or not hasattr(type(data), "__getitem__"):
        return False
    with suppress(Exception):  # anyone's data set, which may raise anything
        return isinstance(data[0], Mapping) and needed in data[0]
    return False


def tokenised(data: Any, name: str, kinds: Sequence[str]) -> tuple[dict[str, Tensor], Tensor]:
    """Return tokens [n, t] by kind, padded on the right with zeros, and targets [n].

    Args:
        data: items are dicts of some of the kinds, [t_i] each, and a label. Other entries, such as
            the text, are left out.
        name: "train" or "test", for messages.
        kinds: of tokens; the first is in every item, the second is their mask.

    Raises:
        ConfigError: naming an item that is none.
    """
    index, rows, labels = 0, [], []
    ids, mask = kinds[:2]
    try:
        for index in range(_length(data, name)):
            item = data[index]
            row = {kind: tensor_of(item[kind]) for kind in kinds if kind in item}
            row.setdefault(mask, torch.ones_like(row[ids]))
            if {each.shape for each in row.values()} != {(len(row[ids]),)}:
                raise TypeError("tokens that are not as many as their mask and kinds")
            if not len(row[ids]):
                raise TypeError("it has no token")
            rows.append(row)
            labels.append(tensor_of(_label_of(item)))
            if labels[-1].numel() != 1:
                raise TypeError(f"a label of shape {list(labels[-1].shape)}, not one class")
        whole = {
            kind: torch.nn.utils.rnn.pad_sequence([row[kind] for row in rows], batch_first=True)
            for kind in dict.fromkeys(kind for row in rows for kind in row)
        }
        return whole, _stacked(labels, "target").reshape(len(labels))
    except ConfigError:
        raise
    except Exception as error:  # anyone's items, which may raise anything
        raise ConfigError(
            f"Expected items of {name} as dicts of {', '.join(kinds)} and a label; item {index} "
            f"cannot be read as one ({type(error).__name__}: {one_line(error)[:200]}). Remove it, "
            "or let a tokenizer make it anew."
        ) from error


def _differs(data: Any, items: Sequence[tuple[Any, Any]]) -> bool:
    """Return whether the first, middle or last item is another one when it is read again."""
    with suppress(Exception):  # what cannot be compared is stacked, or refused, afterwards
        for index in {0, len(items) // 2, len(items) - 1}:
            pairs = zip(items[index], _pair_of(data[index]), strict=False)
            if not all(
                tensor_of(a).equal(tensor_of(b)) or tensor_of(a).isnan().any() for a, b in pairs
            ):
                return True
    return False


def _stacked(values: Sequence[Any], what: str) -> Tensor:
    """Return the values of all items as one tensor, none of which another one's type changes.

    Raises:
        TypeError: tensors or arrays of several types are among them.
        ValueError: they are of several shapes.
    """
    if not values:
        return torch.empty(0, 0) if what == "input" else torch.empty(0, dtype=torch.long)
    tensors = [tensor_of(value) for value in values]
    for index, tensor in enumerate(tensors):
        if tensor.shape != tensors[0].shape:
            raise ValueError(
                f"{what} {index} has shape {list(tensor.shape)}, {what} 0 {list(tensors[0].shape)}"
            )
    whole = torch.stack(tensors)
    for index, (value, tensor) in enumerate(zip(values, tensors, strict=True)):
        has_type = isinstance(value, Tensor | np.ndarray | np.generic)
        if tensor.dtype != whole.dtype and (has_type or what == "target"):
            raise TypeError(
                f"{what} {index} is of {name_of(tensor)}, others of {name_of(whole)}, which it "
                "would become without a word"
            )
    return whole


def tensor_of(values: Any) -> Tensor:
    """Return numbers as a tensor, of the same memory where torch can use it.

    Raises:
        TypeError: they are none, or a tensor does not hold them one by one.
    """
    if np.ma.is_masked(values):
        raise TypeError("got an array with masked values. Fill them in")
    is_other = not isinstance(values, Tensor) and hasattr(type(values), "__array__")
    values = np.asarray(values) if is_other or isinstance(values, str | bytes) else values
    if isinstance(values, np.ndarray):
        if values.dtype.kind in "OSU":
            raise TypeError(
                f"got an array of {values.dtype}. Convert it, words of classes to their places in "
                "a list of your own"
            )
        values = values.astype(values.dtype.newbyteorder("="), copy=False)
        is_odd = min(values.strides, default=0) < 0 or not values.flags.writeable
        values = values.copy() if is_odd else values  # else torch refuses it, or warns
    tensor = torch.as_tensor(values).detach().resolve_neg()
    if isinstance(tensor, FakeTensor):
        raise TypeError("got a fake tensor, which holds no numbers. Make it outside FakeTensorMode")
    is_plain = not (tensor.is_nested or tensor.is_quantized or tensor.is_meta)
    if tensor.layout != torch.strided or not is_plain:
        raise TypeError("got a tensor that is sparse, nested, quantized or meta. Make it dense")
    return tensor.as_subclass(Tensor)


def name_of(tensor: Tensor) -> str:
    """Return the word for a tensor's type."""
    return str(tensor.dtype).removeprefix("torch.")
