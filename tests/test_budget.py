"""The budget by itself: noise for an epsilon, epsilon of a noise, and what is refused."""

import re

import pytest

import dpexp
from dpexp.cli import budget
from dpexp.types import ConfigError

RUN = ["delta=1e-5", "dataset_size=50000", "batch_size=1000", "epochs=20"]


@pytest.mark.parametrize(
    ("eps", "delta", "q", "steps"),
    [(0.5, 1e-5, 0.02, 100), (2.0, 1e-7, 0.2, 30), (8.0, 1e-5, 0.02, 500), (12.0, 1e-6, 1.0, 3)],
)
def test_either_way_is_the_others_inverse(eps, delta, q, steps):
    noise = dpexp.noise_multiplier(eps=eps, delta=delta, sampling_prob=q, num_steps=steps)
    assert 0.999 * eps <= budget.epsilon(noise, delta, q, steps) <= eps
    assert budget.epsilon(1.1 * noise, delta, q, steps) < 0.97 * eps


def test_the_shell_says_what_a_run_takes(capsys):
    from dpexp.privacy import build
    from dpexp.types import Release

    assert budget.main(["eps=2", *RUN]) == 0
    shown = capsys.readouterr().out
    privacy = {"eps": 2, "delta": 1e-5, "noise": True, "clip": True, "sampling": "poisson"}
    sizes = {"dataset_size": 50_000, "batch_size": 1000, "num_steps": 1000}
    mechanism = build(privacy, releases=(Release("gradient", 1, 1.0),), seed=0, **sizes)
    assert "q = 1000 / 50000 = 0.02, 1000 steps" in shown
    found = float(re.search(r"noise multiplier (\S+) for eps 2, delta 1e-05", shown)[1])
    assert 0 <= found - mechanism.noise_multiplier < 1e-5  # as printed, it is still enough
    rows = [line.split() for line in shown.splitlines() if line and line.split()[0].isdigit()]
    noises = [float(row[1]) for row in rows]
    assert [int(row[0]) for row in rows] == [250, 500, 1000, 2000, 4000, 5, 10, 20, 40, 80]
    assert noises[:5] == sorted(noises[:5]) and noises[5:] == sorted(noises[5:])
    means = [float(row[2]) for row in rows]
    assert means[:5] == sorted(means[:5], reverse=True)  # a larger batch drowns its noise


def test_a_delta_that_protects_nobody_is_told(capsys):
    run = ["dataset_size=500", "batch_size=100", "epochs=1"]
    for delta, is_told in (("0.01", True), ("0.002", True), ("0.001", False)):
        assert budget.main(["eps=2", f"delta={delta}", *run]) == 0
        assert ("allows one example to be published" in capsys.readouterr().out) == is_told


def test_the_shell_gives_the_epsilon_of_a_noise(capsys):
    words = ["noise=1.5", "delta=1e-5", "sampling_prob=0.02", "num_steps=1000"]
    assert budget.main(words) == 0
    eps = budget.epsilon(1.5, 1e-5, 0.02, 1000)
    said = re.fullmatch(
        r"eps (\S+) at delta 1e-05 for noise multiplier 1\.5\n", capsys.readouterr().out
    )
    assert 0 <= float(said[1]) - eps < 1e-5


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (RUN, "Expected eps or noise, and not both"),
        (["eps=1", "noise=1", *RUN], "Expected eps or noise, and not both"),
        (["eps=1", *RUN[1:]], "Expected delta"),
        (["eps=1", "delta=1e-5", "epochs=2"], "Expected the run"),
        (["eps=1", *RUN, "num_steps=3"], "Expected the run"),
        (["eps=-1", *RUN], "Expected a number above 0"),
        (["eps=1", "delta=2", *RUN[1:]], r"delta in \(0, 1\)"),
        (["eps=1", "delta=1e-5", "sampling_prob=1.5", "num_steps=3"], r"sampling_prob in \(0, 1\]"),
        (["eps=1", *RUN[:2], "batch_size=60000", "epochs=1"], "batch"),
        (["eps=1", *RUN, "batchsize=3"], "batchsize"),
    ],
)
def test_a_mistake_is_one_line(words, line, capsys):
    assert budget.main(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert re.search(line, said)


def test_python_refuses_the_same():
    with pytest.raises(ConfigError, match="whole num_steps"):
        dpexp.noise_multiplier(eps=1, delta=1e-5, sampling_prob=0.1, num_steps=1.5)
    for name in ("eps", "delta", "sampling_prob", "num_steps"):
        good = {"eps": 1, "delta": 1e-5, "sampling_prob": 0.1, "num_steps": 3}
        for bad in ("8", None, True):
            with pytest.raises(ConfigError, match=f"Expected {name} to be a number; got {bad!r}"):
                dpexp.noise_multiplier(**{**good, name: bad})
    with pytest.raises(ConfigError, match="No noise is shown to give epsilon"):
        dpexp.noise_multiplier(eps=1e-9, delta=1e-12, sampling_prob=1.0, num_steps=10**6)
