"""Products and bases of matrices: cut in blocks or not, the same numbers."""

import pytest
import torch

from dpexp import linalg

LARGE = (512, 768)


def drawn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("rank", [1, 8, 16])
@pytest.mark.parametrize("shape", [LARGE, (517, 771), (768, 3072), (3, 5)])
def test_products_with_thin_matrices_are_the_plain_ones(shape, rank, dtype):
    p, d = shape
    wide, left, right = (
        drawn(*size, seed=k, dtype=dtype) for k, size in enumerate([shape, (p, rank), (rank, d)])
    )
    close = {"rtol": 1e-12, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 0, "atol": 1e-3}
    torch.testing.assert_close(linalg.thin_product(right, wide.T), right @ wide.T, **close)
    torch.testing.assert_close(linalg.thin_product(left.T, wide), left.T @ wide, **close)
    product = linalg.outer_product(left, right)
    torch.testing.assert_close(product, left @ right, **close)
    assert product.is_contiguous() and product.shape == shape


@pytest.mark.parametrize(
    ("shape", "rank", "cuts"),
    [
        ((512, 768), 8, [512 // 64, 768 // 64, 512 // 32]),
        ((512, 256), 8, [512 // 64, 256 // 64, 512 // 32]),  # no smaller one is
        ((512, 192), 8, []),
        ((517, 771), 8, []),
        ((768, 512), 32, [768 // 64, 512 // 64]),  # an update is of twice the rank
        ((768, 512), 64, []),  # GEP's bases are not thin
    ],
)
def test_large_matrices_are_cut_where_they_meet_thin_ones(shape, rank, cuts, monkeypatch):
    taken, bmm = [], torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda a, b: taken.append(len(a)) or bmm(a, b))
    left, right = linalg.power_iteration(drawn(*shape), rank, 1, torch.Generator())
    linalg.reparametrized_update(left, right, left, right)
    assert taken == cuts


def test_power_iteration_finds_the_spaces_of_a_large_low_rank_matrix():
    p, d = LARGE
    delta = drawn(p, 3, seed=1) @ drawn(3, d, seed=2)
    left, right = linalg.power_iteration(delta, 3, 1, torch.Generator().manual_seed(3))
    torch.testing.assert_close(left @ (left.T @ delta), delta, rtol=0, atol=1e-9)
    torch.testing.assert_close(delta @ right.T @ right, delta, rtol=0, atol=1e-9)
    torch.testing.assert_close(right @ right.T, torch.eye(3, dtype=delta.dtype))
