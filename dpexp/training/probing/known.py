"""Networks that were found sound on this machine: the next run need not try them again.

Known are classes of dpexp and of the libraries of models, whose code stays as it is. No weight
decides whether those of dpexp and torch and the papers' encoders mix examples; of others, such as
experts that are chosen by what they weigh, the weights have to be equal, too. A network with a
module of the user's own is tried in every run.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks_of_all

from dpexp.grad_sample.attention import is_taken_apart
from dpexp.grad_sample.hooking import hook_at_parent, hooked_at_parent
from dpexp.grad_sample.reading import reads_in, see_reads
from dpexp.grad_sample.rules import has_foreign_rule
from dpexp.grad_sample.shared_inputs import see, seen_in
from dpexp.imported import is_written_in
from dpexp.models.architecture import code_of
from dpexp.training.probing import kept
from dpexp.training.probing.called import code_called
from dpexp.training.probing.kept import Found
from dpexp.training.probing.made_up import MadeUp
from dpexp.training.probing.sketch import fingerprint

OURS = (
    *("dpexp.models.", "torch.nn.modules.", "transformers.activations"),
    *("transformers.models.bert.", "transformers.models.roberta."),
)
OTHERS = ("torchvision.", "timm.", "transformers.")
PLAIN = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


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
    if hooks_of_all._has_any_global_hook() or not all(map(_is_as_in_its_class, modules.values())):
        return None
    state = dict(model.named_parameters()) | dict(model.named_buffers())
    if any(each._backward_hooks for each in state.values()):  # a weight's own, of any code
        return None
    loss = task.loss
    if not (isinstance(loss, FunctionType) and is_written_in(loss, "dpexp")):
        return None
    few = examples.one  # one is padded
    code = code_of(model)
    called = code_called(model, few.inputs, lambda outputs: loss(outputs, few.targets))
    if code is None or called is None:
        return None
    weights: tuple[int, ...] | None = ()
    if not all(type(module).__module__.startswith(OURS) for module in modules.values()):
        weights = _hashed(state.values())
        if weights is None:
            return None
    crowd = examples.crowd
    return (
        code,
        called,
        tuple((name, type(m), type(m).forward, m.training) for name, m in modules.items()),
        tuple((name, *_form(each), each.requires_grad) for name, each in state.items()),
        weights,
        tuple(parameters),
        loss,
        tuple(
            (*_form(each), float(each.double().sum()).hex())
            for each in (crowd.inputs, crowd.targets)
        ),
        str(device),
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
    )


def is_known(key: Hashable | None, model: nn.Module) -> bool:
    """Return whether such a network was found sound; what its trial left is then this one's."""
    if key is None:
        return False
    found = _FOUND.get(key) or kept.find(key, model)
    if found is None:
        return False
    _FOUND[key] = found
    for name in sorted(found.hooked):
        hook_at_parent(model, name)
    see(model, found.seen)
    see_reads(model, found.reads)
    return True


def remember(key: Hashable | None, model: nn.Module) -> None:
    """Note that a network is sound."""
    if key is not None:
        _FOUND[key] = Found(hooked_at_parent(model), seen_in(model), reads_in(model))
        kept.keep(key, model, _FOUND[key])


def _is_as_in_its_class(module: nn.Module) -> bool:
    """Return whether a module does what its class, of ours or of a library, says."""
    known = type(module).__module__.startswith((*OURS, *OTHERS)) and "forward" not in vars(module)
    known = known and not is_taken_apart(module)  # into modules that are not the model's
    known = known and not has_foreign_rule(module)
    held = (hook for hooks in HOOKS for hook in getattr(module, hooks).values())
    return known and all(map(_is_hook_of_ours, held))


def _is_hook_of_ours(hook: Any) -> bool:
    """Return whether a hook is one of this suite's, such as one that resizes images."""
    function = hook.func if isinstance(hook, partial) else hook
    function = function if isinstance(function, FunctionType) else type(function)
    return is_written_in(function, "dpexp")


def _hashed(weights: Iterable[Tensor]) -> tuple[int, ...] | None:
    """Return hashes of weights' values; None if any is of a kind that is not hashed."""
    plain = [each.detach() for each in weights]
    if all(each.layout == torch.strided and each.dtype in PLAIN for each in plain):
        return tuple(fingerprint(each)[-1] for each in plain)
    return None


def _form(tensor: Tensor) -> tuple[torch.Size, tuple[int, ...], torch.dtype]:
    return tensor.shape, tensor.stride(), tensor.dtype
