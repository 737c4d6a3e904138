"""Check that a model takes a task's examples and gives an output a class, on made-up examples."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dpexp.grad_sample.hooking import refuse_mixing
from dpexp.models.mode import in_mode
from dpexp.training.probing.made_up import make_up
from dpexp.training.probing.stage import chance_kept, state_kept
from dpexp.types import ConfigError, one_line


def require_fit(model: nn.Module, task: Any, name: str, head: str) -> None:
    """Refuse a model that does not take such examples, or tells no two of them apart.

    Args:
        model: on the CPU; it is not changed.
        task: whose examples' shape counts; none is read.
        name: of the model, for messages.
        head: of its classifier.

    Raises:
        ConfigError: saying what it does instead.
    """
    refuse_mixing(model)
    real = (each.dtype for each in model.parameters() if each.is_floating_point())
    dtype = next(real, torch.float32)
    inputs = make_up(task, model, torch.device("cpu"), dtype).one.inputs
    seen: list[Tensor] = []
    at_head = dict(model.named_modules()).get(head)
    hook = None
    if head and at_head is not None:
        hook = at_head.register_forward_pre_hook(lambda _, args: seen.extend(args[:1]))
    # Images are resized for a library's models alone.
    setting = "model.args" if name.startswith("python:") else "model.resize"
    is_text = getattr(task.train, "longest", None) is not None
    shape = f"examples of shape {list(inputs.shape)}"
    shape = "texts, [n, 3, t] of ids, mask and second text" if is_text else shape
    try:
        with (
            chance_kept(),
            in_mode(model, is_training=False),
            state_kept(model),
            torch.no_grad(),
        ):
            outputs = model(inputs)
    except Exception as error:  # a model may refuse an input in any way
        remedy = "another task or model" if is_text else f"{setting}, or another model"
        raise ConfigError(
            f"Expected {name} to take the task's {shape}; it fails on made-up ones "
            f"({type(error).__name__}: {one_line(error)[:200].rstrip('.')}). Set {remedy}."
        ) from error
    finally:
        if hook is not None:
            hook.remove()
    wanted = [len(inputs), task.num_classes]
    if not isinstance(outputs, Tensor) or list(outputs.shape) != wanted:
        found = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ConfigError(
            f"Expected {name} to give outputs of shape {wanted}, one a class; it gives {found}. "
            "Let it take num_classes, or set another model."
        )
    if seen and len(seen[0]) == 2 and torch.equal(*seen[0]) and not torch.equal(*inputs):
        raise ConfigError(
            f"Expected {name} to tell examples apart; its classifier is given the same for two "
            f"that differ, as where images are too small for it. Set {setting}, or another model."
        )
