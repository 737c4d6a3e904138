"""Replace the layers of a model that mix examples: BatchNorm, and InstanceNorm with statistics."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpexp.grad_sample import rule
from dpexp.grad_sample.norm import NormGrads
from dpexp.models.notes import note
from dpexp.types import ConfigError

FREEZE = "freeze"
HOW = (True, False, FREEZE)

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


class FixedNorm(nn.Module):
    """A normalisation by constant statistics: BatchNorm in eval mode.

    It looks at each example by itself. Statistics of a pretrained model are public, as its weights
    are. Scale and shift train like any others.
    """

    def __init__(self, norm: nn.modules.batchnorm._NormBase) -> None:
        """Take over a norm's statistics, scale and shift.

        Args:
            norm: with running statistics.
        """
        super().__init__()
        self.eps = norm.eps
        self.mean: Tensor
        self.var: Tensor
        self.register_buffer("mean", norm.running_mean)
        self.register_buffer("var", norm.running_var)
        self.weight, self.bias = norm.weight, norm.bias

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, c, ...] to the same shape."""
        return F.batch_norm(x, self.mean, self.var, self.weight, self.bias, eps=self.eps)

    def extra_repr(self) -> str:
        """Return the number of channels and eps."""
        return f"{len(self.mean)}, eps={self.eps}"


@rule(FixedNorm)
def fixed_norm(layer: FixedNorm, x: Tensor, dh: Tensor) -> NormGrads:
    """Return the layer's gradients."""
    names = tuple(name for name, _ in layer.named_parameters(recurse=False))
    x_hat = F.batch_norm(x, layer.mean, layer.var, eps=layer.eps)
    return NormGrads(x_hat, dh, tuple(range(2, x.dim())), names)


def fix(model: nn.Module, how: bool | str) -> None:
    """Replace what mixes examples, and print each replacement.

    Args:
        model: changed in place.
        how: True puts GroupNorm in BatchNorm's place, as Opacus does, and takes an InstanceNorm's
            statistics away; "freeze" keeps statistics, as constants (`FixedNorm`).

    Raises:
        ConfigError: for another word, or a layer that cannot be replaced.
    """
    if how not in HOW or not isinstance(how, bool | str):
        raise ConfigError(
            "Expected model.fix to be true (GroupNorm in BatchNorm's place), freeze (its "
            f"statistics stay as constants) or false; got {how}. Set model.fix."
        )
    replaced: dict[int, nn.Module] = {}
    said = []
    for name, module in list(model.named_modules()):
        if not name or not isinstance(module, BATCH_NORMS + INSTANCE_NORMS):
            continue
        if isinstance(module, INSTANCE_NORMS) and not module.track_running_stats:
            continue
        replaced[id(module)] = other = _instead_of(name, module, how)
        inner = other[0] if isinstance(other, nn.Sequential) else other
        said.append(f"{name}: {type(module).__name__} -> {_described(inner)}")
    for parent in list(model.modules()):
        for key, child in parent._modules.items():
            if id(child) in replaced:
                parent._modules[key] = replaced[id(child)]
    lost = "statistics, scales and shifts of the BatchNorm that it had are lost"
    kept = "statistics stay as they are, constants that no example changes"
    word = f"model.fix={str(how).lower()}"
    if not said:
        note(model, "fixed", "nothing in the model mixes examples", word)
        return
    note(model, "fixed", said, word)
    note(model, "norms", kept if how == FREEZE else lost)


def _described(norm: nn.Module) -> str:
    if isinstance(norm, nn.GroupNorm):
        return f"GroupNorm of {norm.num_groups} groups"
    return f"{type(norm).__name__}{'' if isinstance(norm, FixedNorm) else ' without statistics'}"


def _instead_of(name: str, module: Any, how: bool | str) -> nn.Module:
    """Return what replaces a norm; timm's, which go on with an activation, keep that."""
    then = [module.drop, module.act] if _goes_on(module) else []
    if not then and type(module) not in BATCH_NORMS + INSTANCE_NORMS:
        raise ConfigError(
            f"Expected norms of torch or timm for model.fix; {name} is a {type(module).__name__}, "
            "which may compute something else. Replace it in the model."
        )
    if how == FREEZE:
        if module.running_mean is None:
            raise ConfigError(
                f"Expected norms with running statistics for model.fix=freeze; {name}, a "
                f"{type(module).__name__}, has none. Set model.fix=true."
            )
        norm: nn.Module = FixedNorm(module)
    elif isinstance(module, INSTANCE_NORMS):
        # With statistics at hand torch would go on to move them, tracked or not.
        module.track_running_stats = False
        module.running_mean = module.running_var = module.num_batches_tracked = None
        norm = module
    else:
        norm = _group_norm(module)
    norm.train(module.training)
    if not then:
        return norm
    around: Any = nn.Sequential(norm, *then)
    around.stands_for_norm = True  # for names in the library that it is of
    return around


def _goes_on(module: nn.Module) -> bool:
    """Return whether a norm is timm's BatchNormAct2d, of which `drop` and `act` are modules."""
    own = type(module).__module__.startswith("timm.")
    return own and all(isinstance(getattr(module, key, None), nn.Module) for key in ("drop", "act"))


def _group_norm(module: nn.Module) -> nn.Module:
    """Return Opacus' GroupNorm for a BatchNorm; of one group where there are no positions.

    A group of one channel at one position would be constant.
    """
    from opacus.validators.batch_norm import _batchnorm_to_groupnorm

    groups = 1 if isinstance(module, nn.BatchNorm1d) else None
    norm = _batchnorm_to_groupnorm(module, num_groups=groups)
    norm.eps = module.eps
    like = next(iter(module.parameters()), torch.empty(0))
    for parameter in norm.parameters():
        parameter.requires_grad_(like.requires_grad)
    return norm.to(like.device, like.dtype)
