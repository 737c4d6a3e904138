"""Networks of ours that this process has found sound: a table's next run need not try them again.

Only classes of dpexp and torch, and the encoders of the papers, are known. Their code stays as it
is, and no weight decides whether they mix examples. A user's own module is tried in every run.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks_of_all

from dpexp.grad_sample.hooking import hook_at_parent, hooked_at_parent
from dpexp.models.architecture import code_digest
from dpexp.training.probing.made_up import MadeUp

OURS = ("dpexp.models.", "torch.nn.modules.", "transformers.activations")
OURS += ("transformers.models.bert.", "transformers.models.roberta.")
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

_FOUND: dict[Hashable, frozenset[str]] = {}
"""The modules whose hooks a sound network has at the module around them."""


def key_of(
    model: nn.Module, parameters: Sequence[str], task: Any, examples: MadeUp, device: torch.device
) -> Hashable | None:
    """Return what decides the outcome of a check; None where that cannot be said.

    Args:
        model: whose modules may be of any class.
        parameters: names of those that a method trains.
        task: for its loss.
        examples: that the check would take.
        device: the model's.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    if hooks_of_all._has_any_global_hook() or not all(map(_is_ours, modules.values())):
        return None
    state, crowd = model.state_dict(keep_vars=True), examples.crowd
    return (
        code_digest(model),
        tuple((name, type(m), type(m).forward, m.training) for name, m in modules.items()),
        tuple((name, *_form(each), each.requires_grad) for name, each in state.items()),
        tuple(parameters),
        task.loss,
        tuple((*_form(each), float(each.double().sum())) for each in (crowd.inputs, crowd.targets)),
        str(device),
        torch.get_default_dtype(),
    )


def is_known(key: Hashable | None, model: nn.Module) -> bool:
    """Return whether such a network was found sound, and then hook this one in the same way."""
    if key is None or key not in _FOUND:
        return False
    for name in sorted(_FOUND[key]):
        hook_at_parent(model, name)
    return True


def remember(key: Hashable | None, model: nn.Module) -> None:
    """Note that a network is sound."""
    if key is not None:
        _FOUND[key] = hooked_at_parent(model)


def _is_ours(module: nn.Module) -> bool:
    """Return whether a module does what its class of ours or of torch says."""
    known = type(module).__module__.startswith(OURS) and "forward" not in vars(module)
    return known and not any(getattr(module, hooks) for hooks in HOOKS)


def _form(tensor: Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype
