"""What the model's precision cannot hold, or no run can mean, is refused in one line."""

import re

import pytest
import torch

from dpexp import cli
from dpexp.privacy.float_range import reach, setting_of
from dpexp.privacy.noise import add_noise_
from dpexp.privacy.seeds import generator
from dpexp.training.optimizers import check_size
from dpexp.training.schedules import LARGEST, require_rates
from dpexp.types import ConfigError, Key, Release
from tests.marks import few, long
from tests.runs import CONFIGS, execute

DIGITS = ["task=digits", "profile=embedded", "epochs=0.2"]
SMALL = ["model=cnn", "model.channels=[4,8]", "model.kernel=3"]
METHODS = {
    "dpsgd": ["method=dpsgd", *SMALL],
    "rgp": ["method=rgp", "method.rank=2", *SMALL],
    "core": ["method=rgp_core", "method.rank=2", "method.public_examples=20", *SMALL],
    "lsg": ["method=lsg", "method.rank=2", *SMALL],
    "gep": ["method=gep", "method.m=20", "method.k=8", *SMALL],
    "compressive": ["method=compressive"],
    "linear": ["method=dpsgd", "model=linear"],
    "pate": ["method=pate", "method.teachers=3", "method.teacher_steps=2", "method.queries=5"],
    "shapes": ["method=dpsgd", "task=shapes", *SMALL],
    "cost": ["method=dpsgd", "analysis=noise_norm", *SMALL],
}
METHODS["pate"] += ["method.answers=3", "method.student_steps=2"]


def ran(name, tmp_path, *words):
    return execute(tmp_path, *DIGITS, *METHODS[name], *words)


# What is released


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_at_either_end_is_the_same_numbers_scaled_and_beyond_it_is_not(dtype):
    """To the bit, as the ends are powers of two; beyond, grids are coarse or numbers infinite."""

    def noise(clip_norm):
        sums = {Key("gradient", "w"): torch.zeros(2**16, dtype=dtype)}
        releases = [Release("gradient", 2**16, clip_norm)]
        add_noise_(sums, releases, 1.0, generator(0, "noise", 0))
        return sums[Key("gradient", "w")]

    least, largest = reach(dtype)
    for end in (least, largest):
        scaled = noise(end).double() / end
        assert torch.equal(scaled, noise(1.0).double())
    kept = torch.finfo(dtype)
    assert len(noise(2.0**6 * kept.eps * kept.tiny).unique()) < len(noise(1.0).unique()) / 2
    assert not noise(kept.max).isfinite().all()


def test_the_ends_are_what_the_document_says():
    assert reach(torch.float32) == (2.0**-100, 2.0**100)
    least, largest = reach(torch.float64)
    assert least == pytest.approx(2.0**-498) and largest == pytest.approx(2.0**498)


OUTSIDE = ["1e-300", "1e39"]


@pytest.mark.parametrize("value", OUTSIDE)
@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("dpsgd", "privacy.clip_norm"),
        long("rgp", "privacy.clip_norm"),
        long("gep", "privacy.clip_norm"),
        ("gep", "method.residual_clip"),
        ("compressive", "privacy.clip_norm"),
        ("compressive", "method.xi"),
    ],
)
def test_a_clip_norm_that_loses_bits_is_refused_by_its_name(name, setting, value, tmp_path):
    with pytest.raises(ConfigError) as caught:
        ran(name, tmp_path, f"{setting}={value}")
    line = str(caught.value)
    assert re.search(rf"7.9e-31 and 1.3e\+30, .* float32 .*; got .*Set {setting}", line)
    assert "\n" not in line and not any(tmp_path.rglob("*.jsonl"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["privacy.clip_norm=1e-30"], r"the clip norm / batch_size"),
        (["privacy.clip_norm=1e30", "batch_size=360", "eps=0.5"], "the noise"),
        (["privacy.clip_norm=2e-30", "batch_size=2", "eps=1000", "epochs=0.02"], "the noise"),
        (["privacy.clip_norm=1e-30", "noise=false", "eps=null"], r"the clip norm / batch_size"),
    ],
)
def test_what_is_divided_by_the_batch_and_the_noise_count_too(words, said, tmp_path):
    with pytest.raises(ConfigError, match=rf"Expected {said} to lie between .* Set privacy.clip"):
        ran("dpsgd", tmp_path, *words)


SGD = ["optimizer._target_=torch.optim.SGD"]


@pytest.mark.parametrize("words", [["privacy.clip_norm=1e-25"], ["privacy.clip_norm=1e25"]])
def test_within_the_ends_a_run_works(words, tmp_path):
    assert (ran("dpsgd", tmp_path, *words, *SGD) / "result.json").exists()


SQUARED = ["Adam", "AdamW", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta"]


@pytest.mark.parametrize(("size", "what"), [(1e22, "not finite"), (1e-26, "zero")])
@pytest.mark.parametrize("name", SQUARED)
def test_a_size_that_an_optimizer_cannot_square_is_refused(name, size, what):
    optimizer = getattr(torch.optim, name)([torch.nn.Parameter(torch.zeros(2))])
    with pytest.raises(ConfigError, match=f"{name} can square.* is {what}. Set privacy.clip_norm"):
        check_size(optimizer, size, torch.float32)
    check_size(optimizer, size, torch.float64)
    for usual in (1e-12, 1.0, 1e12):
        check_size(optimizer, usual, torch.float32)


def test_sgd_takes_all_sizes_that_a_release_may_have():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], momentum=0.9, lr=0.1)
    for size in reach(torch.float32):
        check_size(optimizer, size, torch.float32)


@pytest.mark.parametrize("clip_norm", ["1e-25", "1e25"])
def test_a_run_whose_adam_would_learn_nothing_is_refused(clip_norm, tmp_path):
    with pytest.raises(ConfigError, match="Adam can square"):
        ran("linear", tmp_path, f"privacy.clip_norm={clip_norm}")


def test_without_clipping_and_noise_its_norm_is_not_looked_at(tmp_path):
    words = ["noise=false", "clip=false", "eps=null", "privacy.clip_norm=1e39"]
    assert (ran("dpsgd", tmp_path, *words) / "result.json").exists()


def test_a_clip_norm_of_a_method_s_own_is_named_by_its_value():
    config = {"privacy": {"clip_norm": 1.0}, "method": {"flag": True, "bound": 3.0}}
    assert setting_of(3.0, config) == "method.bound"
    assert setting_of(1.0, config) == setting_of(7.0, config) == "privacy.clip_norm"


# Factors


NOT_MEANT = [
    (name, f"{place}={value}")
    for name, place, values in [
        ("dpsgd", "optimizer.lr", "0 1e-300 1e300 nan inf abc true null"),
        ("dpsgd", "optimizer.weight_decay", "1e300 nan inf -1"),
        ("dpsgd", "optimizer.momentum", "1e300 nan inf -1"),
        ("dpsgd", "epochs=2 schedule.factor", "0 nan inf 1e300"),
        ("dpsgd", "privacy.clip_norm", "0 -1 nan inf abc true null"),
        ("dpsgd", "eps", "1e300 1e-300 nan inf"),
        ("dpsgd", "epochs", "1e300 1e308 1e-300 nan"),
        ("rgp", "method.head_factor", "0 -1 nan inf 1e300 1e-300"),
        ("core", "method.head_scale", "0 -1 nan inf 1e300 1e-300"),
        ("lsg", "method.head_factor", "0 -1 nan inf 1e300 1e-300"),
        ("gep", "method.residual_clip", "0 -1 nan inf"),
        ("pate", "method.check_ratio", "0 -1 nan inf 1e300 1e-300"),
        ("pate", "method.teacher_optimizer.lr", "0 -1 nan inf 1e300 1e-300 abc true null"),
        ("pate", "method.teacher_optimizer.momentum", "-1 nan inf 1e300"),
        ("pate", "optimizer.lr", "0 1e300 1e-300"),
        ("shapes", "task.noise", "-1 nan inf"),
        ("cost", "analysis.noise_norm.epochs", "0 -1 nan inf 1e300"),
    ]
    for value in values.split()
]


@pytest.mark.parametrize(("name", "words"), few(NOT_MEANT, NOT_MEANT[::3]))
def test_a_number_that_no_run_can_mean_is_refused_in_one_line(name, words, tmp_path):
    with pytest.raises(ConfigError) as caught:
        ran(name, tmp_path, *words.split())
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400
    assert not any(tmp_path.rglob("metrics.jsonl"))


@pytest.mark.parametrize("place", ["warm_start.lr", "warm_start.head_lr", "prompts.scale",
                                   "model.feature_norm", "model.head_std"])  # fmt: skip
@pytest.mark.parametrize("value", ["nan", "inf", "1e300", "1e-300"])
def test_factors_of_language_models_are_looked_at_before_anything_is_loaded(place, value):
    words = ["method=dpsgd", "task=sentiment", "profile=embedded", "warm_start=public"]
    words += ["prompts=film_reviews", "prompts.tokenizer=x", "model.feature_norm=8"]
    CONFIGS.compose_anew(words)
    with pytest.raises(ConfigError, match=f"Expected {place} to "):
        CONFIGS.compose_anew([*words, f"{place}={value}"])


@pytest.mark.parametrize(
    "words",
    [["method=dp_lora", "method.alpha"], ["method=dpsgd", "clipping=normalize", "clipping.gamma"]],
)
@pytest.mark.parametrize("value", ["1e300", "1e-300"])
def test_factors_of_later_methods_stay_where_float32_keeps_what_they_multiply(words, value):
    *chosen, place = words
    CONFIGS.compose_anew([*DIGITS, *chosen, f"{place}=1e-6"])
    with pytest.raises(ConfigError, match=f"Expected {place} to lie between"):
        CONFIGS.compose_anew([*DIGITS, *chosen, f"{place}={value}"])


@pytest.mark.parametrize("place", ["privacy.clip_norm", "method.residual_clip", "epochs", "seed"])
def test_a_whole_number_that_no_float_holds_is_refused(place):
    with pytest.raises(ConfigError, match=f"Expected {place} to be finite; got a whole number too"):
        cli.compose([*DIGITS, *METHODS["gep"], f"{place}={10**400}"])


def test_numbers_of_a_target_of_the_users_are_the_users():
    words = [*DIGITS, *METHODS["dpsgd"], "+model.limit=inf"]
    with pytest.raises(ConfigError, match="Expected model.limit to be finite"):
        cli.compose(words)
    assert cli.compose([*words, "model._target_=my.Net"])["model"]["limit"] == float("inf")


# Schedules


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        (lambda step, steps: -1.0 * (step == 3), "at step 3 of 5"),
        (lambda step, steps: float("nan"), "at step 0 of 5"),
        (lambda step, steps: 2 * LARGEST, "at step 0 of 5"),
        (lambda step, steps: 0.5 / LARGEST, "at some step.* give 3.94e-31 at most"),
        (lambda step, steps: 0.0, "at some step.* give 0 at most"),
        (lambda step: 1.0, "it fails .TypeError"),
        (lambda step, steps: None, "it fails .TypeError"),
    ],
)
def test_a_schedule_that_gives_no_rate_is_refused(schedule, said):
    with pytest.raises(ConfigError, match=said):
        require_rates([1.0], schedule, 5)


def test_a_schedule_may_begin_and_end_at_zero():
    require_rates([1.0, 0.0], lambda step, steps: step * (steps - 1 - step), 5)
    require_rates([1.0], lambda step, steps: 0.0, 0)


def test_a_schedule_may_fall_below_what_any_step_shows():
    require_rates([0.1], lambda step, steps: 0.9**step, 1000)
