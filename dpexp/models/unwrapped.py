"""Take a model out of torch.compile's wrappers, and refuse what no hook can see into."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor, nn
from torch.jit import ScriptModule

from dpexp.types import ConfigError


def require_module(model: Any) -> None:
    """Refuse what is passed as a model and is no module.

    Raises:
        ConfigError: saying what to pass in its place.
    """
    if isinstance(model, nn.Module):
        return
    got, way = f"got {type(model).__name__}", "Pass a module"
    if isinstance(model, type):
        got, way = f"got the class {model.__name__}", f"Pass a model of it: {model.__name__}(...)"
    elif callable(model):
        way = "Pass a module, whose forward may call it"
    raise ConfigError(f"Expected model to be a torch.nn.Module; {got}. {way}.")


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model with every module that torch.compile wraps in place of its wrapper.

    Gradients of single examples are found by hooks on modules, which a compiled graph leaves out.

    Args:
        model: changed in place; what it holds may be wrapped too.

    Raises:
        ConfigError: if a part is a program of torch.jit, its weights are quantized, or it has
            extra state that is no tensor.
    """
    while _is_compiled(model):
        model = model.get_submodule("_orig_mod")
        vars(model).pop("_is_torch_compile", None)  # its mark, by which a look-up would differ
    for parent in [*model.modules()]:
        for name, child in [*parent.named_children()]:
            if _is_compiled(child):
                setattr(parent, name, unwrapped(child))
    for name, module in model.named_modules():
        if isinstance(module, ScriptModule):
            raise ConfigError(
                f"Expected modules of Python; {_named(name)} is a program of torch.jit, into which "
                "no hook sees. Pass the module that it was made of."
            )
    for name, value in model.state_dict().items():
        if name.endswith("_extra_state") and not isinstance(value, Tensor):
            raise ConfigError(
                f"Expected a model's state as tensors, by which a run is told and kept; {name} is "
                f"a {type(value).__name__}. Return a tensor from get_extra_state, or remove it."
            )
        if not isinstance(value, Tensor) or value.is_quantized:
            raise ConfigError(
                f"Expected weights as tensors of numbers; {name} is packed for quantized "
                "inference, which has no gradient. Pass the model as it was before."
            )
    return model


def _is_compiled(module: nn.Module) -> bool:
    """Return whether torch.compile made a module, which it imports its tracer for."""
    tracer = sys.modules.get("torch._dynamo")
    return tracer is not None and isinstance(module, tracer.OptimizedModule)


def _named(name: str) -> str:
    return repr(name) if name else "the model"
