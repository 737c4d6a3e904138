"""Released noise has the declared law and full resolution, in blocks of every size, on every path.

Full resolution: hardly two numbers are alike, and the lowest bits of each are as good as coins. On
a coarser grid, such as half precision's, the sum's own low bits would show between its points.
"""

import hashlib
import itertools
import math
import re

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from dpexp.pate.votes import CHECK, VOTES
from dpexp.privacy import seeds
from dpexp.privacy.noise import _DRAWS, FAR, GRAIN, NOISE_AT_ONCE, add_noise_, with_tails_
from dpexp.privacy.seeds import generator
from dpexp.types import ConfigError, Key, Release
from tests.marks import pairs_long
from tests.steps import Setting, composed
from tests.test_pate import mechanism as votes

KEY, SCALE = Key("gradient", "a"), 1.5
ENOUGH = 5000
"""Numbers for a test of their law."""

AT_ONCE, ON_GPU = NOISE_AT_ONCE["cpu"], NOISE_AT_ONCE["gpu"]
SIZES = [1, 2, 15, 16, 17, 1000, GRAIN - 1, GRAIN + 1, AT_ONCE - 1, AT_ONCE, AT_ONCE + 1]
SIZES += [2 * AT_ONCE + 7]
SECRET = [1, 2, 15, 1000, GRAIN + 1, AT_ONCE + 1, 2 * AT_ONCE + 7]
LAWS = {"gaussian": "norm", "laplace": "laplace"}
LOW_BITS = {torch.float32: range(3, 13), torch.float64: range(9, 40)}


"""Of the mantissa; half precision lacks float32's lowest 13, float32 float64's lowest 29. The very
lowest are left out: rounding to even, and in Laplace's difference cancelling, favours zeros."""


def some_of(sizes):
    """Every other size; of two numbers, whose blocks are many, each law and type once."""
    return lambda size, dtype, noise: (
        size in sizes[1::2] and (size > 2 or (dtype is torch.float32) == (noise == "gaussian"))
    )


def release(noise, size):
    return Release(KEY.release, size, 1.0, 1.0, noise)


def drawn(size, noise, dtype, device="cpu", multiplier=1.0, *, is_secret=False):
    """Return the noise on blocks of a size, twice `ENOUGH` numbers or one block, flat."""
    parts = []
    for step in range(math.ceil(2 * ENOUGH / size)):
        sums = {KEY: torch.zeros(size, dtype=dtype, device=device)}
        gen = None if is_secret else generator(0, "noise", step, device)
        add_noise_(sums, (release(noise, size),), multiplier, gen)
        parts.append(sums[KEY].cpu())
    return torch.cat(parts)


def ones_of_low_bits(numbers):
    """Return the share of ones in each of the low bits of the mantissa, lowest first."""
    whole = {4: torch.int32, 8: torch.int64}[numbers.element_size()]
    bits = numbers.contiguous().view(whole)
    return torch.stack([(bits >> k & 1).double().mean() for k in LOW_BITS[numbers.dtype]])


def assert_full_resolution(numbers):
    count = len(numbers)
    # In float32 a few normal numbers of a million meet: the grid's step is 6e-8 near one.
    distinct = len(numbers.abs().unique())
    meet = 0 if numbers.dtype == torch.float64 else count**2 * 4e-8
    assert distinct >= count - meet - 5 * math.sqrt(meet + 1)
    assert (ones_of_low_bits(numbers) - 0.5).abs().max() < 5 * 0.5 / math.sqrt(count)


def assert_law(numbers, noise):
    """By any 5,000 of them in a row: the first, the last, and some across pieces."""
    last = len(numbers) - ENOUGH
    starts = {0, last, min(last, AT_ONCE - ENOUGH // 2)}
    for start in sorted(starts):
        some = numbers[start : start + ENOUGH].double().numpy()
        assert kstest(some, LAWS[noise]).pvalue > 1e-4
        for wrong in (2 / 3, 3 / 2):  # the test itself must be able to tell
            assert kstest(some / wrong, LAWS[noise]).pvalue < 1e-4


@pytest.mark.parametrize(
    ("size", "dtype", "noise"), pairs_long(SIZES, LOW_BITS, LAWS, short=some_of(SIZES)), ids=str
)
def test_noise_has_its_law_and_all_its_bits_in_a_block_of_any_size(size, dtype, noise):
    numbers = drawn(size, noise, dtype)
    assert_law(numbers, noise)
    assert_full_resolution(numbers)


@pytest.mark.parametrize(
    ("size", "dtype", "noise"), pairs_long(SECRET, LOW_BITS, LAWS, short=some_of(SECRET)), ids=str
)
@pytest.mark.usefixtures("known_bits")
def test_so_has_secret_noise(size, dtype, noise):
    numbers = drawn(size, noise, dtype, is_secret=True)
    assert_law(numbers, noise)
    assert_full_resolution(numbers)


def test_secret_noise_reaches_as_far_as_53_bits_do(monkeypatch):
    of_bits(monkeypatch, b"\x00" * 8)  # the smallest uniform number, 2^-53
    noise = drawn(2, "gaussian", torch.float64, is_secret=True)
    assert float(noise.abs().max()) == pytest.approx(math.sqrt(106 * math.log(2)))
    halves = b"\x00" * 16 + b"\xff" * 16  # of two numbers
    monkeypatch.setattr(seeds.os, "urandom", lambda size: (halves * size)[:size])
    noise = drawn(2, "laplace", torch.float64, is_secret=True)
    assert noise[0].item() == pytest.approx(53 * math.log(2))


@pytest.fixture
def known_bits(monkeypatch):
    """The operating system's randomness, the same in every run."""
    asked = itertools.count()

    def urandom(size):
        return hashlib.shake_256(f"call {next(asked)}".encode()).digest(size)

    monkeypatch.setattr(seeds.os, "urandom", urandom)


def of_bits(monkeypatch, word):
    """Let the operating system give one word over and over."""
    monkeypatch.setattr(seeds.os, "urandom", lambda size: word * (size // len(word)))


@pytest.mark.parametrize("noise", LAWS)
@pytest.mark.parametrize("word", [b"\x00" * 8, b"\xff" * 8, b"\x00" * 7 + b"\x80"])
def test_secret_noise_is_finite_for_any_bits(word, noise, monkeypatch):
    of_bits(monkeypatch, word)
    assert drawn(4, noise, torch.float64, is_secret=True).isfinite().all()


@pytest.mark.parametrize("noise", LAWS)
def test_so_it_has_at_any_scale(noise):
    scaled = drawn(AT_ONCE + 9, noise, torch.float32, multiplier=SCALE)
    assert_law(scaled / SCALE, noise)
    assert_full_resolution(scaled)


@pytest.mark.parametrize("noise", LAWS)
def test_so_it_has_in_a_piece_as_large_as_a_gpu_draws(noise):
    """What draws is the same function on a GPU, where such a piece is drawn at once."""
    like = torch.empty(ON_GPU // 4)
    numbers = _DRAWS[noise](like, generator(0, "noise", 0), torch.float32)
    assert_law(numbers, noise)
    few = numbers[-AT_ONCE:]
    assert_full_resolution(few)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("noise", LAWS)
@pytest.mark.parametrize("size", [1, 17, 5000, ON_GPU - 1, ON_GPU + 1])
def test_noise_has_its_law_and_all_its_bits_on_a_gpu(size, noise):
    numbers = drawn(size, noise, torch.float32, device="cuda")
    assert_law(numbers, noise)
    assert_full_resolution(numbers[-AT_ONCE:])


@pytest.mark.parametrize("dtype", LOW_BITS, ids=str)
def test_so_have_the_values_far_out(dtype):
    """A tail that is drawn again would be coarse had it kept the first draw's numbers."""
    numbers = with_tails_(torch.full((ENOUGH,), FAR, dtype=dtype), generator(0, "noise", 0))
    assert (numbers >= FAR).all() and (numbers < 9).all()
    assert (ones_of_low_bits(numbers) - 0.5).abs().max() < 5 * 0.5 / math.sqrt(ENOUGH)


def test_every_block_of_a_release_has_noise_of_its_own():
    keys = [Key("gradient", name) for name in "abc"]
    sums = {key: torch.zeros(AT_ONCE + 9) for key in keys}
    add_noise_(sums, (release("gaussian", 3 * (AT_ONCE + 9)),), 1.0, generator(0, "noise", 0))
    numbers = torch.cat([*sums.values()])
    assert_law(numbers, "gaussian")
    assert_full_resolution(numbers)


def test_noise_on_sums_leaves_none_of_their_grid():
    """Sums of whole numbers, which show where noise has none of the bits below them."""
    sums = {KEY: torch.full((AT_ONCE + 9,), 8.0)}
    add_noise_(sums, (release("gaussian", AT_ONCE + 9),), 1.0, generator(0, "noise", 0))
    assert (ones_of_low_bits(sums[KEY]) - 0.5).abs().max() < 5 * 0.5 / math.sqrt(AT_ONCE)


@pytest.mark.parametrize("noise", LAWS)
@pytest.mark.parametrize("size", [3, AT_ONCE + 9])
def test_what_comes_out_does_not_tell_in_which_precision_sums_were_held(size, noise):
    """One example that float32 cannot measure widens all sums: the draw decides on that."""
    narrow = torch.randn(size, generator=generator(0, "sums", 0))
    given = []
    for total in (narrow, narrow.double()):
        sums = {KEY: total.clone()}
        gen = generator(0, "noise", 0)
        add_noise_(sums, (release(noise, size),), 7.3, gen, torch.float32)
        given.append(sums[KEY].float())
    assert torch.equal(*given) and not torch.equal(given[0], narrow)


def test_votes_get_noise_of_the_declared_laws_with_all_their_bits():
    """PATE's blocks of one number and of a class each, from a generator a query, in float64."""
    mechanism = votes(num_classes=10)
    told = {CHECK: [], VOTES: []}
    for query in range(4000):
        for name, size in ((CHECK, 1), (VOTES, 10)):
            sums = {Key(name, "query"): torch.zeros(size, dtype=torch.float64)}
            gen = mechanism.noise_generator(name, query)
            add_noise_(sums, mechanism.releases, mechanism.noise_multiplier, gen)
            told[name].append(sums[Key(name, "query")])
    stds = {CHECK: mechanism.check_std, VOTES: mechanism.noise_multiplier}
    for name, parts in told.items():
        numbers = torch.cat(parts)
        assert kstest(numbers.numpy() / stds[name], "norm").pvalue > 1e-4
        assert_full_resolution(numbers)
    firsts = np.stack([torch.stack(told[VOTES]).numpy()[:, 0], torch.cat(told[CHECK]).numpy()])
    assert abs(np.corrcoef(firsts)[0, 1]) < 0.08  # a query's two draws are apart


def test_weights_of_two_precisions_are_refused_by_name():
    setting = Setting(composed("linear", "model=cnn", "model.channels=[4,8]", "model.kernel=3"))
    setting.model.head.double()
    with pytest.raises(ConfigError, match=r"one precision; head\.weight is in torch\.float64"):
        setting.step()


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("which", ["all", "a frozen one"])
def test_weights_too_coarse_for_noise_are_refused_by_name(kind, which):
    """Sums take their precision from the first weight, trained or not."""
    setting = Setting(composed("linear", "model=cnn", "model.channels=[4,8]", "model.kernel=3"))
    some = setting.model if which == "all" else next(setting.model.children())
    name, _ = next(iter(setting.model.named_parameters()))
    with torch.no_grad():
        for weight in some.parameters():
            weight.data = weight.data.to(kind)
    with pytest.raises(ConfigError, match=rf"float32 or float64; {re.escape(name)} is in {kind}"):
        setting.step()


@pytest.mark.parametrize(
    "coarse",
    [
        lambda x: x.half().float(),
        lambda x: x.bfloat16().float(),
        lambda x: (x * 2**14).round() / 2**14,
        lambda x: torch.cat([x[: len(x) // 2], -x[: len(x) // 2]]),
        lambda x: x.view(torch.int32).bitwise_and(-16).view(torch.float32),
    ],
    ids=["half", "bfloat16", "fixed point", "repeated", "four bits short"],
)
def test_the_test_of_resolution_can_tell(coarse):
    numbers = drawn(GRAIN, "gaussian", torch.float32)
    assert_full_resolution(numbers)
    with pytest.raises(AssertionError):
        assert_full_resolution(coarse(numbers).contiguous())
