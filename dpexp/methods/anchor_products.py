"""The anchor subspace of plain linear layers, whose per-example gradients are outer products.

A layer that reads vectors x_i and has output gradients h_i has dW_i = h_i x_i^T and db_i = h_i, so
that inner products of gradients need neither of them formed:

    K_ab = <g_a, g_b> = sum over parameters of <x_a, x_b> <h_a, h_b>        [m, m], public examples
    A    = F Z, K = F F^T, for Gaussian Z [m, k]: it has the law of G B^T for a Gaussian B
    B    = C G, C = L^(-1/2) U^T Q^T [k, m], Q^T K Q = U L U^T, Q = orth(A)
    w_i  = C t_i, t_ia = <g_i, g_a>;   r_i = g_i - v_i G, v_i = C^T w_i
    |r_i|^2 = |g_i|^2 - 2 <v_i, t_i> + <v_i, K v_i>

All of it is in float64: in float32 the differences would cancel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dpexp.grad_sample.linear import LinearGrads
from dpexp.grad_sample.per_example import MaterializedGrads
from dpexp.grad_sample.rounding import TERMS, add_, eta, raised
from dpexp.types import LayerGrads, PerExampleGrads, PublicGradients, Size, full_name

GAIN = 4
"""How many times fewer multiplications it must take (ours): float64 takes twice the time of
float32, and what is counted is not all."""

DEPENDENT = 1e-10
"""Eigenvalues of Q^T K Q below this share of the largest give no basis vector, but one of zeros:
the public gradients span fewer directions than k, to rounding."""

JITTER = 1e-12
"""Share of K's mean diagonal that is added to its diagonal, so that dependent gradients have a
Cholesky factor."""

Anchors = dict[str, Any]
"""A group's anchors: "inputs" and "outputs" by parameter, [m, d] and [m, p], "grams" by parameter,
[m, m], and "coefficients", C [k, m]; all in float64. A bias has inputs of one."""

Groups = Mapping[str, Sequence[str]]


def pays(
    model: nn.Module,
    groups: Groups,
    shapes: Mapping[str, tuple[int, ...]],
    shares: Mapping[str, int],
    m: int,
) -> bool:
    """Return whether all parameters are of linear layers, and many beside m and k.

    Args:
        model: that has the parameters.
        groups: names of their parameters.
        shapes: of the parameters.
        shares: k by group.
        m: number of anchor gradients.
    """
    layers = {name.rpartition(".")[0] for names in groups.values() for name in names}
    if not all(type(model.get_submodule(each)) is nn.Linear for each in layers):
        return False
    formed = inner = 0
    for group, names in groups.items():
        sides = [(shapes[name][0], math.prod(shapes[name][1:])) for name in names]
        formed += 2 * shares[group] * sum(p * d for p, d in sides)
        inner += m * (sum(p + d for p, d in sides) + shares[group])
    return GAIN * inner <= formed


def factors(layer_grads: LayerGrads, name: str) -> tuple[Tensor, Tensor] | None:
    """Return x [n, d] and h [n, p] of a parameter's gradients h_i x_i^T; None if they are sums."""
    if not (isinstance(layer_grads, LinearGrads) and layer_grads.is_plain):
        return None
    x, h = layer_grads.x[:, 0], layer_grads.dh[:, 0]
    return (h.new_ones(len(h), 1) if name == "bias" else x), h


def gathered(
    public: PublicGradients, m: int, labels: Tensor | None, groups: Groups
) -> dict[str, Anchors] | None:
    """Return the factors of the first m public examples' gradients, by group.

    Args:
        public: the public set at the model's current weights.
        m: how many.
        labels: [m]; None: the set's own.
        groups: names of their parameters.

    Returns:
        None if a layer's gradients are not single outer products, as where it reads texts.
    """
    names = {name for group in groups.values() for name in group}
    pieces: dict[str, list[tuple[Tensor, Tensor] | None]] = {name: [] for name in names}

    def take(layer: str, layer_grads: LayerGrads) -> None:
        for own in layer_grads.parameters:
            if (name := full_name(layer, own)) in names:
                pieces[name].append(factors(layer_grads, own))

    public.visit_layers(torch.arange(m), labels, take)
    whole: dict[str, tuple[Tensor, Tensor]] = {}
    for name, each in pieces.items():
        found = [pair for pair in each if pair is not None]
        if not found or len(found) < len(each) or sum(len(x) for x, _ in found) != m:
            return None
        x, h = (torch.cat(parts).double() for parts in zip(*found, strict=True))
        whole[name] = x, h
    return {
        group: {
            "inputs": {name: whole[name][0] for name in members},
            "outputs": {name: whole[name][1] for name in members},
            "grams": {name: products(whole[name], whole[name]) for name in members},
        }
        for group, members in groups.items()
    }


def products(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> Tensor:
    """Return the inner products of gradients given by factors, [n, m]."""
    return (one[0] @ other[0].T).mul_(one[1] @ other[1].T)


def with_basis(
    anchors: Anchors, k: int, iterations: int, gen: torch.Generator, last: Anchors | None = None
) -> Anchors:
    """Return the anchors with the coefficients of an orthonormal basis (lines 3-8).

    Args:
        anchors: of a group.
        k: number of basis vectors, at most m.
        iterations: t >= 1.
        gen: draws the start, on the anchors' device.
        last: a step's before, whose basis is the start; None: a Gaussian one.
    """
    gram = sum(anchors["grams"].values(), torch.zeros(()))
    if last is None or not last["coefficients"].isfinite().all():
        in_basis = _square_root(gram) @ torch.randn(
            len(gram), k, generator=gen, device=gram.device, dtype=gram.dtype
        )
    else:
        names = anchors["grams"]
        across = sum((products(_pair(anchors, n), _pair(last, n)) for n in names), torch.zeros(()))
        in_basis = across @ last["coefficients"].T
    if not bool(gram.isfinite().all() & in_basis.isfinite().all()):  # as a QR of such gradients
        return {**anchors, "coefficients": torch.full_like(in_basis.T, torch.nan)}
    for _ in range(iterations):
        q = torch.linalg.qr(in_basis).Q
        values, vectors = torch.linalg.eigh(q.T @ gram @ q)
        is_kept = values > DEPENDENT * values.amax()
        scale = torch.where(is_kept, values, 1).rsqrt() * is_kept
        coefficients = (vectors * scale).T @ q.T
        in_basis = gram @ coefficients.T
    return {**anchors, "coefficients": coefficients}


def _square_root(gram: Tensor) -> Tensor:
    """Return F with F F^T = K; if rounding has left K indefinite, K itself, one iteration more."""
    eye = torch.eye(len(gram), device=gram.device, dtype=gram.dtype)
    lower, failed = torch.linalg.cholesky_ex(gram + JITTER * gram.diagonal().mean() * eye)
    return torch.where(failed == 0, lower, gram)


def _pair(anchors: Anchors, name: str) -> tuple[Tensor, Tensor]:
    return anchors["inputs"][name], anchors["outputs"][name]


def combined(anchors: Anchors, name: str, weights: Tensor) -> Tensor:
    """Return sum_a weights_a g_a of a parameter's anchor gradients, [p, d], for weights [m]."""
    x, h = _pair(anchors, name)
    return (h * weights[:, None]).T @ x


def basis(anchors: Anchors, name: str) -> Tensor:
    """Return a parameter's columns of B, formed: [k, p d]."""
    x, h = _pair(anchors, name)
    return torch.einsum("ka,ap,ad->kpd", anchors["coefficients"], h, x).flatten(1)


def lifted(anchors: Anchors, name: str, embedding: Tensor) -> Tensor:
    """Return w B in a parameter's columns, [p, d] in w's precision, for w [k]."""
    weights = embedding.double() @ anchors["coefficients"]
    return combined(anchors, name, weights).to(embedding.dtype)


def projected(
    anchors: Anchors, gradients: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[Tensor, dict[str, PerExampleGrads]]:
    """Return the embeddings w_i [n, k] and the residuals of a group's per-example gradients.

    Args:
        anchors: of the group, with coefficients.
        gradients: by parameter: factors x [n, d] and h [n, p], or formed, [n, p d].
        shapes: of the parameters.
    """
    inner, bases, parts = {}, {}, []
    for name, each in gradients.items():
        if isinstance(each, tuple):
            x, h = each
            dtype = h.dtype
            inner[name] = products((x.double(), h.double()), _pair(anchors, name))
            parts.append(inner[name] @ anchors["coefficients"].T)
        else:  # of several views, say
            dtype = each.dtype
            bases[name] = basis(anchors, name).to(dtype)
            parts.append((each @ bases[name].T).double())
    wide = torch.stack(parts).sum(0)
    embedding, back = wide.to(dtype), wide @ anchors["coefficients"]
    residuals: dict[str, PerExampleGrads] = {}
    for name, each in gradients.items():
        if isinstance(each, tuple):
            x, h = each
            residuals[name] = Residuals(x, h, inner[name], back, anchors, name)
        else:
            left = torch.addmm(each, embedding, bases[name], alpha=-1)
            residuals[name] = MaterializedGrads(left.view(len(left), *shapes[name]))
    return embedding, residuals


@dataclass(frozen=True)
class Residuals:
    """Residuals g_i - v_i G of a parameter's gradients, not formed.

    Attributes:
        x: [n, d], and
        h: [n, p], factors of the gradients h_i x_i^T.
        t: [n, m] in float64, their inner products with the anchors' gradients.
        v: [n, m] in float64, their coefficients.
        anchors: of the parameter's group.
        name: the parameter.
    """

    x: Tensor
    h: Tensor
    t: Tensor
    v: Tensor
    anchors: Anchors
    name: str

    def measured(self) -> tuple[Size, Residuals]:
        """Return every example's size, and itself.

        Every inner product's rounding is relative to the product of two norms. That of the whole
        is relative to E = (|g_i| + sum_a |v_ia| |g_a|)^2, whatever cancels, and that of a sum over
        examples to its root; both are added, so that norms are never less than what is summed.
        """
        x, h = self.x.double(), self.h.double()
        gram = self.anchors["grams"][self.name]
        own = x.square().sum(1) * h.square().sum(1)
        computed = own + (self.v * (self.v @ gram - 2 * self.t)).sum(1)
        lengths = gram.diagonal().clamp(min=0).sqrt()
        energy = (own.sqrt() + self.v.abs() @ lengths).square()
        numbers = x.shape[1] + h.shape[1] + 2 * len(gram)
        squares = computed.clamp(min=0) + raised(numbers, torch.float64) * energy
        lost = raised(numbers + TERMS, torch.float64) * energy.sqrt()
        squares = (squares.sqrt() + lost).square()
        floor = torch.full_like(squares, eta(self.x.dtype) * math.sqrt(x.shape[1] * h.shape[1]))
        return Size(squares, squares, floor), self

    def norms_squared(self) -> Tensor:
        """Bound the squared l2 norm of every example's residual from above, [n] in float64."""
        return self.measured()[0].squares

    def add_to(self, total: Tensor, weights: Tensor | None) -> None:
        """Add the residuals, times their weights [n] (None: all ones), to `total`."""
        if weights is None:
            weights = self.v.new_ones(len(self.v))
        slices = (each.split(TERMS) for each in (self.x, self.h, self.v, weights.double()))
        for x, h, v, some in zip(*slices, strict=True):
            part = (h.double() * some[:, None]).T @ x.double()
            part -= combined(self.anchors, self.name, some @ v)
            add_(total, part.view_as(total))

    def materialize(self) -> Tensor:
        """Return every example's residual, [n, p, d]."""
        x, h = _pair(self.anchors, self.name)
        inside = torch.einsum("na,ap,ad->npd", self.v, h, x)
        formed = self.h.double()[:, :, None] * self.x.double()[:, None, :] - inside
        return formed.to(self.x.dtype)

    def select(self, mask: Tensor) -> Residuals:
        """Drop the examples where mask [n] is False."""
        kept = {key: getattr(self, key)[mask] for key in ("x", "h", "t", "v")}
        return replace(self, **kept)

    def double(self) -> Residuals:
        """Return the same residuals, with factors in float64."""
        return replace(self, x=self.x.double(), h=self.h.double())
