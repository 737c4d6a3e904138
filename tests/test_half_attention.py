"""Gradients of attention in half precision: right for any operands, and for short texts alone."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel

from dpexp.kernels import attention_by_products, fast_kernels, half_attention

pytestmark = pytest.mark.skipif(
    not hasattr(torch.library, "get_kernel") or not hasattr(torch.ops.aten, half_attention.NAME),
    reason="this torch has no such kernel, or none that can be replaced",
)

MASKS = ["none", "causal", "added", "each head's", "some alone", "of booleans", "pairs'", "keys'"]


def mask_of(kind, n, heads, t, s, gen, dtype):
    if kind in ("none", "causal"):
        return None
    shape = {"each head's": (n, heads, t, s), "pairs'": (t, s), "keys'": (n, 1, 1, s)}
    kept = torch.rand(shape.get(kind, (n, 1, t, s)), generator=gen) < 0.7
    if kind == "some alone":  # with nothing to see
        kept[torch.rand(n, 1, t, generator=gen) < 0.3] = False
    else:
        kept[..., 0] = True
    if kind == "of booleans":
        return kept
    return torch.zeros(kept.shape, dtype=dtype).masked_fill(~kept, -math.inf)


def operands(n, heads, t, s, d, gen, dtype):
    """Query, key, value and the gradient at the output, heads beside each other as in layers."""
    sizes = (t, s, s, t)
    return [torch.randn(n, k, heads, d, generator=gen).to(dtype).transpose(1, 2) for k in sizes]


def gradients(given, at_output, mask, **options):
    leaves = [each.detach().clone().requires_grad_() for each in given]
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        out = F.scaled_dot_product_attention(*leaves, attn_mask=mask, **options)
    return torch.autograd.grad(out, leaves, at_output)


@given(
    n=st.integers(1, 5),
    heads=st.integers(1, 3),
    t=st.integers(1, 19),
    s=st.integers(1, 19),
    d=st.integers(1, 17),
    kind=st.sampled_from(MASKS),
    dtype=st.sampled_from(half_attention.HALF),
    scale=st.sampled_from([None, 0.1, 1.5]),
    held=st.sampled_from([1, 500, half_attention.AT_ONCE]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=60, deadline=None)
def test_they_are_the_gradients_in_any_setting(n, heads, t, s, d, kind, dtype, scale, held, seed):
    gen = torch.Generator().manual_seed(seed)
    *given, at_output = operands(n, heads, t, s, d, gen, dtype)
    mask, is_causal = mask_of(kind, n, heads, t, s, gen, dtype), kind == "causal"
    options = {"scale": scale, "is_causal": is_causal}
    wide = mask if mask is None or mask.dtype == torch.bool else mask.double()
    expected = gradients([each.double() for each in given], at_output.double(), wide, **options)
    with pytest.MonkeyPatch.context() as patched, attention_by_products():
        patched.setattr(half_attention, "AT_ONCE", held)
        found = gradients(given, at_output, mask, **options)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        scope = other.abs().max() + at_output.double().abs().max() * torch.finfo(dtype).eps
        assert (one.double() - other).abs().max() <= 4 * torch.finfo(dtype).eps * scope


@pytest.mark.parametrize("kind", ["none", "added", "causal"])
def test_it_takes_short_texts_in_half_precision_within_the_context_alone(kind):
    gen = torch.Generator().manual_seed(1)

    def found(t, dtype, within, d=8):
        *given, at_output = operands(2, 3, t, t, d, gen, dtype)
        mask, is_causal = mask_of(kind, 2, 3, t, t, gen, dtype), kind == "causal"
        plain = gradients(given, at_output, mask, is_causal=is_causal)
        with within():
            ours = gradients(given, at_output, mask, is_causal=is_causal)
        after = gradients(given, at_output, mask, is_causal=is_causal)
        assert all(map(torch.equal, plain, after))
        factor = d**-0.5
        own = half_attention.gradients(at_output, *given, mask, factor, is_causal=is_causal)
        return all(map(torch.equal, ours, own)), all(map(torch.equal, ours, plain))

    assert found(20, torch.bfloat16, fast_kernels) == (True, False)
    assert found(20, torch.float32, fast_kernels) == (False, True)
    assert found(129, torch.bfloat16, fast_kernels) == (False, True)


def test_heads_that_share_keys_are_left_to_torch():
    gen = torch.Generator().manual_seed(2)
    query, *_, at_output = operands(2, 4, 6, 6, 8, gen, torch.bfloat16)
    _, key, value, _ = operands(2, 2, 6, 6, 8, gen, torch.bfloat16)
    plain = gradients([query, key, value], at_output, None, enable_gqa=True)
    with fast_kernels():
        ours = gradients([query, key, value], at_output, None, enable_gqa=True)
    assert all(map(torch.equal, ours, plain))
