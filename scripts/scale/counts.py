"""Products, bytes and numbers sent of one step, counted from shapes.

The products are those that run: a test holds them to torch's own count of a small network. Bytes
are what a product reads and writes once; elementwise work between products is left out.
Index legend: p outputs, d inputs, t tokens, n examples, r rank, w width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from dpexp.methods.sparsity import num_kept

METHODS = ("DP-SGD", "RGP", "LSG")


class Work(NamedTuple):
    """Products and the bytes they move; `kind` is bfloat16 or float32."""

    kind: str
    flops: float
    moved: float


@dataclass(frozen=True)
class Network:
    """A transformer with a classifier on its first or last token, and how it is trained."""

    name: str
    layers: int
    width: int
    feed_forward: int
    is_gated: bool  # three matrices in place of two, RMSNorm, no biases (Llama)
    tables: tuple[int, ...]  # rows of each embedding
    head: tuple[tuple[int, int], ...]  # the classifier's matrices, [p, d]
    tokens: int
    batch: int  # expected examples a step
    micro_batch: int
    rank: int = 8
    p: float = 0.5  # the fraction that LSG freezes

    @property
    def matrices(self) -> list[tuple[int, int]]:
        """List the shapes [p, d] of every weight matrix outside classifier and embeddings."""
        w, f = self.width, self.feed_forward
        return self.layers * (4 * [(w, w)] + (1 + self.is_gated) * [(f, w)] + [(w, f)])

    @property
    def met(self) -> list[int]:
        """List how many tokens of a text meet each matrix.

        The classifier reads one token's state, so that in the last layer one meets all but the
        keys' and the values' matrices.
        """
        t, others = self.tokens, 2 + self.is_gated
        return (self.layers - 1) * (4 + others) * [t] + [1, t, t, 1] + others * [1]

    @property
    def vectors(self) -> list[int]:
        """List the sizes of biases and scales, the classifier's biases among them."""
        w, heads = self.width, [p for p, _ in self.head]
        if self.is_gated:
            return self.layers * 2 * [w] + [w, *heads]
        return self.layers * (9 * [w] + [self.feed_forward]) + [w, w, *heads]

    def per_example(self, method: str) -> Callable[[int], int]:
        """Return how many numbers a low-rank method carries of a matrix's side."""
        frozen = self.p if method == "LSG" else 0.0
        return lambda side: self.rank * num_kept(side, frozen)

    def released(self, method: str) -> list[int]:
        """List the sizes of the blocks a step releases, hence sums over ranks and broadcasts."""
        head = [p * d for p, d in self.head] + [p for p, _ in self.head]
        if method == "DP-SGD":
            tables = [rows * self.width for rows in self.tables]
            own = self.vectors + [p * d for p, d in self.matrices + [*self.head]]
            return own + tables
        return head + [
            *map(self.per_example(method), (s for shape in self.matrices for s in shape))
        ]

    def shared(self, method: str) -> list[int]:
        """List the sizes of what the first rank prepares for all: bases; LSG's 8-byte indices."""
        sides = [side for shape in self.matrices for side in shape]
        bases = [] if method == "DP-SGD" else [self.rank * side for side in sides]
        return bases + [2 * num_kept(side, self.p) for side in sides if method == "LSG"]

    def trained(self, method: str) -> int:
        """Count the numbers that the optimizer moves."""
        if method == "DP-SGD":
            return sum(self.released(method))
        return sum(p * d for p, d in self.matrices) + sum(p * d + p for p, d in self.head)


ROBERTA = Network("RoBERTa-large", 24, 1024, 4096, False, (50265, 514, 1),
                  ((1024, 1024), (2, 1024)), tokens=128, batch=2000, micro_batch=32)  # fmt: skip
LLAMA = Network("7B decoder", 32, 4096, 11008, True, (32000,), ((2, 4096),),
                tokens=512, batch=1024, micro_batch=4)  # fmt: skip


def of_micro_batch(net: Network, method: str, n: int, half: float = 2) -> Iterator[Work]:
    """Count what n examples cost: the passes between layers, then carriers, norms and sums.

    Args:
        net: the network.
        method: one of `METHODS`.
        n: examples.
        half: bytes of a number in the passes.
    """
    w, r, shapes = net.width, net.rank, list(zip(net.matrices, net.met, strict=True))
    is_low_rank = method != "DP-SGD"
    # Frozen embeddings: no gradient is asked of what stands before the first three matrices.
    asked = {index for index in range(len(shapes)) if index > 2 or not is_low_rank}
    for index, ((p, d), t) in enumerate(shapes):
        moved = half * (n * t * (p + d) + p * d)
        cast = (4 + half) * p * d if half < 4 else 0  # autocast keeps no copy of a frozen weight
        yield Work("bfloat16", 2 * n * t * p * d, moved + cast)
        if index in asked:
            yield Work("bfloat16", 2 * n * t * p * d, moved)
    for p, d in net.head:
        yield Work("bfloat16", 4 * n * p * d, 2 * half * p * d)
    whole = Work("bfloat16", 12 * n * net.tokens**2 * w, 12 * half * n * net.tokens * w)
    one = Work("bfloat16", 12 * n * net.tokens * w, 6 * half * n * net.tokens * w)
    yield from [*(net.layers - 1) * [whole], one]
    widened = (4 + half) if half < 4 else 0  # bytes: taps are float32, for norms and sums
    for (p, d), t in shapes:
        both = n * t * (p + d)
        yield Work("float32", 0, widened * both)
        if is_low_rank:
            kept = sum(map(net.per_example(method), (p, d)))
            flops = 4 * r * both + 2 * n * kept
            yield Work("float32", flops, 8 * both + 4 * n * (r * (p + d) + 2 * kept))
        elif p * d < t * (p + d):  # formed once, and held
            yield Work("float32", 2 * n * (t + 1) * p * d, 4 * (both + 3 * n * p * d))
        else:  # Gram matrices, then one weighted product into the sum
            yield Work("float32", 2 * t * both, 4 * (both + 2 * n * t * t))
            yield Work("float32", 2 * n * t * p * d, 4 * (both + 2 * n * t * p + 2 * p * d))
    yield from [Work("float32", 2 * n * p * d, 12 * p * d) for p, d in net.head]
    if is_low_rank:
        yield Work("float32", 2 * n * sum(p for p, _ in net.head), 0)
    else:
        t = net.tokens
        # One product more for which positions share a token.
        yield from len(net.tables) * [Work("float32", 2 * n * t * t * (w + 1), 12 * n * t * w)]
        yield Work("float32", 2 * n * sum(net.vectors), 0)


def of_step(net: Network, method: str, noise_passes: float = 8) -> Iterator[Work]:
    """Count what every GPU does once a step, all alike: bases, noise, projecting back."""
    yield Work("float32", 0, 4 * (noise_passes + 3) * sum(net.released(method)))
    if method == "DP-SGD":
        return
    r = net.rank
    passes = 6 if method == "RGP" else 7  # RGP: W - W_0, two products, dW. LSG: |W| in their place
    for p, d in net.matrices:
        yield Work("float32", 8 * r * p * d + 4 * r * r * p, 4 * passes * p * d)


def of_optimizer(net: Network, method: str) -> Work:
    """Count the bytes that torch's Adam moves: 18 passes over what is trained."""
    return Work("float32", 0, 4 * 18 * net.trained(method))


def fixed_bytes(net: Network, method: str) -> float:
    """Count what lies in memory at a step's end, whatever the micro-batch.

    Weights, Adam's two, the gradients of this step and of the last, and RGP's W_0.
    """
    copies = 5 if method == "RGP" else 4
    return 4 * (sum(net.released("DP-SGD")) + copies * net.trained(method))


def held_bytes(net: Network, method: str) -> float:
    """Count what one example holds until it is clipped, in float32: x and dh, or carriers."""
    if method == "DP-SGD":
        shapes = zip(net.matrices, net.met, strict=True)
        return 4 * sum(min(t * (p + d), p * d) for (p, d), t in shapes)
    return 4 * sum(map(net.per_example(method), (side for shape in net.matrices for side in shape)))
