"""Adaptive clipping: the paper's formulas, what the count costs, and what audits see of it."""

import copy
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap

import dpexp
from dpexp import cli
from dpexp.attacks import bounds, distinguishing, soundness, trials
from dpexp.attacks.audit import OneRun, toss
from dpexp.attacks.mislabelled import Thinned
from dpexp.cli.verify import verify
from dpexp.grad_sample.per_example import MaterializedGrads
from dpexp.methods.adaptive import COUNT
from dpexp.privacy import build
from dpexp.privacy.accounting import calibrate
from dpexp.privacy.clipping import centred_bits
from dpexp.privacy.privatize import ClippedSum
from dpexp.privacy.seeds import generator
from dpexp.privacy.verification.files import verify_files
from dpexp.training.gradient import PrivateGradient
from dpexp.types import ConfigError, Key, Release
from tests.runs import ALONE, CONFIGS, one_thread, with_words  # noqa: F401 (a fixture)
from tests.steps import Setting

RUN = ["method=dpsgd", "task=digits", "profile=embedded", "model=linear", "device=cpu"]
ADAPTIVE = [*RUN, "clipping=adaptive"]
DELTA = 1e-4


def composed(*words):
    return CONFIGS.compose_anew([*ADAPTIVE, *words])


# The formulas


def per_example(model, batch):
    """Every example's gradient by torch.func, by name."""
    weights = {name: each.detach() for name, each in model.named_parameters()}

    def loss(weights, x, y):
        return F.cross_entropy(functional_call(model, weights, x[None]), y[None])

    return vmap(grad(loss), in_dims=(None, 0, 0))(weights, batch.inputs, batch.targets)


@pytest.mark.parametrize("quantile", [0.5, 0.9])
def test_steps_without_noise_are_the_papers_formulas(quantile):
    """In float64: clip at C, sum, and C <- C exp(-rate (share - quantile)); C starts far off."""
    words = ["batch_size=40", "eps=null", "noise=false", "privacy.clip_norm=1e-3"]
    words += [f"clipping.quantile={quantile}", "clipping.rate=2"]
    setting = Setting(composed(*words), torch.float64)
    clip_norm, state = 1e-3, setting.state
    for step in range(12):
        batch = setting.examples.batch(setting.mechanism.sample(step))
        outcome = setting.step(step, state=state)
        grads = per_example(setting.model, batch)
        norms = sum(each.flatten(1).square().sum(1) for each in grads.values()).sqrt()
        weights = (clip_norm / norms).clamp(max=1)
        for name, each in grads.items():
            total = torch.einsum("n,n...->...", weights, each) / 40
            torch.testing.assert_close(outcome.gradients[name], total, rtol=1e-6, atol=1e-9)
        bits = ((1 - norms / clip_norm) * 32).clamp(-0.5, 0.5)  # a step but for a 64th of C
        share = float(bits.sum()) / 40 + 0.5
        clip_norm *= math.exp(-2 * (share - quantile))
        state = outcome.state
        assert 1e-3 * math.exp(state["log_share"]) == pytest.approx(clip_norm, rel=1e-6)
    assert 0.4 < clip_norm / float(norms.quantile(quantile)) < 2.5


def test_differences_of_losses_follow_the_same_formulas():
    """A method without a backward pass: the vector that is clipped is of its differences."""
    words = ["method=dp_zo", "method.directions=3", "batch_size=40", "eps=null", "noise=false"]
    words += ["privacy.clip_norm=1e-3", "clipping.rate=2", "method.perturbation=1e-5"]
    setting = Setting(composed(*words), torch.float64)
    clip_norm, state = 1e-3, setting.state
    for step in range(16):
        batch = setting.examples.batch(setting.mechanism.sample(step))
        outcome = setting.step(step, state=state)
        grads = per_example(setting.model, batch)
        gen = generator(setting.mechanism.root, "method", step)
        z = {
            name: torch.randn(3, *each.shape, generator=gen, dtype=torch.float64)
            for name, each in setting.model.named_parameters()
        }
        seen = sum(grads[name].flatten(1) @ each.flatten(1).T for name, each in z.items())
        norms = seen.norm(dim=1)
        total = ((clip_norm / norms).clamp(max=1) @ seen) / 40
        for name, each in z.items():
            wanted = torch.einsum("k,k...->...", total, each) / 3
            apart = (outcome.gradients[name] - wanted).norm() / wanted.norm()
            assert apart < 1e-4, step  # the difference is of finite steps
        bits = ((1 - norms / clip_norm) * 32).clamp(-0.5, 0.5)
        clip_norm *= math.exp(-2 * (float(bits.sum()) / 40 + 0.5 - 0.5))
        state = outcome.state
        assert 1e-3 * math.exp(state["log_share"]) == pytest.approx(clip_norm, rel=1e-4)
    assert 0.4 < clip_norm / float(norms.median()) < 2.5


def test_the_classifiers_factor_stands_in_the_norm_that_the_count_sees():
    """RGP clips its carriers and the scaled head jointly; so a larger factor has a larger C."""
    words = ["method=rgp", "model=wrn10_1", "method.rank=2", "batch_size=40", "eps=null"]
    words += ["noise=false", "clipping.rate=2"]
    last = []
    for factor in (0.01, 10):
        setting = Setting(composed(*words, f"method.head_factor={factor}"))
        state = setting.state
        for step in range(8):
            state = setting.step(step, state=state).state
        last.append(state["log_share"])
    assert last[1] - last[0] > math.log(5)


def test_the_noise_is_split_as_in_the_paper_and_no_more_is_spent():
    mechanism = Setting(composed("batch_size=200", "eps=2", "epochs=2")).mechanism
    steps, q = mechanism.num_steps, 200 / 1437
    z, _ = calibrate(q, steps, DELTA, 2.0)
    deviation = 0.05 * 200
    split = (z**-2 - (2 * deviation) ** -2) ** -0.5
    assert mechanism.noise_multiplier == pytest.approx(split, rel=1e-9)
    assert mechanism.effective_noise_multiplier == pytest.approx(z, rel=1e-9)
    assert mechanism.releases[1] == Release(
        "quantile", 1, 1.0, 0.5, clip="count", noise_multiplier=deviation
    )
    assert mechanism.with_noise(2.0).effective_noise_multiplier == pytest.approx(2 * z, rel=1e-9)


# The count


KEYS = [Key("gradient", "weight"), COUNT]
RELEASES = (Release("gradient", 4, 1.0), Release("quantile", 1, 1.0, 0.5, clip="count"))


def count_of(norms, direction=None):
    """The centred count of examples of some norms."""
    direction = torch.tensor([0.6, 0.0, 0.8, 0.0]) if direction is None else direction
    shapes = dict(zip(KEYS, [(4,), (1,)], strict=True))
    total = ClippedSum(shapes, RELEASES, torch.empty(0))
    for some in torch.as_tensor(norms).split(100):
        total.take({KEYS[0]: MaterializedGrads(some[:, None] * direction)})
        total.close_micro_batch(len(some))
    return float(total.sums[COUNT])


def test_an_example_moves_the_count_by_a_half_whatever_it_is():
    some = torch.rand(30) * 2
    for norm in (0.0, 1e-30, 0.5, 0.999, 1.0, 1.001, 7.0, 1e30, math.nan, math.inf):
        moved = count_of(torch.cat([some, torch.tensor([norm])])) - count_of(some)
        far = abs(math.log(norm)) > 0.02 if 0 < norm < math.inf else norm == 0
        expected = math.copysign(0.5, 1 - norm) if far else None
        assert abs(moved) <= 0.5 and (expected is None or moved == expected)
        assert math.isfinite(norm) or moved == 0
    assert count_of(torch.empty(0)) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bits_fall_along_their_ramp_and_are_in_float64_of_norms_of_any_precision(dtype):
    """In float32 a sum of bits would round by what others add to it."""
    norms, bound = torch.tensor([0.0, 0.5, 0.69, 0.697, 0.7, 0.7001, 0.72, 9], dtype=dtype), 0.7
    expected = [min(0.5, max(-0.5, (1 - norm / bound) * 32)) for norm in norms.tolist()]
    found = centred_bits(norms, bound)
    assert found.dtype == torch.float64 and found.tolist() == pytest.approx(expected, abs=1e-12)


def test_rounding_of_others_norms_decides_no_bit():
    """A thousand examples of norm C to within rounding: all bits stay near zero, whatever it is."""
    at = torch.full((1000,), 1.0)
    moved = [abs(count_of(at * (1 + off)) - count_of(at)) for off in (-1e-7, 1e-7, 3e-7)]
    assert max(moved) < 0.05


# Records


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    results = tmp_path_factory.mktemp("adaptive")
    return dpexp.run(*ADAPTIVE, "eps=8", "epochs=3", f"results={results}")


def test_a_record_states_the_count_and_is_verified_from_its_config(run):
    assert verify(run.directory)[0] == 0
    gradient, count = run.certificate["releases"]
    assert "noise_multiplier" not in gradient
    expected = {"name": "quantile", "dimension": 1, "sensitivity": 0.5, "clip": "count"}
    assert expected.items() <= count.items()
    assert count["noise_multiplier"] == 0.05 * run.config["batch_size"]
    assert run.certificate["last_clip_norm"] > 0 and run.epsilon <= 8


def test_a_record_without_noise_states_none(tmp_path):
    run = dpexp.run(*ADAPTIVE, "noise=false", "eps=null", "epochs=0.5", f"results={tmp_path}")
    assert run.certificate["releases"][1]["noise_multiplier"] == 0
    assert verify(run.directory)[0] == 0


@pytest.mark.parametrize(
    ("changed", "finding"),
    [
        (lambda c: c["releases"][1].update(noise_multiplier=36.0), "release quantile"),
        (lambda c: c["releases"][1].pop("noise_multiplier"), "release quantile"),
        (lambda c: c["releases"][1].update(sensitivity=0.25), "release quantile"),
        (lambda c: c["releases"].pop(), "2 leave at a step; privacy.json names 1"),
        (lambda c: c.update(effective_noise_multiplier=c["noise_multiplier"]), "effective"),
        (lambda c: c["releases"][0].update(noise_multiplier=50.0), "release gradient"),
    ],
)
def test_a_count_that_is_stated_otherwise_is_found(run, changed, finding):
    certificate = copy.deepcopy(run.certificate)
    changed(certificate)
    findings = verify_files(run.config, run.result, certificate).findings
    assert any(finding in each for each in findings), findings


def test_a_count_whose_noise_is_not_paid_for_exceeds_the_budget(tmp_path):
    """As if z went to the gradients alone, and half as much again to the count."""
    noise = "clipping.count_noise=0.0018"
    run = dpexp.run(*ADAPTIVE, noise, "eps=8", "epochs=3", f"results={tmp_path}")
    certificate = copy.deepcopy(run.certificate)
    whole = certificate["effective_noise_multiplier"]
    assert certificate["noise_multiplier"] > 1.1 * whole
    certificate["noise_multiplier"] = whole
    findings = verify_files(run.config, run.result, certificate).findings
    assert any("epsilon" in each for each in findings)


def test_an_interrupted_run_goes_on_with_its_clip_norm(tmp_path):
    said = [*ADAPTIVE, "eps=8", "epochs=1.5", "eval_every=0.25", "clipping.rate=3"]

    def stop(line):
        raise KeyboardInterrupt

    config = CONFIGS.compose_anew([*said, f"results={tmp_path}"])
    parts = cli.build_parts(config, ALONE.device)
    with pytest.raises(KeyboardInterrupt):
        cli.instantiate.loop_of(config).train(config, replace(parts, callbacks=[stop]), ALONE)
    again = dpexp.run(*said, f"results={tmp_path}")
    whole = dpexp.run(*said, f"results={tmp_path}/whole")
    assert again.result["weights_sha256"] == whole.result["weights_sha256"]
    assert again.certificate["last_clip_norm"] == whole.certificate["last_clip_norm"] != 1.0


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("method=gep task=shapes model=wrn10_1", "embedding and residual"),
        ("method=compressive task=regression", "clipped by coordinates"),
        ("method=pate", "has its own"),
        ("clipping.count_noise=1e-4", "Set clipping.count_noise"),
        ("clipping.count_noise=0", "clipping.count_noise above 0"),
        ("clipping.count_noise=.inf", "count_noise of Adaptive to be float"),
        ("clipping.quantile=1", "clipping.quantile in"),
        ("clipping.quantile=-0.1", "clipping.quantile in"),
        ("clipping.rate=0", "clipping.rate above 0"),
        ("clipping.rate=fast", "rate of Adaptive to be float"),
        ("clip=false noise=false eps=null", "clip=true"),
        ("clipping=adaptiv", "adaptive"),
    ],
)
def test_a_mistake_is_one_line(words, line, tmp_path):
    said = [*ADAPTIVE, "eps=8", "epochs=0.3", f"results={tmp_path}"]
    said = with_words(said, words.split())
    with pytest.raises(ConfigError, match=line) as refused:
        dpexp.run(*said)
    assert "\n" not in str(refused.value)


# Attacks


@pytest.mark.parametrize("clip_norm", [1.0, 100.0])
def test_no_example_moves_a_release_by_more_than_is_declared_and_nothing_else_is_known(clip_norm):
    """Whether C grows after the first step or shrinks: all norms are above it, or below."""
    parts = cli.build_parts(composed("eps=8", f"privacy.clip_norm={clip_norm}"), ALONE.device)
    verdict = soundness.check(parts, clip_norm, tries=4, climbs=8)
    assert verdict.findings == ()


def paid(share, steps, eps, batch):
    """Words for a count whose noise takes a share of the budget of full batches."""
    z, _ = calibrate(1.0, steps, DELTA, eps)
    return [f"eps={eps}", f"clipping.count_noise={z / math.sqrt(share) / 2 / batch}"]


def test_a_distinguishing_game_sees_no_more_than_is_accounted_for():
    """Nearly all of the budget is the count's: not paid for, it adds half as much again."""
    config = trials.small(composed("batch_size=360", *paid(0.98, 1, 10, 360)))
    parts = cli.build_parts(config, ALONE.device)
    played = trials.of_steps(config, parts, 600, 1)
    verdict = distinguishing.judge(
        played.without, played.within, delta=DELTA, confidence=0.95, is_gaussian=True
    )
    assert 0.5 * played.epsilon < verdict.epsilon_lower_gaussian <= played.epsilon


def test_one_run_tells_no_canary_by_its_counts():
    """Forty canaries, each with a pattern of its own, in full batches; the gradients say little."""
    steps = 150
    words = ["batch_size=8", *paid(0.95, steps, 0.5, 8), "sampling=poisson", "audit=one_run"]
    config = composed(*words, "audit.m=40", "audit.guesses=1")
    parts = cli.build_parts(config, ALONE.device)
    nobody = torch.zeros(len(parts.task.train), dtype=torch.bool)
    task = replace(parts.task, dataset_size=8, train=Thinned(parts.task.train, nobody))
    audit = parts.attack
    assert isinstance(audit, OneRun)
    parts = audit.stage(replace(parts, task=task), 0)
    state = parts.method.start(parts.model)
    mechanism = build(
        config["privacy"],
        dataset_size=8,
        batch_size=8,
        num_steps=steps,
        releases=parts.method.releases(state, 1.0),
        seed=0,
    )
    with PrivateGradient(parts.model, parts.method, mechanism, ALONE, 8) as gradient:
        for step in range(steps):
            state = gradient(state, task.train, step).state
    numbers = audit.report(parts, state, mechanism, ALONE.device).numbers
    assert numbers["audit_epsilon_lower"] <= numbers["audit_epsilon_accounted"] <= 0.5
    assert bounds.guess(state["counts"].numpy(), toss(0, 40).numpy(), 40).right < 33
