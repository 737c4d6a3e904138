"""What a privacy budget costs in noise: the noise for an epsilon, or the epsilon of a noise.

dpexp budget eps=8 delta=1e-5 dataset_size=50000 batch_size=1000 epochs=200
dpexp budget noise=1.4 delta=1e-5 sampling_prob=0.02 num_steps=10000

Of a Gaussian mechanism whose batches are Poisson samples; neighbouring data sets differ by one
example added or removed. Words, each WORD=VALUE:

    eps=8 or noise=1.4            what is given; the other is found
    delta=1e-5                    below 1 / dataset_size
    dataset_size= batch_size= epochs=
                                  the run; with these the answer is also shown for other batch sizes
                                  and lengths
    sampling_prob= num_steps=     in their place: q, the batch size over N, and the number of steps

The noise multiplier is the noise's standard deviation over the clip norm, for a method of one
release (`dpexp verify` tells of a run's own). Exit code: 0; 2 for a mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

from dpexp.cli.arguments import Reader, exit_code_of, only, positive, whole
from dpexp.records.rounded import at_most
from dpexp.types import ConfigError, counted

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Times the batch size, and times the epochs, that the answer is shown for."""


def noise_multiplier(eps: float, delta: float, sampling_prob: float, num_steps: int) -> float:
    """Return the least noise multiplier for a budget.

    Args:
        eps: > 0.
        delta: in (0, 1).
        sampling_prob: q in (0, 1], the expected batch size over the number of examples.
        num_steps: >= 1.

    Returns:
        The noise's standard deviation over the clip norm. Its epsilon is at most eps and above
        0.999 eps, by PRV; where PRV fails, by RDP.

    Raises:
        ConfigError: for a number out of range, or if no noise is enough.
    """
    from dpexp.privacy.accounting import calibrate

    _check(delta, sampling_prob, num_steps, eps=eps)
    _require(0 < eps < float("inf"), f"Expected eps > 0; got {eps:g}. Set eps.")
    return calibrate(sampling_prob, num_steps, delta, eps)[0]


def epsilon(noise: float, delta: float, sampling_prob: float, num_steps: int) -> float:
    """Return the epsilon that a noise multiplier gives, by PRV; where that fails, by RDP.

    Args:
        noise: the noise's standard deviation over the clip norm, > 0.
        delta: in (0, 1).
        sampling_prob: q in (0, 1].
        num_steps: >= 1.

    Raises:
        ConfigError: for a number out of range, or if no accountant can tell.
    """
    from dpexp.privacy.accounting import PRVFailed, prv_epsilon
    from dpexp.privacy.rdp import rdp_epsilon

    _check(delta, sampling_prob, num_steps, noise=noise)
    _require(0 < noise < float("inf"), f"Expected noise > 0; got {noise:g}. Set noise.")
    try:
        return prv_epsilon(sampling_prob, noise, num_steps, delta)
    except (PRVFailed, ArithmeticError):
        pass
    try:
        return rdp_epsilon(sampling_prob, noise, num_steps, delta)
    except ArithmeticError:
        raise ConfigError(
            f"No accountant can tell the epsilon of noise={noise:g} over "
            f"{counted(num_steps, 'step')}. Set a larger noise."
        ) from None


def _check(delta: float, sampling_prob: float, num_steps: int, **other: float) -> None:
    numbers = {"delta": delta, "sampling_prob": sampling_prob, "num_steps": num_steps, **other}
    for name, value in numbers.items():
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        _require(is_number, f"Expected {name} to be a number; got {value!r}. Set {name}.")
    _require(0 < delta < 1, f"Expected delta in (0, 1); got {delta:g}. Set delta.")
    _require(
        0 < sampling_prob <= 1,
        f"Expected sampling_prob in (0, 1]; got {sampling_prob:g}. Set sampling_prob.",
    )
    _require(
        isinstance(num_steps, Integral) and num_steps >= 1,
        f"Expected a whole num_steps >= 1; got {num_steps}. Set num_steps.",
    )


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ConfigError(message)


RUN = ("dataset_size", "batch_size", "epochs")
STEPS = ("sampling_prob", "num_steps")
READERS: dict[str, Reader] = {
    **dict.fromkeys(("eps", "noise", "delta", "epochs", "sampling_prob"), positive),
    **dict.fromkeys(("dataset_size", "batch_size", "num_steps"), whole(1)),
}


def main(words: Sequence[str]) -> int:
    """Print the answer; return the exit code."""
    return exit_code_of(_main, words, __doc__)


def _main(words: Sequence[str]) -> int:
    given = only(words, READERS)
    if ("eps" in given) == ("noise" in given):
        raise ConfigError("Expected eps or noise, and not both. Set eps=8, for instance.")
    if "delta" not in given:
        raise ConfigError("Expected delta, below 1 over the number of examples. Set delta=1e-5.")
    named = given.keys() - {"eps", "noise", "delta"}
    has_run = named == set(RUN)
    if not has_run and named != set(STEPS):
        raise ConfigError(
            f"Expected the run, as {', '.join(RUN)}; or {' and '.join(STEPS)} in their place."
        )
    if not has_run:
        print(*_answer(given, given["sampling_prob"], given["num_steps"]), sep="\n")
        return 0
    from dpexp.privacy import num_steps

    size, batch, epochs = (given[name] for name in RUN)
    steps = num_steps(epochs, size, batch)
    print(f"q = {batch:g} / {size:g} = {batch / size:.6g}, {counted(steps, 'step')}")
    print(*_answer(given, batch / size, steps), sep="\n")
    for name, runs in (
        ("batch size", [(round(f * batch), epochs) for f in FACTORS if 1 <= f * batch <= size]),
        ("epochs", [(batch, f * epochs) for f in FACTORS]),
    ):
        print(f"\n{name:>10}  {'noise multiplier' if 'eps' in given else 'epsilon':>16}"
              f"  {'noise of the mean':>17}")  # fmt: skip
        for some_batch, some_epochs in runs:
            q, steps = some_batch / size, num_steps(some_epochs, size, some_batch)
            found = _found(given, q, steps)
            noise = found if "eps" in given else given["noise"]
            value = some_batch if name == "batch size" else some_epochs
            print(f"{value:>10g}  {at_most(found):>16}  {noise / some_batch:>17.3g}")
    print("\nNoise of the mean: standard deviation of a coordinate, in clip norms.")
    if given["delta"] >= 1 / size:
        print(f"delta={given['delta']:g} is not below 1 / dataset_size = {1 / size:.3g}: such a "
              "guarantee allows one example to be published.")  # fmt: skip
    return 0


def _found(given: dict[str, Any], q: float, steps: int) -> float:
    if "eps" in given:
        return noise_multiplier(given["eps"], given["delta"], q, steps)
    return epsilon(given["noise"], given["delta"], q, steps)


def _answer(given: dict[str, Any], q: float, steps: int) -> list[str]:
    found = at_most(_found(given, q, steps), digits=6)
    if "eps" in given:
        return [f"noise multiplier {found} for eps {given['eps']:g}, delta {given['delta']:g}"]
    return [f"eps {found} at delta {given['delta']:g} for noise multiplier {given['noise']:g}"]
