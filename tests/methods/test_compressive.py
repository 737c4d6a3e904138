"""Compressive SGD against its algorithm boxes, and its sensitivity against every neighbour."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest
from torch import nn

from dpexp import cli
from dpexp.data import Examples
from dpexp.data.regression import squared_error
from dpexp.distributed.ranks import Ranks
from dpexp.methods.compressive import MEASURED, Compressive
from dpexp.methods.cosamp import cosamp, keep_largest
from dpexp.privacy import whole_batch
from dpexp.privacy.seeds import generator
from dpexp.training.gradient import PrivateGradient
from dpexp.types import ConfigError
from tests.methods import literal
from tests.runs import Watched

NUM, SIZE, P, XI = 12, 9, 7, 0.5
CLOSE = {"rtol": 1e-9, "atol": 1e-12}
pytestmark = pytest.mark.filterwarnings("ignore:p=.* do not compress")


class Regression(nn.Module):
    """theta^T x, somewhere off the optimum."""

    def __init__(self, size=SIZE):
        super().__init__()
        self.head = nn.Linear(size, 1, bias=False)
        nn.init.normal_(self.head.weight, generator=torch.Generator().manual_seed(5))
        self.double()

    def forward(self, x):
        return self.head(x)


def data(num=NUM, size=SIZE, seed=1):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(num, size, generator=gen, dtype=torch.float64)
    return x, torch.rand(num, generator=gen, dtype=torch.float64)


def make(**options):
    defaults = {"kappa": 3, "p": P, "psi": "gaussian", "bound": "box", "xi": XI}
    return Compressive(**{**defaults, "batch_size": NUM, "head": "head", **options})


UNSPARSIFIED = {"kappa": None, "psi": "none"}


def take_step(model, method, x, y, *, step=0, multiplier=0.0, micro_batch=NUM, clip=True):
    """One step on all of x, and what was released times the expected batch size."""
    state = method.start(model)
    watched = Watched(method)
    mechanism = whole_batch(len(x), method.releases(state, XI), multiplier, clip=clip)
    ranks = Ranks(0, 1, torch.device("cpu"))
    with PrivateGradient(
        model, watched, mechanism, ranks, micro_batch, loss=squared_error
    ) as gradient:
        outcome = gradient(state, Examples(x, y), step)
    return outcome, watched.released[MEASURED] * len(x), watched.given


# The algorithm boxes


def literal_cosamp(psi, kappa, y):
    """Algorithm 1, every one of its rounds until nothing is left to explain."""
    size = psi.shape[1]
    z, u = np.zeros(size), y
    for _ in range(6 * (kappa + 1)):
        by_size = np.argsort(-abs(psi.T @ u), kind="stable")
        chosen = sorted({*by_size[: 2 * kappa], *np.flatnonzero(z)})
        b = np.zeros(size)
        b[chosen] = np.linalg.pinv(psi[:, chosen]) @ y
        kept = np.argsort(-abs(b), kind="stable")[:kappa]
        z = np.zeros(size)
        z[kept] = b[kept]
        u = y - psi @ z
        if np.linalg.norm(u) <= 100 * np.finfo(y.dtype).eps * np.linalg.norm(y):
            break
    return z


def literal_update(gradients, psi, kappa, xi):
    """Algorithm 3, lines 2 to 4, through Algorithm 2 without noise."""
    mean = np.clip(gradients, -xi, xi).mean(0)
    v = np.zeros_like(mean)
    kept = np.argsort(-abs(mean), kind="stable")[:kappa]
    v[kept] = mean[kept]
    if psi is None:
        return v
    y = psi @ (v / (2 * xi * kappa))
    return 2 * xi * kappa * literal_cosamp(psi, kappa, y)


@pytest.mark.parametrize("micro_batch", [1, 5, NUM])
@pytest.mark.parametrize("psi", ["gaussian", "none"])
@pytest.mark.parametrize("kappa", [1, 3, None])
def test_a_step_is_algorithm_3(kappa, psi, micro_batch):
    model, (x, y), method = Regression(), data(), make(kappa=kappa, psi=psi)
    outcome, _, state = take_step(model, method, x, y, micro_batch=micro_batch)
    each = literal.gradients(model, x, y, squared_error)["head.weight"].flatten(1)
    assert (each.abs() > XI).any() and outcome.clipped > 0
    drawn = state["psi"].numpy() if psi == "gaussian" else None
    expected = literal_update(each.numpy(), drawn, SIZE if kappa is None else kappa, XI)
    got = outcome.gradients["head.weight"].flatten()
    torch.testing.assert_close(got, torch.from_numpy(expected), **CLOSE)
    assert outcome.examples == NUM and outcome.gradients["head.weight"].shape == (1, SIZE)


def test_psi_is_gaussian_of_variance_one_over_p_and_drawn_anew_at_every_step():
    method, model = make(p=500), Regression(400)
    state, drawn = method.start(model), []
    for step in range(2):
        state = method.prepare(model, state, None, generator(0, "method", step))
        drawn.append(state["psi"])
        _, state = method.reconstruct(state, {MEASURED: torch.zeros(500, dtype=torch.float64)})
    assert not torch.equal(*drawn)
    for psi in drawn:
        assert kstest((math.sqrt(500) * psi).flatten().numpy()[:20_000], "norm").pvalue > 1e-3
    norms = [float(psi.abs().sum(0).max()) for psi in drawn]
    assert state["column_norms"] == pytest.approx(norms)


def test_the_noise_in_the_papers_units_is_laplace_of_the_largest_column_norm_over_epsilon():
    """Algorithm 2, line 3, with the scale that Proposition 1 needs."""
    epsilon, method = 0.7, make(p=400, batch_size=NUM)
    model, (x, y) = Regression(), data()
    (release,) = method.releases(method.start(model), XI)
    added = []
    for step in range(20):
        _, noisy, state = take_step(
            model, method, x, y, step=step, multiplier=release.sensitivity / epsilon
        )
        _, silent, _ = take_step(model, method, x, y, step=step)
        norm = float(state["psi"].abs().sum(0).max())
        to_y = norm / (2 * XI * 3) / NUM
        added.append((noisy - silent) * to_y / (norm / epsilon))
    added = torch.cat(added).numpy()
    assert (added != 0).all()
    assert kstest(added, "laplace").pvalue > 1e-3
    for wrong in (0.8, 1.25):
        assert kstest(added / wrong, "laplace").pvalue < 1e-6


@given(st.integers(0, 2**31), st.integers(1, 4), st.booleans())
def test_cosamp_is_algorithm_1_in_all_its_rounds(seed, kappa, is_noisy):
    gen = torch.Generator().manual_seed(seed)
    psi = torch.randn(15, 12, generator=gen, dtype=torch.float64)
    z = keep_largest(torch.randn(12, generator=gen, dtype=torch.float64), kappa)
    y = psi @ z + is_noisy * torch.randn(15, generator=gen, dtype=torch.float64)
    expected = torch.from_numpy(literal_cosamp(psi.numpy(), kappa, y.numpy()))
    torch.testing.assert_close(cosamp(psi, kappa, y), expected, **CLOSE)


def test_cosamp_finds_a_sparse_vector_from_fewer_measurements_than_entries():
    gen = torch.Generator().manual_seed(0)
    psi = torch.randn(60, 200, generator=gen, dtype=torch.float64) / math.sqrt(60)
    z = keep_largest(torch.randn(200, generator=gen, dtype=torch.float64), 5)
    torch.testing.assert_close(cosamp(psi, 5, psi @ z), z)


def test_cosamp_keeps_what_its_first_round_has_found():
    """Later rounds may take more entries than there are measurements, chosen by rounding alone."""
    kept = 0
    for seed in range(200):
        gen = torch.Generator().manual_seed(seed)
        psi = torch.randn(7, 9, generator=gen, dtype=torch.float64)
        z = keep_largest(torch.randn(9, generator=gen, dtype=torch.float64), 3)
        y = psi @ z
        first = set((psi.T @ y).abs().topk(6).indices.tolist())
        if set(z.nonzero().flatten().tolist()) <= first:
            torch.testing.assert_close(cosamp(psi, 3, y), z, rtol=1e-9, atol=1e-11)
            kept += 1
    assert kept > 50


# One example's influence


@given(
    seed=st.integers(0, 2**31),
    options=st.sampled_from(
        [{}, {"kappa": 1}, {"kappa": None}, {"psi": "none"}, UNSPARSIFIED]
        + [{**UNSPARSIFIED, "bound": "example"}]
    ),
    log_scale=st.floats(-9, 9),
    expected=st.sampled_from([1, 3, NUM]),
)
def test_adding_one_example_moves_the_release_by_at_most_the_declared_sensitivity(
    seed, options, log_scale, expected
):
    method, model = make(**options, batch_size=expected), Regression()
    x, y = data(seed=seed)
    x[-1] *= 10**log_scale
    y[-1] *= -(10**log_scale)
    (release,) = method.releases(method.start(model), XI)
    assert (release.noise, release.clip) == ("laplace", "coordinates")
    _, full, _ = take_step(model, method, x, y)
    _, without, _ = take_step(model, method, x[:-1], y[:-1])
    moved = float((full - without).abs().sum())
    assert moved <= release.sensitivity * release.clip_norm * (1 + 1e-9)


@pytest.mark.parametrize(
    "options", [{}, {"kappa": None}, {**UNSPARSIFIED, "bound": "example"}], ids=str
)
def test_a_certificate_is_held_to_the_sensitivity_that_is_declared(options):
    settings = {"kappa": 3, "bound": "box", **options, "batch_size": 5, "xi": XI}
    config = {"method": settings, "privacy": {"clip_norm": XI}}
    (stated,) = Compressive.stated_releases(config, SIZE)
    method = make(**options, batch_size=5)
    (declared,) = method.releases(method.start(Regression()), XI)
    assert stated.sensitivity == pytest.approx(declared.sensitivity, rel=1e-12)


def test_one_example_among_many_can_change_every_entry_that_is_kept():
    """Why the declared sensitivity does not fall with the number of examples."""
    num, kappa = 1002, 3
    method = make(kappa=kappa, psi="none", batch_size=num)
    model = Regression(2 * kappa)
    nn.init.zeros_(model.head.weight)
    first, last = torch.eye(2, dtype=torch.float64).repeat_interleave(kappa, 1)
    x = torch.ones(num, 2 * kappa, dtype=torch.float64)
    y = torch.full((num,), -1e3, dtype=torch.float64)  # gradients of 2000 x, clipped
    x[-2] = first * XI / 2 / 2000  # half a gradient tips the balance one way,
    x[-1] = last  # and a whole one the other
    _, full, _ = take_step(model, method, x, y, micro_batch=num)
    _, without, _ = take_step(model, method, x[:-1], y[:-1], micro_batch=num)
    assert full.nonzero().flatten().tolist() == [3, 4, 5]
    assert without.nonzero().flatten().tolist() == [0, 1, 2]
    (release,) = method.releases(method.start(model), XI)
    moved = float((full - without).abs().sum())
    assert 0.998 < moved / (release.sensitivity * XI) <= 1


def test_the_sum_of_a_larger_draw_than_expected_stays_in_the_box():
    method, model, (x, y) = make(psi="none", kappa=None, batch_size=2), Regression(), data()
    _, total, _ = take_step(model, method, x, y - 1e6)
    assert total.abs().max() == pytest.approx(2 * XI)


# Options


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kappa": 10}, r"kappa in \[1, 9\].*got kappa=10. Set method.kappa"),
        ({"kappa": 0}, r"kappa in \[1, 9\].*got kappa=0"),
        ({"kappa": "abc"}, r"kappa in \[1, 9\].*got kappa=abc"),
        ({"kappa": True}, r"kappa in \[1, 9\].*got kappa=True"),
        ({"p": 2}, "Expected p >= 3; got p=2. Set method.p"),
        ({"xi": 0.0}, "Expected xi > 0; got xi=0.0. Set privacy.clip_norm"),
        ({"xi": math.nan}, "Expected xi > 0"),
        ({"psi": "gausian"}, "Did you mean gaussian?"),
        ({"bound": "bx"}, "Did you mean box?"),
        ({"bound": "example"}, "bound=example with psi=none and kappa=null only"),
        ({"bound": "example", "psi": "none"}, "Set method.bound=box"),
    ],
    ids=str,
)
def test_an_option_outside_its_range_is_one_clear_line(options, said):
    with pytest.raises(ConfigError, match=said) as raised:
        make(**options).start(Regression())
    assert "\n" not in str(raised.value)


def test_measurements_that_compress_nothing_are_warned_of():
    with pytest.warns(UserWarning, match="p=20 measurements of 9 coordinates"):
        make(p=20).start(Regression())


# Whole runs


def execute(results, *words):
    base = ["method=compressive", "profile=embedded", "device=cpu", f"results={results}"]
    directory = cli.execute(cli.compose([*base, *words]))
    read = {name: json.loads((directory / f"{name}.json").read_text()) for name in OUTPUTS}
    return read["result"], read["privacy"]


OUTPUTS = ("result", "privacy")


def test_a_run_states_the_noise_it_drew_and_what_the_papers_would_have_cost(tmp_path):
    words = ["task=regression", "epochs=40", "eval_every=40", "eps=2", "privacy.budget=per_step"]
    result, privacy = execute(tmp_path, *words)
    assert (result["metric"], result["eps"], result["delta"]) == ("relative_loss", 80, 0)
    assert result["relative_loss"] > 0 and privacy["steps"] == privacy["noise_draws"] == 40
    (release,) = privacy["releases"]
    assert (release["dimension"], release["noise"], release["clip"]) == (
        20,
        "laplace",
        "coordinates",
    )
    assert release["sensitivity"] == 2 * 5 * 2000
    assert privacy["epsilon"]["pure"] == pytest.approx(80) == privacy["epsilon"]["pld"]
    assert privacy["epsilon"]["pure"] <= privacy["target_epsilon"] == 80
    norms, paper = privacy["column_norms"], privacy["paper"]
    assert norms["largest"] > norms["mean"] > paper["column_norm"] == pytest.approx(math.sqrt(20))
    # Full batches: each step would have cost eps times its column norm over the paper's.
    assert paper["epsilon"] == pytest.approx(80 * norms["mean"] / paper["column_norm"])


def test_weights_of_zero_are_a_row_whose_loss_is_that_of_no_prediction(tmp_path):
    words = ["method=nonprivate", "optimizer.lr=1e-30", "task=regression", "epochs=2"]
    config = cli.compose([*words, "profile=embedded", "device=cpu", f"results={tmp_path}"])
    result = json.loads((cli.execute(config) / "result.json").read_text())
    task = cli.build_task(config, "cpu")
    x, y = (part.double().numpy() for part in (task.train.inputs, task.train.targets))
    least = np.mean((y - x @ np.linalg.lstsq(x, y)[0]) ** 2)
    assert result["relative_loss"] == pytest.approx(np.mean(y**2) / least - 1, rel=1e-5)
    assert result["relative_loss"] == pytest.approx(25.81, abs=0.005)


def test_classifying_digits_runs_too_on_a_linear_model(tmp_path):
    result, privacy = execute(tmp_path, "task=digits", "epochs=1", "eval_every=1")
    assert (result["model"], result["metric"]) == ("linear", "test_accuracy")
    assert privacy["trainable"] == {"head.weight": 640}
    assert privacy["epsilon"]["pure"] <= 8 and privacy["q"] == pytest.approx(360 / 1437)


@pytest.mark.long
def test_without_noise_it_learns_and_without_a_choice_of_entries_it_learns_in_private(tmp_path):
    unsparsified = ["method.kappa=null", "method.psi=none"]
    silent = ["noise=false", "clip=false", "eps=null"]
    words = ["task=regression", "epochs=100", "eval_every=100", "privacy.clip_norm=0.5"]
    losses = {
        name: execute(tmp_path, *words, *more)[0]["relative_loss"]
        for name, more in {
            "start": [*silent, "epochs=1", "optimizer.lr=1e-9"],
            "sparsified": silent,
            "whole": [*silent, *unsparsified],
            "private": [*unsparsified, "method.bound=example", "eps=8"],
        }.items()
    }
    assert losses["whole"] < losses["start"] / 3
    assert losses["sparsified"] < losses["start"] / 3
    assert losses["private"] < losses["start"] / 2  # at eps = 8 for the whole run
