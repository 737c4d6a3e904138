"""A task of examples that are handed over in memory, as tensors or data sets of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dpexp.data.examples import Examples
from dpexp.data.handed import has_tokens, name_of, pair, tensor_of, tokenised
from dpexp.data.regression import squared_error
from dpexp.data.task import Task, assemble
from dpexp.data.text import Encoded, Texts
from dpexp.types import ConfigError, one_line

TOKENS = ("input_ids", "attention_mask", "token_type_ids")
"""What a tokenizer of transformers returns: the ids are needed, the rest is optional."""


def examples_of(data: Any, name: str) -> Examples | Texts:
    """Return examples of what was handed over.

    Args:
        data: (inputs [n, ...], targets [n]) as tensors or arrays, or a data set whose items are
            (input, target). Inputs are uint8 in [0, 255], which become [0, 1], or floats or other
            integers, such as tokens' ids, used as they are. Targets are class indices, or floats
            in a regression. Inputs may also be what a tokenizer of transformers returns, [n, t]
            each, padded on the right; a model of transformers takes them. Items may be dicts with a
            label, as those of Hugging Face's datasets: tokens, of any lengths, or one input.
        name: "train" or "test", for messages.

    Raises:
        ConfigError: if it is neither, or inputs and targets do not fit each other.
    """
    if isinstance(data, Examples):
        return data
    is_two = isinstance(data, tuple | list) and len(data) == 2
    if is_two and isinstance(data[0], Mapping) and not isinstance(data[1], Mapping):
        return texts_of(data[0], data[1], name)
    if has_tokens(data, TOKENS[0]):
        return texts_of(*tokenised(data, name, TOKENS), name)
    inputs, targets = pair(data, name)
    if inputs.ndim >= 2 and targets.ndim == 1 and len(inputs) != len(targets):
        raise ConfigError(
            f"Expected {name} targets, one for each of the {len(inputs)} inputs; got "
            f"{len(targets)}. Pass both in the same order and number."
        )
    if inputs.ndim < 2 or targets.ndim != 1:
        raise ConfigError(
            f"Expected {name} inputs of shape [n, ...] and targets of shape [n], one class index "
            f"or number an example; got {list(inputs.shape)} and {list(targets.shape)}."
            + _of_columns(targets)
        )
    if not len(inputs):
        raise ConfigError(f"Expected at least one {name} example; got none.")
    if inputs.dtype == torch.bool or inputs.is_complex():
        raise ConfigError(
            f"Expected {name} inputs as uint8 in [0, 255], as floats or as integers; got "
            f"{name_of(inputs)}. Convert them."
        )
    if targets.is_floating_point():
        if not (is_number := targets.float().isfinite()).all():
            at = int(is_number.logical_not().nonzero()[0])
            raise ConfigError(
                f"Expected {name} targets as numbers that float32 holds; example {at} has "
                f"{float(targets[at])}. Leave out examples without a target, or scale targets down."
            )
        return Examples(inputs, targets.float())
    if targets.dtype == torch.bool or targets.is_complex():
        way = " Give targets.long()." if targets.dtype == torch.bool else ""
        raise ConfigError(f"Expected {name} targets as class indices; got {name_of(targets)}.{way}")
    return Examples(inputs, targets.long())


def _of_columns(targets: Tensor) -> str:
    """Return what to give in place of targets [n, k]: one number an example, or k of which one."""
    if targets.ndim != 2:
        return ""
    way = "flatten()" if targets.shape[1] == 1 else "argmax(1), if they are one-hot"
    return f" Give targets.{way}."


def texts_of(inputs: Mapping[str, Any], targets: Any, name: str) -> Texts:
    """Return texts of what a tokenizer of transformers returned.

    Args:
        inputs: `TOKENS`, [n, t] each.
        targets: [n], class indices; None: all 0.
        name: of the set, for messages.

    Raises:
        ConfigError: they are none, or padded on the left.
    """
    keys = [*map(str, inputs)]
    if TOKENS[0] not in keys or not {*keys} <= {*TOKENS}:
        raise ConfigError(
            f"Expected {name} inputs as a dict of input_ids and, where there are any, "
            f"attention_mask and token_type_ids; got {', '.join(keys)[:200] or 'nothing'}. Put "
            "other inputs of several parts into one tensor, which the model takes apart."
        )
    given = {key: _whole(inputs[key], f"{name} {key}") for key in keys}
    ids = given["input_ids"]
    if ids.ndim != 2 or not ids.numel() or {each.shape for each in given.values()} != {ids.shape}:
        shapes = ", ".join(str(list(each.shape)) for each in given.values())
        raise ConfigError(f"Expected {name} {', '.join(keys)} of one shape [n, t]; got {shapes}.")
    mask = given.get("attention_mask", torch.ones_like(ids))
    kinds = given.get("token_type_ids", torch.zeros_like(ids)) * mask
    lengths, at = mask.sum(1), torch.arange(ids.shape[1])
    seconds = torch.where(kinds.any(1), kinds.argmax(1), lengths)
    is_token = at < lengths[:, None]
    if not torch.equal(is_token.long(), mask) or lengths.min() < 1:
        raise ConfigError(
            f"Expected {name} attention_mask of ones and then zeros, at least one 1 a text; got "
            "others. Set padding_side='right' of the tokenizer."
        )
    if not torch.equal(((at >= seconds[:, None]) & is_token).long(), kinds):
        raise ConfigError(
            f"Expected {name} token_type_ids of zeros and then ones in each text; got others."
        )
    classes = torch.zeros_like(lengths) if targets is None else _whole(targets, f"{name} targets")
    if classes.shape != lengths.shape:
        raise ConfigError(
            f"Expected {name} targets of shape [{len(ids)}], one a text; got {list(classes.shape)}."
        )
    encoded = Encoded(torch.where(is_token, ids, 0).int(), lengths.int(), seconds.int())
    return Texts(encoded, classes, ids.shape[1])


def _whole(values: Any, what: str) -> Tensor:
    """Return whole numbers as a tensor on the CPU, in int64."""
    try:
        tensor = tensor_of(values).cpu()
    except Exception as error:  # anyone's object, which may raise anything
        raise ConfigError(f"Expected {what} as a tensor; {one_line(error)[:200]}.") from error
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise ConfigError(f"Expected {what} as whole numbers; got {name_of(tensor)}.")
    return tensor.long()


def task_of(
    train: Examples | Texts,
    test: Examples | Texts,
    *,
    num_classes: int,
    delta: float,
    dataset_size: int,
) -> Task:
    """Return the task of examples in memory.

    Args:
        train: the private examples.
        test: the examples that the metric is computed on.
        num_classes: outputs of the model; 1 in a regression.
        delta: of the (eps, delta) guarantee.
        dataset_size: the declared N.

    Raises:
        ConfigError: the examples do not fit each other, or not what is declared.
    """
    if isinstance(train, Texts) or isinstance(test, Texts):
        return _task_of_texts(train, test, num_classes, delta, dataset_size)
    if train.inputs.shape[1:] != test.inputs.shape[1:] or train.inputs.dtype != test.inputs.dtype:
        raise ConfigError(
            "Expected test inputs of the train inputs' shape and type; got "
            f"{list(test.inputs.shape[1:])} and {list(train.inputs.shape[1:])}, "
            f"{name_of(test.inputs)} and {name_of(train.inputs)}."
        )
    is_regression = train.targets.is_floating_point()
    if is_regression != test.targets.is_floating_point() or is_regression != (num_classes == 1):
        raise ConfigError(
            "Expected class indices for a model of several outputs, or floats for one of one "
            f"output; got {name_of(train.targets)} and {name_of(test.targets)} targets, and "
            f"{num_classes} outputs. Convert the targets, or give the model an output a class."
        )
    _require_classes(train, test, num_classes)
    task = assemble(
        "given",
        train,
        test,
        num_classes=num_classes,
        delta=delta,
        dataset_size=dataset_size,
        size_word="dataset_size",
    )
    if is_regression:
        return replace(task, metric="test_mse", loss=squared_error, score=squared_errors)
    return task


def _require_classes(train: Any, test: Any, num_classes: int) -> None:
    """Refuse class indices that are none of the model's outputs."""
    for name, part in (("train", train), ("test", test)):
        targets = part.targets
        if targets.is_floating_point() or not len(targets):
            continue
        low, high = int(targets.min()), int(targets.max())
        if not 0 <= low <= high < num_classes:
            remedy = (
                "Leave out what negative targets mark, such as missing labels"
                if low < 0
                else "Number the classes from 0, or give the model as many outputs"
            )
            raise ConfigError(
                f"Expected {name} targets in [0, {num_classes}), as the model has {num_classes} "
                f"outputs; got {low} to {high}. {remedy}."
            )


def _task_of_texts(
    train: Any, test: Any, num_classes: int, delta: float, dataset_size: int
) -> Task:
    if type(train) is not type(test) or num_classes < 2:
        kinds = " and ".join("a dict" if isinstance(p, Texts) else "none" for p in (train, test))
        raise ConfigError(
            "Expected train and test inputs both as a dict of tokens, and a model of two classes "
            f"or more; got {kinds}, and {num_classes} outputs."
        )
    _require_classes(train, test, num_classes)
    longest = max(train.longest, test.longest)
    return assemble(
        "given",
        replace(train, longest=longest),
        replace(test, longest=longest),
        num_classes=num_classes,
        delta=delta,
        dataset_size=dataset_size,
        input_shape=(3, longest),
        size_word="dataset_size",
    )


def squared_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return each example's (output - target)^2, outputs [n, 1], targets [n]."""
    return (outputs[:, 0] - targets).square()
