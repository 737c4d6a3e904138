"""A typed setting that a run does not read is told of, and changes no bit of what is trained."""

import importlib
import sys
import warnings

import pytest

import dpexp
from dpexp import cli
from dpexp.cli import idle
from dpexp.types import ConfigError
from tests.marks import some_long
from tests.runs import one_thread  # noqa: F401 (a fixture)

BASE = ["task=digits", "profile=embedded", "model=cnn", "model.channels=[4,8]", "epochs=1"]
BASE += ["batch_size=360", "device=cpu"]
NO_NOISE = ["noise=false", "eps=null"]
RANDOM = ["method=rgp", "method.rank=2", "method.carriers=random"]
ONE_LAYER = ["method=compressive", "method.psi=none"]
GEP = ["method=gep", "method.basis=random", "method.k=20"]
IDLE = [
    (["method=dp_zo", "method.noise=laplace"], "privacy.delta=1e-7", "Laplace noise"),
    (["method=dp_zo", "method.noise=laplace"], "task.delta=1e-7", "Laplace noise"),
    (["method=nonprivate"], "privacy.delta=1e-7", "noise=false"),
    (["method=dpsgd", "clip=false", *NO_NOISE], "privacy.clip_norm=7", "method=dpsgd as it is set"),
    (["method=dpsgd", "clipping=adaptive", *NO_NOISE], "clipping.count_noise=0.5", "noise=false"),
    (["method=compressive", *NO_NOISE], "privacy.budget=per_step", "noise=false"),
    (ONE_LAYER, "method.p=7", "method.psi=none"),
    (["method=dpsgd", "schedule=constant"], "schedule.factor=0.5", "schedule.fractions=[]"),
    (["method=dpsgd", "averaging=ema"], "averaging.decay=0.9", "in a run of 4 steps"),
    (RANDOM, "method.power_iterations=3", "method.carriers=random"),
    (RANDOM, "method.decompose=weight", "method.carriers=random"),
    (["method=rgp", "method.rank=2"], "method.decompose=directions", "in a run of 4 steps"),
    (
        ["method=rgp", "method.rank=2", "method.decompose=weight"],
        "method.warm_up_steps=1",
        "method.decompose=weight",
    ),
    (["method=lsg", "method.rank=2", "method.p=0"], "method.start_epoch=0.5", "method.p=0"),
    (
        ["method=lsg", "method.rank=2", "method.start_epoch=0.8"],
        "method.p=0.1",
        "method.start_epoch=0.8, when the run is over",
    ),
    (["method=lsg", "method.rank=2", "method.p=0"], "method.mask=carriers", "method.p=0"),
    (
        ["method=lsg", "method.rank=2", "method.start_epoch=0.8"],
        "method.mask=direct",
        "method.start_epoch=0.8, when the run is over",
    ),
    (["method=sparse_dpsgd", "method.p=0.0"], "method.mask=random", "method.p=0"),
    ([*GEP, "method.residual=false"], "method.residual_clip=9", "method.residual=false"),
    (GEP, "method.m=50", "method.basis=random"),
    (GEP, "public=shapes", "method=gep as it is set"),
    (GEP, "public.data_seed=1", "method=gep as it is set"),
    (["method=dp_grape", "method.moments=none"], "method.betas=[0.5,0.5]", "method.moments=none"),
    (["method=dpsgd"], "method.head=fc", "method.train=all"),
    (["method=dp_zo"], "method.head=fc", "method.train=all"),
    (["method=dpsgd"], "wandb.project=mine", "wandb.mode=disabled"),
    ([*ONE_LAYER, "method.kappa=null", *NO_NOISE], "method.bound=example", "noise=false"),
    (["method=dp_zo", *NO_NOISE], "method.noise=laplace", "noise=false"),
    (
        ["method=dp_zo", "method.directions=2", "clip=false", *NO_NOISE],
        "method.noise=laplace",
        "noise=false",
    ),
    ([*GEP, "clip=false", *NO_NOISE], "method.residual_clip=9", "noise=false and clip=false"),
    (
        ["method=dpsgd", "averaging=ema", "averaging.decay=0.1"],
        "averaging.warm_up=false",
        "averaging.decay=0.1",
    ),
    (["method=dpsgd", "holdout=train", "holdout.size=1077"], "denoise=disk", "a run of 1 step"),
]
"""Words, one more that changes nothing, and what it is said to stand beside."""

READ = [
    (["method=dp_zo"], "privacy.delta=1e-7"),
    (["method=dpsgd", "clip=false"], "privacy.clip_norm=7"),
    (["method=compressive", "clip=false", *NO_NOISE], "privacy.clip_norm=1e-3"),
    (["method=dpsgd", "clipping=adaptive"], "clipping.count_noise=0.1"),
    (["method=compressive"], "privacy.budget=per_step"),
    (["method=dpsgd", "schedule=half_time"], "schedule.factor=0.5"),
    (["method=dpsgd", "averaging=ema"], "averaging.decay=0.2"),
    (["method=rgp", "method.rank=2", "method.warm_up_steps=3"], "method.decompose=directions"),
    (["method=lsg", "method.rank=2", "method.start_epoch=0.7"], "method.p=0.1"),
    (["method=lsg", "method.rank=2"], "method.mask=carriers"),
    (["method=sparse_dpsgd"], "method.mask=random"),
    (GEP, "method.residual_clip=9"),
    (["method=gep", "method.m=50", "method.k=20"], "public.data_seed=1"),
    (["method=dp_grape", "method.moments=adam"], "method.betas=[0.5,0.5]"),
    (["method=bitfit"], "method.head=conv2"),
    ([*GEP, *NO_NOISE], "method.residual_clip=0.1"),
    (["method=dp_zo", "method.directions=2", *NO_NOISE], "method.noise=laplace"),
    (["method=dpsgd", "averaging=ema", "averaging.decay=0.11"], "averaging.warm_up=false"),
    (["method=dp_zo", "method.train=head"], "method.head=conv2"),
]
"""Words, and one more that is read."""


def said_of(words, word):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        idle.warn(cli.compose([*BASE, *words, word]), [*BASE, *words, word])
    return [str(each.message) for each in told]


def weights(folder, *words):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = dpexp.run(*BASE, *words, f"results={folder}")
    return {name: each.numpy().tobytes() for name, each in run.model.state_dict().items()}


@pytest.mark.parametrize(("words", "word", "beside"), IDLE)
def test_a_word_without_effect_is_told_of_with_what_leaves_it_none(words, word, beside):
    (line,) = said_of(words, word)
    assert line.startswith(f"{word} has no effect with ") and beside in line and "\n" not in line
    assert ("changes the run's id" in line) is not word.startswith("wandb")


@pytest.mark.parametrize("word", ["method.check_ratio=1", "sampling=shuffle", "clip=false"])
def test_without_noise_pate_reads_neither_its_size_nor_what_steps_take(word):
    words = ["method=pate", "task=digits", "profile=embedded"]
    place = word.partition("=")[0]
    for more in ([], NO_NOISE):
        said = idle.unread(cli.compose([*words, *more]), {place: word})
        assert list(said) == [place] * (more == NO_NOISE)
        assert all("noise=false" in beside for beside in said.values())


FILTERS = [
    ("averaging=ema", ["averaging.decay=0"], "averaging.decay=0"),
    ("averaging=last", ["averaging.share=0.3"], "of 4 steps the last one alone"),
    ("denoise=disk", ["denoise.kappa=1"], "denoise.kappa=1"),
    ("denoise=doppler", ["denoise.a=[0]", "denoise.b=[1,0]"], "denoise.b=[1]"),
]


@pytest.mark.parametrize(("word", "more", "beside"), FILTERS)
def test_what_hands_on_as_it_got_is_told_of_and_changes_no_bit(word, more, beside, tmp_path):
    (line,) = said_of(["method=dpsgd", *more], word)
    assert line.startswith(f"{word} has no effect with ") and f"{beside}, but changes" in line
    with_it = weights(tmp_path, "method=dpsgd", word, *more)
    assert with_it == weights(tmp_path, "method=dpsgd")


@pytest.mark.parametrize(
    "words",
    [
        ["averaging=ema", "averaging.decay=0.1"],
        ["averaging=last", "averaging.share=0.4"],
        ["denoise=disk", "denoise.kappa=0.9"],
        ["denoise=doppler", "denoise.a=[]", "denoise.b=[3,1]"],
    ],
)
def test_what_filters_is_not_told_of(words):
    assert not said_of(["method=dpsgd", *words[1:]], words[0])


OWN = """
from dpexp.methods.dpsgd import DPSGD

class Mine(DPSGD):
    def __init__(self, train, head, decay=0.5, moments="none"):
        super().__init__(train, head)

    @staticmethod
    def unread_settings(settings, steps, last):
        assert steps == 4 and 0.75 < last < 0.76  # the last of 4 begins after three draws of 360
        return {"decay": "method.moments=none"} if settings["moments"] == "none" else {}

class Child(Mine):
    pass
"""


@pytest.mark.parametrize(
    ("name", "moments", "is_told"),
    [("Mine", "none", True), ("Mine", "adam", False), ("Child", "none", False)],
)
def test_a_method_of_ones_own_says_what_it_leaves_unread(
    name, moments, is_told, tmp_path, monkeypatch
):
    (tmp_path / "idle_method.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("idle_method")
    words = ["method=dpsgd", f"method._target_=idle_method.{name}", f"+method.moments={moments}"]
    said = said_of(words, "+method.decay=0.9")
    line = "+method.decay=0.9 has no effect with method.moments=none, but changes the run's id."
    assert said == ([f"{line} Leave it out."] if is_told else [])


def test_a_run_says_before_its_first_step_what_its_method_leaves_unread(shell):
    words = ["method=sparse_dpsgd", "method.p=0.0", "method.mask=random", *BASE, "results=here"]
    done = shell(*words)
    assert done.returncode == 0, done.stderr
    before, line, after = done.stderr.partition("method.mask=random has no effect with method.p=0")
    assert line and "step 4/4" in after and "step" not in before


TEXTS = ["task=sentiment", "profile=embedded", "model.dropout=0.3"]


@pytest.mark.parametrize(
    ("words", "is_told"),
    [
        (["method=dp_zo"], True),
        (["method=dpsgd"], False),
        (["method=dp_zo", "public=texts", "warm_start=public"], False),
    ],
)
def test_dropout_is_told_of_where_no_pass_has_any(words, is_told):
    said = idle.unread(cli.compose([*words, *TEXTS]), {"model.dropout": "model.dropout=0.3"})
    assert list(said) == ["model.dropout"] * is_told


@pytest.mark.parametrize("around", [[], ["clipping=adaptive"], ["denoise=disk"]])
def test_public_examples_that_a_method_never_takes_are_told_of_around_it_too(around):
    (line,) = said_of(["method=dpsgd", *around], "public=shapes")
    told = "public=shapes has no effect with method=dpsgd, which takes no public examples"
    assert line.startswith(told)


@pytest.mark.parametrize("around", [[], ["clipping=adaptive"]])
def test_of_a_method_of_ones_own_that_states_none_the_run_says_so(around, tmp_path, monkeypatch):
    (tmp_path / "idle_public.py").write_text(OWN)
    monkeypatch.delitem(sys.modules, "idle_public", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    words = ["method=dpsgd", "method._target_=idle_public.Child", *around]
    assert said_of(words, "public=shapes") == []
    told = "public=shapes has no effect: method=dpsgd takes no public examples as it is set"
    with pytest.warns(UserWarning, match=told):
        dpexp.run(*words, *BASE, "public=shapes", f"results={tmp_path}")


def test_a_public_set_that_only_an_analysis_or_a_warm_start_takes_is_read():
    for words in (["analysis=projection"], ["warm_start=public"]):
        assert said_of(["method=dpsgd", *words], "public=shapes") == []


def test_no_public_set_beside_a_method_without_one_is_nothing_to_tell_of():
    """The run is that of no word, so nothing is to be left out for its id."""
    assert said_of(["method=dpsgd"], "public=none") == []


def test_of_several_runs_a_word_is_told_of_that_none_reads():
    words = ["public=shapes", "public.data_seed=1"]
    configs = [cli.compose([*BASE, method, *words]) for method in ("method=dpsgd", "method=dp_zo")]
    with pytest.warns(UserWarning) as told:
        idle.warn_of_all(configs, words)
    assert [str(each.message).partition(" has no")[0] for each in told] == words
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        idle.warn_of_all([*configs, cli.compose([*BASE, "method=gep", *words])], words)


@pytest.mark.parametrize(("words", "word"), READ)
def test_a_word_that_is_read_is_not(words, word):
    assert said_of(words, word) == []


def test_a_decay_that_is_refused_is_not_told_to_be_left_out():
    assert not said_of(["method=dpsgd", "averaging=ema"], "averaging.decay=1.5")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["privacy.clip_norm=x"], "privacy.clip_norm to be a number"),
        (["clipping=adaptive", "clipping.count_noise=null"], "count_noise of Adaptive to be float"),
        (["averaging=ema", "averaging.decay=null"], "decay of EMA to be float"),
    ],
)
def test_a_value_of_a_wrong_kind_is_refused_by_who_reads_it(words, line, tmp_path):
    said = ["method=dpsgd", *BASE, *words, "privacy.delta=1e-7", f"results={tmp_path}"]
    with pytest.raises(ConfigError, match=line):
        dpexp.run(*said)


@pytest.mark.parametrize("each", some_long(range(len(IDLE)), [0]))
def test_what_is_said_to_have_no_effect_changes_no_bit(each, tmp_path):
    words, word, _ = IDLE[each]
    assert weights(tmp_path / "without", *words) == weights(tmp_path / "with", *words, word)


@pytest.mark.long
@pytest.mark.parametrize(("words", "word"), READ)
def test_what_is_read_changes_the_weights(words, word, tmp_path):
    assert weights(tmp_path / "without", *words) != weights(tmp_path / "with", *words, word)


def test_a_variable_that_nothing_reads_is_told_of(monkeypatch):
    words = ["method=dpsgd", *BASE]
    config = cli.compose(words)
    for name in ("DPEXP_CACHE", "DPEXP_DATA_ROOT", "DPEXP_MODEL_ROOT", "MY_DPEXP_DATA"):
        monkeypatch.setenv(name, "/tmp")
    idle.warn(config, words)  # a warning is an error here
    monkeypatch.setenv("DPEXP_DATA_ROTO", "/data")
    with pytest.warns(UserWarning, match="DPEXP_DATA_ROTO is set.* Did you mean DPEXP_DATA_ROOT?"):
        idle.warn(config, words)
