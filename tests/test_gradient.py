"""One private step, from a Poisson draw to gradients, with every method on real digits."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest
from torch import nn

import run
from dpexp import checkpoint
from dpexp.gradient import PrivateGradient
from dpexp.mechanism import whole_batch
from dpexp.methods.dpsgd import DPSGD
from dpexp.methods.powersgd import PowerSGD
from dpexp.methods.rgp import RGP
from dpexp.ranks import Ranks
from dpexp.taps import Tape
from dpexp.tasks import Examples
from dpexp.train import make_mechanism
from dpexp.types import Batch
from tests.runs import Watched, total_of

CPU = torch.device("cpu")
ALONE = Ranks(0, 1, CPU)
METHODS = sorted(  # a method with a loop of its own takes no such steps
    path.stem
    for path in (run.CONF / "method").glob("*.yaml")
    if "loop" not in yaml.safe_load(path.read_text())
)
PAPERS = ["dpsgd", "rgp", "rgp_random", "dp_powersgd", "lsg", "sparse_dpsgd"]
PRIVATE = ["noise=true", "clip=true", "eps=8"]
FEW = ["method.m=20", "method.k=10"]
SMALLER = {
    "gep": FEW,
    "bgep": FEW,
    "bitfit": ["model=cnn"],
    "rgp_public": ["method.public_examples=20"],
    "rgp_core": ["method.public_examples=20"],
}
"""Settings that cost time and decide nothing here; and a model with biases, which WRN has not."""
WIDER = {
    "compressive": ["method.p=200"],
    "bgep": ["model=linear", "method.m=400", "method.k=400"],
    "rgp_core": ["method.rank=64"],
}
"""Settings that release more numbers a step, so that a sample of noise takes fewer steps."""


def composed(method, *words):
    base = ["task=digits", "profile=embedded", "batch_size=40", *PRIVATE]
    return run.compose([f"method={method}", *base, *SMALLER.get(method, []), *words])


class Wide:
    """Examples in float64."""

    def __init__(self, examples):
        self.examples = examples

    def __len__(self):
        return len(self.examples)

    def batch(self, indices):
        batch = self.examples.batch(indices)
        return Batch(batch.inputs.double(), batch.targets)

    def micro_batches(self, indices, size):
        return self.examples.micro_batches(indices, size)


class Setting:
    """A composed config's parts, and steps with them."""

    def __init__(self, config, dtype=torch.float32):
        self.parts = run.build_parts(config, CPU)
        self.model = self.parts.model.to(dtype)
        self.method = Watched(self.parts.method)
        self.state = self.method.start(self.model)
        self.mechanism = make_mechanism(
            config, self.parts.task.dataset_size, self.method, self.state, ALONE
        )
        train, public = self.parts.task.train, self.parts.task.public
        self.examples = train if dtype == torch.float32 else Wide(train)
        self.public = public if public is None or dtype == torch.float32 else Wide(public)

    def step(self, step=0, micro_batch=40, state=None, **changes):
        mechanism = replace(self.mechanism, **changes)
        with PrivateGradient(
            self.model, self.method, mechanism, ALONE, micro_batch, self.public
        ) as gradient:
            return gradient(self.state if state is None else state, self.examples, step)

    def find_step(self, fits):
        return next(step for step in range(5000) if fits(len(self.mechanism.sample(step))))


def flat(blocks):
    return torch.cat([block.flatten() for block in blocks.values()])


def distance(a, b):
    return float(torch.linalg.vector_norm(flat(a) - flat(b)) / torch.linalg.vector_norm(flat(b)))


# Micro-batches


@pytest.mark.parametrize(
    ("dtype", "micro_batches", "changes", "bound"),
    [
        (torch.float32, (5, 13), {}, 1e-6),
        (torch.float32, (5, 13), {"noise": False}, 1e-6),
        # Batches of one go through other convolution kernels, which round otherwise: in float32
        # some processors' differ by more than 1e-6.
        (torch.float64, (1, 13), {"noise": False}, 1e-14),
    ],
    ids=["step", "sums", "sums in float64"],
)
@pytest.mark.parametrize("method", METHODS)
def test_a_step_does_not_depend_on_the_micro_batch_size(
    method, dtype, micro_batches, changes, bound
):
    setting = Setting(composed(method), dtype)
    whole = setting.step(micro_batch=1000, **changes)
    assert whole.examples > 13
    for micro_batch in micro_batches:
        parts = setting.step(micro_batch=micro_batch, **changes)
        assert parts.gradients.keys() == whole.gradients.keys()
        assert distance(parts.gradients, whole.gradients) < bound
        assert parts.loss == pytest.approx(whole.loss, rel=1e-6)
        assert (parts.examples, parts.clipped) == (whole.examples, whole.clipped)


@pytest.mark.parametrize("method", PAPERS)
def test_steps_on_end_do_not_depend_on_the_micro_batch_size(method):
    config = composed(method)
    if method == "rgp":
        config["method"]["warm_up_steps"] = 2  # so that bases of the update are among them
    ends = []
    for micro_batch in (7, 1000):
        setting = Setting(config, torch.float64)
        parameters = dict(setting.model.named_parameters())
        state = setting.state
        for step in range(4):
            outcome = setting.step(step, micro_batch, state)
            state = outcome.state
            with torch.no_grad():
                for name, gradient in outcome.gradients.items():
                    parameters[name] -= 0.1 * gradient
        ends.append({name: parameter.detach() for name, parameter in parameters.items()})
    assert distance(*ends) < 1e-12


# Draws


def clipped_one_by_one(setting, indices, clip_norm):
    """Sum clipped gradients from batches of one: obviously correct, but slow."""
    named = dict(setting.model.named_parameters())
    total = {name: torch.zeros_like(parameter) for name, parameter in named.items()}
    for index in indices.split(1):
        batch = setting.examples.batch(index)
        loss = F.cross_entropy(setting.model(batch.inputs), batch.targets)
        gradients = torch.autograd.grad(loss, list(named.values()))
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
        for sum_, gradient in zip(total.values(), gradients, strict=True):
            sum_ += gradient * min(1.0, clip_norm / float(norm))
    return total


@pytest.mark.parametrize("clip_norm", [1.0, 1000.0], ids=["all clipped", "none clipped"])
def test_a_draw_larger_than_expected_is_used_whole_and_divided_by_the_expected_size(clip_norm):
    config = composed("dpsgd", "batch_size=12", f"privacy.clip_norm={clip_norm}")
    setting = Setting(config, torch.float64)
    step = setting.find_step(lambda drawn: drawn >= 18)
    drawn = setting.mechanism.sample(step)
    outcome = setting.step(step, noise=False)
    expected = {name: g / 12 for name, g in clipped_one_by_one(setting, drawn, clip_norm).items()}
    assert outcome.examples == len(drawn) >= 18
    assert outcome.clipped == (len(drawn) if clip_norm == 1.0 else 0)
    assert distance(outcome.gradients, expected) < 1e-12


def draw(release, like, gen):
    """Draw noise of scale one as the release declares it."""
    if release.noise == "gaussian":
        return torch.randn(like.shape, generator=gen)
    plus, minus = torch.empty(2, *like.shape, dtype=torch.float64).exponential_(generator=gen)
    return (plus - minus).float()


@pytest.mark.parametrize("method", METHODS)
def test_an_empty_draw_gives_a_step_of_noise_alone(method):
    setting = Setting(composed(method, "batch_size=4"))
    step = setting.find_step(lambda drawn: drawn == 0)
    outcome = setting.step(step)
    assert outcome.noise_draws == 1 and (outcome.examples, outcome.loss) == (0, 0.0)
    gen, scale = setting.mechanism.noise_generator(step), setting.mechanism.noise_multiplier
    releases = {release.name: release for release in setting.mechanism.releases}
    for key, block in setting.method.released.items():
        noise = scale * releases[key.release].clip_norm * draw(releases[key.release], block, gen)
        torch.testing.assert_close(block, noise / 4)
    shapes = {name: tuple(p.shape) for name, p in setting.model.named_parameters()}
    for name in setting.method.trainable(setting.model):
        assert tuple(outcome.gradients[name].shape) == shapes[name]
        assert outcome.gradients[name].isfinite().all()
    silent = setting.step(step, noise=False)
    assert flat(silent.gradients).abs().max() == 0
    assert silent.noise_draws == 0


# Noise


@pytest.mark.parametrize("method", METHODS)
def test_every_released_coordinate_gets_the_declared_noise_once_and_nothing_else_does(method):
    setting = Setting(composed(method, *WIDER.get(method, [])), torch.float64)
    mechanism = setting.mechanism
    dimension = sum(release.dimension for release in mechanism.releases)
    scale = {r.name: mechanism.noise_multiplier * r.clip_norm for r in mechanism.releases}
    drawn = []
    for step in range(math.ceil(20_000 / dimension)):
        noisy = setting.step(step, micro_batch=13)  # several micro-batches, one draw of noise
        given, released = setting.method.given, setting.method.released
        setting.step(step, micro_batch=13, noise=False)
        silent = setting.method.released
        added = {key: (released[key] - silent[key]) / scale[key.release] for key in released}
        added = flat(added) * mechanism.batch_size
        assert int((added != 0).sum()) == len(added) == dimension
        drawn.append(added.numpy())
        # Nothing else leaves: the gradients are made of the release and of public state.
        made, _ = setting.method.reconstruct(given, released)
        assert set(made) == set(noisy.gradients) == set(setting.method.trainable(setting.model))
        for name, gradient in made.items():
            assert torch.equal(gradient, noisy.gradients[name])
    drawn = np.concatenate(drawn)
    law = {"gaussian": "norm", "laplace": "laplace"}[mechanism.releases[0].noise]
    assert kstest(drawn, law).pvalue > 1e-3
    for wrong in (0.8, 1.25):  # the test itself must be able to tell
        assert kstest(drawn / wrong, law).pvalue < 1e-6


def test_noise_scales_with_the_clip_norm():
    added = []
    for clip_norm in (0.5, 2.0):
        setting = Setting(composed("dpsgd", f"privacy.clip_norm={clip_norm}"), torch.float64)
        step = setting.find_step(lambda drawn: drawn < 25)
        setting.step(step)
        noisy = flat(setting.method.released)
        setting.step(step, noise=False)
        added.append(noisy - flat(setting.method.released))
    torch.testing.assert_close(added[1], 4 * added[0])


def test_different_steps_and_seeds_draw_different_noise():
    draws = []
    for seed, step in ((0, 0), (0, 1), (1, 0)):
        setting = Setting(composed("linear", "batch_size=4", f"seed={seed}"), torch.float64)
        setting.step(step)
        noisy = flat(setting.method.released)
        setting.step(step, noise=False)
        draws.append(noisy - flat(setting.method.released))
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert abs(float(torch.corrcoef(torch.stack([draws[a], draws[b]]))[0, 1])) < 0.15


# One example's influence


class RandomNet(nn.Module):
    """A convolution, perhaps grouped, a hidden layer with bias, and a head."""

    def __init__(self, channels, groups, hidden, classes):
        super().__init__()
        self.conv = nn.Conv2d(channels, 2 * groups, 3, padding=1, groups=groups)
        self.norm = nn.GroupNorm(groups, 2 * groups)
        self.hidden = nn.Linear(2 * groups * 16, hidden)
        self.head = nn.Linear(hidden, classes)
        self.double()

    def forward(self, x):
        return self.head(F.relu(self.hidden(F.relu(self.norm(self.conv(x))).flatten(1))))


def rgp(rank, **options):
    defaults = {"carriers": "both", "power_iterations": 1, "warm_up_steps": 0, "residual": True}
    return RGP(rank, **{**defaults, "head_scale": 0.01, "head": "head", **options})


def sums_of(model, method, x, y, clip_norm, micro_batch, public=None):
    """Release the clipped sums over all the given examples, without noise."""
    state = method.start(model)
    watched = Watched(method)
    mechanism = whole_batch(len(y), method.releases(state, clip_norm))
    public = None if public is None else Wide(public)
    with PrivateGradient(model, watched, mechanism, ALONE, micro_batch, public) as gradient:
        outcome = gradient(state, Wide(Examples(x, y)), 0)
    assert outcome.examples == len(y)
    return {key: block * len(y) for key, block in watched.released.items()}, outcome


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    groups=st.integers(1, 3),
    sizes=st.tuples(st.integers(1, 9), st.integers(2, 5), st.integers(1, 4)),
    log_scale=st.floats(-12, 30),
    log_weights=st.floats(-3, 4),
    log_clip=st.floats(-3, 3),
    which=st.sampled_from(["dpsgd", "rgp", "left", "random", "no residual", "powersgd"]),
)
def test_adding_one_example_moves_the_sums_by_at_most_the_clip_norm(
    seed, groups, sizes, log_scale, log_weights, log_clip, which
):
    hidden, classes, rank = sizes
    torch.manual_seed(seed)
    model = RandomNet(2 * groups, groups, hidden, classes)
    with torch.no_grad():
        model.head.weight *= 10**log_weights
    method = {
        "dpsgd": DPSGD("all", "head"),
        "rgp": rgp(1 + rank % min(2 * groups, hidden)),
        "left": rgp(1, carriers="left"),
        "random": rgp(1, carriers="random"),
        "no residual": rgp(1, residual=False),
        "powersgd": PowerSGD(1, warm_start=True, error_feedback=True, head="head"),
    }[which]
    x = torch.randn(6, 2 * groups, 4, 4)
    x[-1] *= 10**log_scale
    y = torch.randint(classes, (6,))
    clip_norm = 10**log_clip
    without, _ = sums_of(model, method, x[:5], y[:5], clip_norm, micro_batch=2)
    full, _ = sums_of(model, method, x, y, clip_norm, micro_batch=4)
    moved = float(torch.linalg.vector_norm(flat(full) - flat(without)))
    assert moved <= clip_norm * (1 + 1e-9)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("method", METHODS)
def test_a_pixel_that_is_not_finite_costs_its_example_alone(method, bad):
    parts = run.build_parts(composed(method), CPU)
    model, train, public = parts.model.double(), parts.task.train, parts.task.public
    x, y = train.inputs[:9].clone(), train.targets[:9]
    others = [0, 1, 2, 3, 5, 6, 7, 8]
    expected, _ = sums_of(model, parts.method, x[others], y[others], 1.0, 4, public)
    x[4, 0, 3, 3] = bad
    got, outcome = sums_of(model, parts.method, x, y, 1.0, 3, public)
    assert distance(got, expected) < 1e-12
    assert outcome.nonfinite == 1


# Bases


@pytest.mark.parametrize("method", ["rgp", "rgp_random"])
def test_bases_do_not_depend_on_private_data(method):
    config = composed(method)
    if method == "rgp":
        config["method"]["warm_up_steps"] = 1  # the second step's bases are of the update
    setting = Setting(config, torch.float64)
    parameters = dict(setting.model.named_parameters())
    bases = []
    train = setting.parts.task.train
    for data in (train, Examples(1 - train.inputs, 9 - train.targets, train.mean, train.std)):
        setting.examples = Wide(data)
        saved = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        outcome = setting.step(0)
        torch.manual_seed(3)
        with torch.no_grad():
            for parameter in parameters.values():  # the same released update for both
                parameter += 0.01 * torch.randn_like(parameter)
        later = setting.step(1, state=outcome.state)
        setting.model.load_state_dict(saved)
        bases.append((outcome.gradients, outcome.state, later.state))
    assert distance(bases[0][0], bases[1][0]) > 1e-3  # the data do differ
    for one, other in zip(bases[0][1:], bases[1][1:], strict=True):
        for side in ("left", "right"):
            assert one[side].keys() == one["initial"].keys()
            for name in one[side]:
                assert torch.equal(one[side][name], other[side][name])
    first, later = bases[0][1:]
    for name in first["left"]:  # and they are found, or drawn, afresh at every step
        assert not torch.equal(first["left"][name], later["left"][name])


# What every method promises


@pytest.mark.parametrize("method", METHODS)
def test_carriers_sum_to_the_declared_blocks(method):
    setting = Setting(composed(method))
    model, inner = setting.model, setting.parts.method
    setting.step()
    state = setting.method.given  # as `prepare` made it
    carried = {}
    with Tape(
        model,
        inner.trainable(model),
        lambda layer, tap: carried.update(inner.carry(state, layer, tap)),
    ) as tape:
        batch = setting.examples.batch(torch.arange(3))
        tape.expect(3)
        F.cross_entropy(model(batch.inputs), batch.targets, reduction="sum").backward()
        tape.check_complete()
    shapes = {key: tuple(shape) for key, shape in inner.blocks(state).items()}
    assert carried.keys() == shapes.keys()
    for key, carrier in carried.items():
        assert carrier.squared_norms().shape == (3,)
        for weights in (None, torch.ones(3)):
            assert tuple(total_of(carrier, weights).shape) == shapes[key]
        kept = carrier.keep(torch.tensor([True, False, True]))
        assert kept.squared_norms().shape == (2,)


@pytest.mark.parametrize("method", METHODS)
def test_declared_releases_hold_at_every_step_and_count_every_block(method):
    setting = Setting(composed(method))
    declared = setting.method.releases(setting.state, 0.5)
    state = setting.step().state
    assert setting.method.releases(state, 0.5) == declared
    blocks = setting.method.blocks(state)
    assert blocks == setting.method.blocks(setting.state)
    for release in declared:
        own = [b for key, b in setting.method.released.items() if key.release == release.name]
        assert release.dimension == sum(block.numel() for block in own) > 0
        assert release.clip_norm == 0.5 or release.name == "residual"  # clipped apart, in gep
        assert release.sensitivity == 1.0 or release.noise == "laplace"
    assert {key.release for key in blocks} == {release.name for release in declared}


@pytest.mark.parametrize("method", METHODS)
def test_the_seed_decides_a_step(method):
    first, second = (Setting(composed(method)).step(2) for _ in range(2))
    other = Setting(composed(method, "seed=1")).step(2)
    assert torch.equal(flat(first.gradients), flat(second.gradients))
    assert not torch.equal(flat(first.gradients), flat(other.gradients))


@pytest.mark.parametrize("method", METHODS)
def test_a_state_that_was_saved_and_loaded_goes_on_alike(method, tmp_path):
    setting = Setting(composed(method))
    state = setting.step(0).state
    checkpoint.save(tmp_path / "state.pt", state)
    loaded = checkpoint.load(tmp_path / "state.pt")
    one, other = setting.step(1, state=state), setting.step(1, state=loaded)
    assert torch.equal(flat(one.gradients), flat(other.gradients))


# Several ranks


class Meeting(Ranks):
    """Ranks that are threads of this process and meet at a barrier to add up."""

    def all_reduce(self, tensors):
        for tensor in tensors:
            self.table[self.rank] = tensor
            self.barrier.wait()
            total = sum(self.table[rank].clone() for rank in range(self.size))
            self.barrier.wait()  # everyone has read before anyone writes
            tensor.copy_(total)


def step_of_each_rank(size, config, asked=None):
    barrier, table = threading.Barrier(size, timeout=60), {}
    built = [Setting(config, torch.float64) for _ in range(size)]

    def step(rank):
        setting, ranks = built[rank], Meeting(rank, size, CPU)
        vars(ranks).update(barrier=barrier, table=table)
        with PrivateGradient(
            setting.model, setting.method, setting.mechanism, ranks, 40, setting.public
        ) as gradient:
            return gradient(setting.state, setting.examples, 0, rank == asked)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(step, range(size)))


def test_ranks_share_one_draw_of_noise_and_take_the_same_step():
    config = composed("dpsgd", "model=linear")
    (alone,) = step_of_each_rank(1, config)
    for outcome in (shared := step_of_each_rank(2, config)):
        assert outcome.examples == alone.examples and outcome.noise_draws == 1
        assert distance(outcome.gradients, alone.gradients) < 1e-12
    assert torch.equal(flat(shared[0].gradients), flat(shared[1].gradients))


def test_what_one_rank_is_asked_all_hear_of_at_the_same_step():
    config = composed("dpsgd", "model=linear")
    for asked, heard in ((1, True), (None, False)):
        outcomes = step_of_each_rank(3, config, asked)
        assert [outcome.is_asked_to_stop for outcome in outcomes] == [heard] * 3


# The scaled head


def test_an_example_that_moves_the_head_alone_moves_it_by_at_most_the_clip_norm():
    torch.manual_seed(0)
    model = RandomNet(2, 1, 4, 3)
    with torch.no_grad():
        model.head.weight.zero_()  # so that no gradient reaches what is below
        model.hidden.bias.fill_(1e4)  # the head sees something large
    x, y = torch.randn(1, 2, 4, 4), torch.tensor([1])
    sums, outcome = sums_of(model, rgp(1, head_scale=0.01), x, y, 1.0, micro_batch=1)
    assert outcome.clipped == 1
    assert float(torch.linalg.vector_norm(flat(sums))) <= 1 + 1e-9
