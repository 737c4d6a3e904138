"""From what is counted to seconds: a roofline for the work, a chain of GPUs for what is sent."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dpexp.cli.arguments import number, only
from dpexp.distributed.ranks import buckets
from scripts.scale.counts import Network, Work, of_micro_batch, of_optimizer, of_step

PARTS = ("bfloat16", "float32", "memory", "QR", "bytes", "hops")
"""What a step can be bound by: products, moving numbers in memory, launching QRs, sending."""


@dataclass(frozen=True)
class Machine:
    """One kind of GPU and what joins many: an H100 SXM's data sheet, and what is reached of it."""

    half_peak: float = 989e12  # FLOP/s, dense bfloat16
    half_reached: float = 0.4  # of it; elementwise work between products is in here
    single_peak: float = 67e12  # FLOP/s, float32 without TF32
    single_reached: float = 0.7
    memory_peak: float = 3.35e12  # bytes/s
    memory_reached: float = 0.8
    node: float = 8  # GPUs in one
    nvlink: float = 450e9  # bytes/s, of a GPU, each way
    network: float = 400e9  # bytes/s, of a node, each way: eight InfiniBand links of 400 Gbit/s
    link_reached: float = 0.8
    hop: float = 3e-6  # seconds from one GPU of the chain to the next
    qr: float = 3e-4  # seconds of one thin QR factorisation, which is all launches and no work
    noise_passes: float = 8  # over memory, 4 bytes each, to draw and add one number
    half_bytes: float = 2  # of a number in the passes: 4 where nothing is bfloat16

    def seconds(self, work: Work) -> float:
        """Return the longer of computing and moving (a roofline)."""
        peak, reached = (
            (self.half_peak, self.half_reached)
            if work.kind == "bfloat16"
            else (self.single_peak, self.single_reached)
        )
        return max(work.flops / (peak * reached), work.moved / self.bandwidth)

    @property
    def bandwidth(self) -> float:
        """Return the bytes per second that memory sustains."""
        return self.memory_peak * self.memory_reached

    def sending(self, numbers: float, gpus: int) -> float:
        """Return the seconds of float32 going down a chain, all of whose links work at once."""
        link = self.nvlink if gpus <= self.node else min(self.nvlink, self.network)
        return 4 * numbers / (link * self.link_reached) if gpus > 1 else 0.0

    def hopping(self, calls: int, gpus: int) -> float:
        """Return the seconds until the last of a chain hears: N - 1 hops a call."""
        return (gpus - 1) * calls * self.hop


@dataclass(frozen=True)
class Sent:
    """What a step sends: the released sums to the first rank and back, what it prepared to all.

    Attributes:
        numbers: of 4 bytes, in all: there and back.
        calls: how often something is passed on: full buckets, and the counts with their own kind.
        calls_by_block: how often, were it a call a block.
    """

    numbers: int
    calls: int
    calls_by_block: int


def sent(net: Network, method: str) -> Sent:
    """Count what a step sends."""
    blocks, shared = net.released(method), net.shared(method)
    return Sent(
        numbers=2 * sum(blocks) + sum(shared),
        calls=2 * (_calls(blocks) + 1) + _calls(shared),
        calls_by_block=2 * (len(blocks) + 1) + len(shared),
    )


def _calls(blocks: Sequence[int]) -> int:
    return len([*buckets(torch.empty(size, device="meta") for size in blocks)])


def step(
    net: Network, method: str, gpus: int, machine: Machine, has_optimizer: bool = True
) -> dict[str, float]:
    """Return a step's seconds by what bounds them.

    Args:
        net: the network.
        method: one of `METHODS`.
        gpus: how many share the batch.
        machine: what they are.
        has_optimizer: whether Adam's step is in it.
    """
    parts = dict.fromkeys(PARTS, 0.0)

    def add(work: Work, times: float = 1) -> None:
        seconds = machine.seconds(work)
        is_moving = seconds <= work.moved / machine.bandwidth
        parts["memory" if is_moving else work.kind] += times * seconds

    share = math.ceil(net.batch / gpus)
    for n, times in ((net.micro_batch, share // net.micro_batch), (share % net.micro_batch, 1)):
        for work in of_micro_batch(net, method, n, machine.half_bytes) if n * times else ():
            add(work, times)
    for work in of_step(net, method, machine.noise_passes):
        add(work)
    if has_optimizer:
        add(of_optimizer(net, method))
    if method != "DP-SGD":
        parts["QR"] = 2 * len(net.matrices) * machine.qr
    told = sent(net, method)
    parts["bytes"] = machine.sending(told.numbers, gpus)
    parts["hops"] = machine.hopping(told.calls, gpus)
    return parts


def parse(words: Sequence[str]) -> Machine:
    """Read the machine from the command line; raises ConfigError for what is no field of it."""
    return Machine(**only(words, {field.name: number for field in dataclasses.fields(Machine)}))
