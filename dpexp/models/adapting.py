"""Let a library's model take a task's examples and return logits.

It is done by hooks on the model itself, so that its parameters keep the names that its library
gives them.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpexp.models import transformers_layers, vision_layers
from dpexp.models.blocks import in_layout, require_layout
from dpexp.models.notes import note
from dpexp.models.vocabulary import token_table
from dpexp.types import ConfigError, require_word

NORMALISE = ("own", "task")

GREY, COLOURS = 1, 3

UNEXPECTED = re.compile(r"([\w.]+)\(\) got an unexpected keyword argument '(\w+)'")
"""Python's message for an argument that a function does not take."""


def returns_logits(model: nn.Module) -> None:
    """Have a model return a tensor where it returns several things, or an object with logits."""

    def after(_: nn.Module, __: Any, output: Any) -> Tensor | None:
        return None if isinstance(output, Tensor) else logits_of(output)

    model.register_forward_hook(after)


def logits_of(output: Any) -> Any:
    """Return the logits in what a classifier returns: it, what has the name, or what is first."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        return output["logits"] if "logits" in output else next(iter(output.values()))
    if hasattr(output, "logits"):
        return output.logits
    if dataclasses.is_dataclass(output):
        return getattr(output, dataclasses.fields(output)[0].name)
    return output[0] if isinstance(output, list | tuple) and output else output


def takes_texts(model: nn.Module, config: Any) -> None:
    """Have a classifier of transformers take tokens [n, 3, t]: ids, mask, second text.

    Args:
        model: changed by a hook.
        config: its configuration, whose padding token is set.
    """
    transformers_layers.register(model)
    takes = inspect.signature(model.forward).parameters
    text = config.get_text_config()
    pad = text.pad_token_id
    if pad is None:  # as GPT-2; the classifier reads the last token that is not this one
        end = text.eos_token_id
        pad = end[0] if isinstance(end, list) else end or 0
    table = token_table(model)
    if table is not None and pad >= table.num_embeddings:  # of a vocabulary that was made smaller
        pad = 0
    text.pad_token_id = config.pad_token_id = pad
    kinds = getattr(config, "type_vocab_size", 0) or 0
    end = config.eos_token_id if config.is_encoder_decoder else None

    is_left = getattr(config, "summary_type", None) == "last"  # as XLNet, which reads the last

    def before(_: nn.Module, args: Any, kwargs: Any) -> tuple[Any, dict[str, Any]] | None:
        if len(args) != 1 or kwargs:
            return None
        ids, mask, second = (_padded_left(args[0]) if is_left else args[0]).unbind(1)
        ids = torch.where(mask.bool(), ids, pad)
        if end is not None:
            ids = _ended(ids, mask, end, pad)
        given = {"input_ids": ids}
        if "attention_mask" in takes:
            given["attention_mask"] = mask
        if "token_type_ids" in takes and kinds:
            given["token_type_ids"] = second if kinds > 1 else torch.zeros_like(second)
        return (), given

    model.register_forward_pre_hook(before, with_kwargs=True)


def _padded_left(tokens: Tensor) -> Tensor:
    """Return tokens [n, 3, t] with their padding before them."""
    length = tokens.shape[2]
    at = torch.arange(length, device=tokens.device)
    source = at - (length - tokens[:, 1].sum(1, keepdim=True))
    moved = tokens.gather(2, source.clamp(min=0)[:, None].expand_as(tokens))
    return moved * (source >= 0)[:, None]


def _ended(ids: Tensor, mask: Tensor, end: int, pad: int) -> Tensor:
    """Return texts that end with the end token and have no other, as T5 and BART require."""
    at = torch.arange(ids.shape[1], device=ids.device)
    is_last = at == mask.sum(1, keepdim=True) - 1
    return torch.where(is_last, end, torch.where(ids == end, pad, ids))


def takes_images(
    model: nn.Module,
    *,
    size: Sequence[int],
    channels: int,
    reads: str | None,
    resize: int | None,
    normalise: str,
    channels_last: bool | str,
    own: tuple[Sequence[float], Sequence[float]] | None,
    task: tuple[Sequence[float] | None, Sequence[float] | None],
) -> None:
    """Have a classifier of colour images take a task's images [n, c, h, w], normalised as there.

    Args:
        model: changed by a hook.
        size: height and width of the task's images, in pixels.
        channels: of the task's images; one is repeated three times.
        reads: the name of the model's input; None: its first.
        resize: side that images are resized to, bilinearly; None: they stay as they are.
        normalise: "own": by the model's mean and std in place of the task's; "task": as they come.
        channels_last: whether images go in as [n, h, w, c] in memory, which most networks keep:
            True, False, or "auto", where our kernels make it faster.
        own: the model's mean and std of inputs in [0, 1]; None: it has none.
        task: those of the task; None each: its images are not normalised.

    Raises:
        ConfigError: for a value outside its range.
    """
    require_word("model.normalise", normalise, NORMALISE)
    check_resize(resize)
    require_layout(channels_last)
    vision_layers.register(model)
    words = [f"{size[0]} x {size[1]} pixels"]
    if resize is not None:
        words.append(f"resized to {resize} x {resize}")
    if channels == GREY:
        words.append("one channel repeated three times")
    scale = shift = None
    if normalise == "own" and own is not None:
        of_task = (task[0] or [0.0], task[1] or [1.0])
        mean, std, own_mean, own_std = (
            torch.tensor(list(each), dtype=torch.float64).view(-1, 1, 1)
            for each in (*of_task, *own)
        )
        scale, shift = std / own_std, (mean - own_mean) / own_std
        words.append(f"normalised by the model's own mean {list(own[0])} and std {list(own[1])}")
    else:
        words.append("normalised as the task's")
    note(model, "images", ", ".join(words))

    def before(_: nn.Module, args: Any, kwargs: Any) -> tuple[Any, dict[str, Any]] | None:
        if len(args) != 1 or kwargs:
            return None
        (x,) = args
        if x.shape[1] == GREY:
            x = x.expand(-1, COLOURS, -1, -1)
        if resize is not None:
            x = F.interpolate(x, (resize, resize), mode="bilinear", antialias=True)
        if scale is not None and shift is not None:
            x = x * scale.to(x) + shift.to(x)
        x = in_layout(x, channels_last)
        return ((x,), {}) if reads is None else ((), {reads: x})

    model.register_forward_pre_hook(before, with_kwargs=True)


def check_resize(resize: int | None) -> None:
    """Refuse a side that is no whole number >= 1.

    Raises:
        ConfigError: naming the setting.
    """
    if resize is not None and (type(resize) is not int or resize < 1):
        raise ConfigError(
            f"Expected model.resize to be a side in pixels, or null; got {resize}. Set "
            "model.resize=224, or the side that the model was pretrained at."
        )


def require_images(repo: str, input_shape: Sequence[int], max_length: int | None) -> None:
    """Refuse a task that is not of images with one or three channels.

    Raises:
        ConfigError: naming the shape.
    """
    if max_length is not None or len(input_shape) != 3 or input_shape[0] not in (GREY, COLOURS):
        found = "texts" if max_length is not None else f"inputs of shape {tuple(input_shape)}"
        raise ConfigError(
            f"Expected a task of images with 1 or 3 channels for {repo}; this one has {found}. "
            "Set task, or model."
        )


def nearest_argument(error: BaseException) -> str:
    """Return a sentence that suggests the argument nearest to one that was refused, or ""."""
    found, frames = UNEXPECTED.search(str(error)), [*traceback.walk_tb(error.__traceback__)]
    if not isinstance(error, TypeError) or found is None or not frames:
        return ""
    called, word = found.groups()
    frame = frames[-1][0]  # which made the call, and knows the function by some name
    known = [*frame.f_locals.values(), *frame.f_globals.values()]
    for each in known:
        of_class = f"{getattr(each, '__qualname__', '')}.__init__"
        if callable(each) and called in (getattr(each, "__qualname__", ""), of_class):
            with suppress(ValueError):
                options = [*inspect.signature(each).parameters]
                near = get_close_matches(word, options, 1, 0.5)
                return f" Did you mean {near[0]}?" if near else ""
    return ""


def set_dropouts(model: nn.Module, value: float | None) -> None:
    """Set the probability of every dropout.

    Args:
        model: changed in place.
        value: 0: nothing is dropped, neither numbers nor paths nor layers; in (0, 1): of torch's
            dropout layers; None: leave all as they are.

    Raises:
        ConfigError: for a value outside its range.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ConfigError(
            f"Expected model.dropout in [0, 1), or null; got {value}. Set model.dropout."
        )
    changed = []
    for name, module in model.named_modules():
        for key in _probabilities(module, all_kinds=value == 0):
            if (before := vars(module)[key]) != value:
                setattr(module, key, float(value))
                place = f"{name or 'the model itself'}{'' if key == 'p' else f'.{key}'}"
                changed.append(f"{place} ({before:g})")
    if changed:
        note(model, "dropout", changed, f"dropout set to {value:g}, in place of")


def _probabilities(module: nn.Module, *, all_kinds: bool) -> list[str]:
    """Return the attributes of a module that hold the probability of a dropout.

    They are named for it in all libraries, but for torch's and torchvision's p.

    Args:
        module: any.
        all_kinds: also those of paths and layers that are dropped; else torch's dropout alone.
    """
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return ["p"]
    if not all_kinds:
        return []
    named = [key for key in vars(module) if "drop" in key.lower()]
    named += ["p"] if "stochasticdepth" in type(module).__name__.lower() else []
    return [key for key in named if type(vars(module)[key]) is float and 0 < vars(module)[key] < 1]
