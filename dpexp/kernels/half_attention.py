"""Gradients of attention in half precision on a CPU, by float32 products of many heads at once.

torch's fused kernel takes each head by itself, which for short texts costs twelve times as much in
bfloat16 as in float32 (docs/decisions/speed.md, "Attention's gradients in bfloat16"). Within
`attention_by_products` short texts take this module's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from dpexp.kernels.replaced import Kernels, Replaced

NAME = "_scaled_dot_product_flash_attention_for_cpu_backward"
HALF = (torch.bfloat16, torch.float16)

AT_ONCE = 2**20
"""Numbers of scores that are held at once (ours), 4 MB."""

MOST = 2**14
"""Most scores of one head for which it takes less time (ours, measured): 128 positions squared."""


@contextmanager
def attention_by_products() -> Iterator[None]:
    """Take gradients of short texts' attention in half precision by products within the context.

    Contexts may lie within each other, and in several threads.
    """
    if not (hasattr(torch.library, "get_kernel") and hasattr(torch.ops.aten, NAME)):
        yield
        return
    _replaced.enter()
    try:
        yield
    finally:
        _replaced.leave()


def gradients(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
    *,
    is_causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value, in their precision.

    Args:
        grad: at the output, [n, heads, t, v].
        query: [n, heads, t, d].
        key: [n, heads, s, d].
        value: [n, heads, s, v].
        mask: added to the scores, or which of them count, as [n, heads, t, s] or what broadcasts to
            it; None: all do.
        scale: of the scores.
        is_causal: whether a position sees those up to its own alone.
    """
    found = _like(query), _like(key), _like(value)
    n, heads, t, s = *query.shape[:3], key.shape[2]
    if mask is not None:
        mask = mask.view(*(1,) * (4 - mask.ndim), *mask.shape)
        mask = mask.expand(n, mask.shape[1], t, s)
    for first in range(0, n, size := max(1, AT_ONCE // max(1, heads * t * s))):
        some = slice(first, first + size)
        q, k, v, dh = (_matrices(each[some]) for each in (query, key, value, grad))
        scores = torch.bmm(q, k.mT).mul_(scale).unflatten(0, (-1, heads))
        shares = _shares(scores, None if mask is None else mask[some], is_causal=is_causal)
        of_shares = torch.bmm(dh, v.mT)
        of_scores = torch._softmax_backward_data(of_shares, shares, -1, torch.float32).mul_(scale)
        made = torch.bmm(of_scores, k), torch.bmm(of_scores.mT, q), torch.bmm(shares.mT, dh)
        for whole, part in zip(found, made, strict=True):
            whole[some] = part.unflatten(0, (-1, heads))
    return found


def _matrices(each: Tensor) -> Tensor:
    """Return [n heads, t, d] in float32, in one piece."""
    return each.to(torch.float32, memory_format=torch.contiguous_format).flatten(0, 1)


def _shares(scores: Tensor, mask: Tensor | None, *, is_causal: bool) -> Tensor:
    """Return what each position has of the others, [n heads, t, s]; nothing where all are masked.

    Args:
        scores: [n, heads, t, s], overwritten.
        mask: [n, 1 or heads, t, s]; see `gradients`.
        is_causal: as there.
    """
    if is_causal:
        later = torch.ones(scores.shape[2:], dtype=torch.bool, device=scores.device).triu(1)
        scores.masked_fill_(later, -math.inf)
    if mask is None:
        return torch.softmax(scores, -1).flatten(0, 1)
    out = ~mask if mask.dtype == torch.bool else mask.isneginf()
    scores = scores.masked_fill_(out, -math.inf) if mask.dtype == torch.bool else scores.add_(mask)
    shares = torch.softmax(scores, -1)
    if (alone := out.all(-1, keepdim=True)).any():
        shares = shares.masked_fill(alone, 0.0)
    return shares.flatten(0, 1)


def _like(each: Tensor) -> Tensor:
    """Return room for a gradient [n, heads, t, d], heads beside each other as layers have them."""
    n, heads, t, d = each.shape
    return each.new_empty(n, t, heads, d).transpose(1, 2)


def _replacements(kernels: Kernels) -> Kernels:
    """Return what takes the kernel's place; torch's own does what is not taken."""

    def backward(
        keys: Any,
        grad: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        logsumexp: Tensor,
        dropout: float,
        is_causal: bool,
        *,
        attn_mask: Tensor | None = None,
        scale: float | None = None,
    ) -> tuple[Tensor, ...]:
        is_one = _replaced.uses > 0 and query.dtype in HALF and not dropout
        is_one = is_one and query.shape[1] == key.shape[1] == value.shape[1]
        if is_one and query.shape[2] * key.shape[2] <= MOST:
            factor = query.shape[-1] ** -0.5 if scale is None else scale
            return gradients(grad, query, key, value, attn_mask, factor, is_causal=is_causal)
        given = (grad, query, key, value, out, logsumexp, dropout, is_causal)
        return kernels[NAME].call_boxed(keys, *given, attn_mask=attn_mask, scale=scale)

    return {NAME: backward}


_replaced = Replaced((NAME,), _replacements)
