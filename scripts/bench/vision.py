"""WRN28-4 on images like CIFAR10's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from dpexp.data import Examples
from dpexp.methods.dpsgd import DPSGD
from dpexp.methods.powersgd import PowerSGD
from dpexp.methods.sparse_dpsgd import SparseDPSGD
from dpexp.models.wrn import WideResNet
from dpexp.types import Method
from scripts.bench.steps import (
    FLOOR,
    UNIT,
    Case,
    NewModel,
    Step,
    core,
    fast,
    floor_step,
    grape,
    lsg,
    nonprivate_step,
    opacus_step,
    private_step,
    rgp,
    vmap_step,
    zo,
)

RGP, LEFT, DP_SGD = "RGP, r = 16", "RGP left only, r = 16", "DP-SGD"
POWER_SGD = "DP-PowerSGD, r = 16"
LOW_RANK_SPARSE, SPARSE = "LSG, r = 16, p = 0.5", "Sparse DP-SGD, p = 0.5"
LAST = ", channels last"


def random_images(num: int, device: torch.device, seed: int = 0) -> Examples:
    """Draw a set like CIFAR10's."""
    gen = torch.Generator().manual_seed(seed)
    inputs = torch.randn(num, 3, 32, 32, generator=gen)
    return Examples(inputs, torch.randint(10, (num,), generator=gen)).to(device)


def new_model(device: torch.device, channels_last: bool = False) -> nn.Module:
    """Build WRN28-4 for CIFAR10."""
    torch.manual_seed(0)
    model = WideResNet(
        depth=28,
        width=4,
        stem_stride=1,
        channels_last=channels_last,
        in_channels=3,
        num_classes=10,
    )
    return model.to(device)


def steps(num: int, device: torch.device) -> dict[str, Callable[[], Step]]:
    """Name every step, with a function that builds it."""
    images = random_images(num, device)
    plain = partial(new_model, device)
    last = partial(new_model, device, channels_last=True)
    powersgd = PowerSGD(16, warm_start=True, error_feedback=False, head="head")
    sparse = SparseDPSGD(0.5, "importance", "all", "head")

    def private(method: Method, model: NewModel) -> Callable[[], Step]:
        return lambda: private_step(method, images, model, device)

    return {
        UNIT: lambda: nonprivate_step(images, plain),
        FLOOR: lambda: floor_step(images, plain),
        RGP: private(rgp("both"), plain),
        LEFT: private(rgp("left"), plain),
        DP_SGD: private(DPSGD("all", "head"), plain),
        f"non-private{LAST}": lambda: nonprivate_step(images, last),
        f"non-private{LAST}, by Winograd": lambda: fast(nonprivate_step(images, last)),
        f"{FLOOR}{LAST}": lambda: floor_step(images, last),
        f"{FLOOR}{LAST}, by Winograd": lambda: fast(floor_step(images, last)),
        f"{RGP}{LAST}": private(rgp("both"), last),
        f"{LEFT}{LAST}": private(rgp("left"), last),
        f"RGP-random, r = 16{LAST}": private(rgp("random"), last),
        f"RGP core, r = 16{LAST}": lambda: private_step(core(), images, last, device, images),
        f"{LOW_RANK_SPARSE}{LAST}": private(lsg(), last),
        f"{DP_SGD}{LAST}": private(DPSGD("all", "head"), last),
        f"{POWER_SGD}{LAST}": private(powersgd, last),
        f"DP-GRAPE, r = 16{LAST}": private(grape(), last),
        f"DP-ZO, one direction{LAST}": private(zo(), last),
        f"{SPARSE}{LAST}": private(sparse, last),
        "Opacus hooks": lambda: opacus_step(images, plain, is_ghost=False),
        "Opacus ghost": lambda: opacus_step(images, plain, is_ghost=True),
        "torch.func vmap": lambda: vmap_step(images, plain),
    }


CASE = Case(
    title="WRN28-4",
    build=steps,
    batch=32,
    goals={
        f"{RGP}{LAST}": (0.80, 1.1),
        f"{LEFT}{LAST}": (0.75, None),
        f"{LOW_RANK_SPARSE}{LAST}": (0.78, None),
        f"{DP_SGD}{LAST}": (1.10, 1.2),
        f"{POWER_SGD}{LAST}": (1.16, None),  # 1.05 of DP-SGD's
        f"{SPARSE}{LAST}": (1.25, 1.2),
    },
)
