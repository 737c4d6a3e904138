"""Switch between training and eval mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from dpexp.warned import warn_caller


@contextmanager
def in_mode(model: nn.Module, *, is_training: bool) -> Iterator[None]:
    """Put a model in training or eval mode within a block; restore every module's mode afterwards.

    A model that is in training mode already keeps the parts that were put in eval mode, such as a
    body without dropout, as they are.
    """
    before = [(module, module.training) for module in model.modules()]
    if not (is_training and model.training):
        model.train(is_training)
    try:
        yield
    finally:
        for module, was_training in before:
            module.training = was_training


def warn_without_dropout(model: nn.Module) -> None:
    """Warn of dropout that is off as the whole model is in eval mode, as libraries load models.

    A part that alone is in eval mode was put there.
    """
    if model.training:
        return
    for name, part in model.named_modules():
        if isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0:
            warn_caller(
                f"The model is in eval mode, in which it trains without dropout, such as {name}'s. "
                "Call model.train() first if it is to have it."
            )
            return


def parts_in_eval(model: nn.Module) -> bool | list[str]:
    """Return which parts of a model are in eval mode, by name; True: the whole model is.

    A part that is as a whole stands for all in it. One whose own parts are not all in that mode has
    " (alone)" behind its name.
    """
    whole = {name: not any(m.training for m in part.modules()) for name, part in _named(model)}
    if whole[""]:
        return True
    names = []
    for name, part in _named(model):
        parents = (name[:end] for end, letter in enumerate(name) if letter == ".")
        if not part.training and not any(whole[parent] for parent in parents):
            names.append(name if whole[name] else f"{name} (alone)".lstrip())
    return names


def _named(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return model.named_modules(remove_duplicate=False)
