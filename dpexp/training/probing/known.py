"""Networks of ours that this process has found sound: a table's next run need not try them again.

Only classes of dpexp and torch, and the encoders of the papers, are known. Their code stays as it
is, and no weight decides whether they mix examples. A user's own module is tried in every run.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks_of_all

from dpexp.grad_sample.attention import is_taken_apart
from dpexp.grad_sample.hooking import hook_at_parent, hooked_at_parent
from dpexp.grad_sample.reading import Reads, reads_in, see_reads
from dpexp.grad_sample.shared_inputs import Seen, see, seen_in
from dpexp.models.architecture import code_digest
from dpexp.training.probing.made_up import MadeUp

OURS = (
    *("dpexp.models.", "torch.nn.modules.", "transformers.activations"),
    *("transformers.models.bert.", "transformers.models.roberta."),
)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Found(NamedTuple):
    """What a trial leaves behind of a sound network, beside that it is sound.

    Attributes:
        hooked: the modules whose hooks it has at the module around them.
        seen: of its modules, by name.
        reads: of those that read parameters, by name.
    """

    hooked: frozenset[str]
    seen: Mapping[str, Seen]
    reads: Mapping[str, Reads | None]


_FOUND: dict[Hashable, Found] = {}


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
    state = dict(model.named_parameters()) | dict(model.named_buffers())
    crowd = examples.crowd
    key = (
        code_digest(model),
        tuple((name, type(m), type(m).forward, m.training) for name, m in modules.items()),
        tuple((name, *_form(each), each.requires_grad) for name, each in state.items()),
        tuple(parameters),
        task.loss,
        tuple(
            (*_form(each), float(each.double().sum()).hex())
            for each in (crowd.inputs, crowd.targets)
        ),
        str(device),
        torch.get_default_dtype(),
    )
    return key if isinstance(task.loss, FunctionType) else None  # whose name and code are one


def is_known(key: Hashable | None, model: nn.Module) -> bool:
    """Return whether such a network was found sound; what its trial left is then this one's."""
    if key is None or (found := _FOUND.get(key)) is None:
        return False
    for name in sorted(found.hooked):
        hook_at_parent(model, name)
    see(model, found.seen)
    see_reads(model, found.reads)
    return True


def remember(key: Hashable | None, model: nn.Module) -> None:
    """Note that a network is sound."""
    if key is not None:
        _FOUND[key] = Found(hooked_at_parent(model), seen_in(model), reads_in(model))


def _is_ours(module: nn.Module) -> bool:
    """Return whether a module does what its class of ours or of torch says."""
    known = type(module).__module__.startswith(OURS) and "forward" not in vars(module)
    known = known and not is_taken_apart(module)  # into modules that are not the model's
    return known and not any(getattr(module, hooks) for hooks in HOOKS)


def _form(tensor: Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype
