"""Products and bases of matrices: cut in blocks or not, the same numbers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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


# Bases by Cholesky QR


def of_condition(shape, log_condition, log_scale, seed):
    """A float32 matrix whose singular values fall evenly on a logarithmic scale."""
    m, r = shape
    left, right = (torch.linalg.qr(drawn(k, r, seed=seed + i)).Q for i, k in enumerate((m, r)))
    values = torch.logspace(0, -log_condition, r, dtype=torch.float64)
    return ((left * values) @ right.T * 10**log_scale).float()


def is_a_basis_of(basis, matrix, tolerance=1e-6):
    """Orthonormal, and nothing of the columns lies outside its span."""
    wide, columns = basis.double(), matrix.double()
    eye = torch.eye(basis.shape[1], dtype=torch.float64)
    outside = (columns - wide @ (wide.T @ columns)).norm()
    return (
        wide.T @ wide - eye
    ).abs().max() < tolerance and outside <= tolerance * columns.norm() + 1e-37


SPOILT = {
    "none": lambda matrix: matrix,
    "nan": lambda matrix: matrix.index_fill(0, torch.tensor([1]), float("nan")),
    "inf": lambda matrix: matrix.index_fill(1, torch.tensor([0]), float("inf")),
    "zero": torch.zeros_like,
    "zero column": lambda matrix: matrix.index_fill(1, torch.tensor([-1]), 0.0),
    "dependent": lambda matrix: matrix[:, :1].expand_as(matrix).contiguous(),
    "denormal": lambda matrix: matrix / matrix.abs().max() * 1e-39,
}


@settings(max_examples=120, deadline=None)
@given(
    r=st.sampled_from([1, 2, 8, 16, 70]),
    more=st.integers(0, 300),
    seed=st.integers(0, 2**31),
    batch=st.lists(
        st.tuples(st.floats(0, 10), st.floats(-20, 20), st.sampled_from([*SPOILT])),
        min_size=1,
        max_size=4,
    ),
)
def test_stacked_bases_are_householders_to_rounding(r, more, seed, batch):
    matrices = [
        SPOILT[how](of_condition((max(2, r + more), r), condition, scale, seed + 3 * i))
        for i, (condition, scale, how) in enumerate(batch)
    ]
    stack = torch.stack(matrices)
    before = stack.clone()
    _, is_sound = linalg.cholesky_qr(stack)
    for found, matrix, is_cholesky, (condition, _, how) in zip(
        linalg.stacked_bases(stack), matrices, is_sound.tolist(), batch, strict=True
    ):
        assert found.dtype == matrix.dtype
        if matrix.isfinite().all():  # Householder's own may be less exact: 1.1e-6 lay outside
            assert is_a_basis_of(found, matrix, 1e-6 if is_cholesky else 1e-5)
        else:
            assert torch.equal(found.isnan(), torch.linalg.qr(matrix).Q.isnan())
        assert how == "none" or not is_cholesky or (how, r) == ("dependent", 1)
        assert is_cholesky or how != "none" or condition > (6 if r <= linalg.WIDE else 2)
    torch.testing.assert_close(stack, before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("r", "log_condition", "is_taken"),
    [(8, 6, True), (70, 2, True), (70, 6, False)],
)
def test_cholesky_is_taken_up_to_the_condition_that_its_precision_bears(r, log_condition, is_taken):
    matrix = of_condition((200, r), log_condition, 0, 0)
    _, is_sound = linalg.cholesky_qr(matrix[None])
    assert is_sound.tolist() == [is_taken]


def test_on_a_cpu_bases_are_householders_to_the_bit_and_huge_ones_are_not(monkeypatch):
    matrices = [drawn(90, 4, seed=1), drawn(70, 3, seed=2), drawn(90, 4, seed=3)]
    expected = [torch.linalg.qr(matrix).Q for matrix in matrices]
    for found, basis in zip(linalg.orthonormal_bases(matrices), expected, strict=True):
        assert torch.equal(found, basis)
    monkeypatch.setitem(linalg.HUGE, "cpu", 0)
    for found, basis, matrix in zip(
        linalg.orthonormal_bases(matrices), expected, matrices, strict=True
    ):
        assert not torch.equal(found, basis)
        torch.testing.assert_close(found @ found.T, basis @ basis.T, rtol=0, atol=1e-14)
        assert found.shape == matrix.shape


def test_matrices_taken_together_have_the_bases_that_they_have_alone(monkeypatch):
    shapes = [(40, 30), (30, 40), (40, 30), (3, 40), (40, 30)]
    deltas = {str(i): drawn(*shape, seed=i) for i, shape in enumerate(shapes)}

    def found():
        gen = torch.Generator().manual_seed(5)
        return {n: (a, b) for n, a, b in linalg.power_iterations(deltas.items(), 4, 2, gen)}

    alone, calls, stacked = found(), [], linalg.stacked_bases
    monkeypatch.setitem(linalg.HUGE, "cpu", 0)
    monkeypatch.setitem(linalg.AT_ONCE, "cpu", 3 * 40 * 30)
    monkeypatch.setattr(
        linalg, "stacked_bases", lambda each: calls.append(tuple(each.shape)) or stacked(each)
    )
    together = found()
    first = 2 * [(2, 40, 4), (1, 30, 4)] + [(2, 30, 4), (1, 40, 4)]  # of three matrices
    assert calls == first + 2 * [(1, 3, 3), (1, 40, 4)] + [(1, 40, 3), (1, 30, 4)]
    assert list(alone) == list(together) == list(deltas)
    for name, (left, right) in alone.items():
        other_left, other_right = together[name]
        torch.testing.assert_close(left @ left.T, other_left @ other_left.T, rtol=0, atol=1e-12)
        torch.testing.assert_close(right.T @ right, other_right.T @ other_right, rtol=0, atol=1e-12)
