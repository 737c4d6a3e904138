"""The command line as a person meets it: `python run.py ...` in a process of its own."""

import sys
import time
from pathlib import Path

import pytest
from hydra.errors import ConfigCompositionException
from omegaconf.errors import InterpolationKeyError
from torch import nn

from dpexp import cli
from dpexp.cli import errors
from dpexp.types import ConfigError
from tests.marks import long

ROOT = Path(__file__).resolve().parents[1]
DIGITS = ["task=digits", "profile=embedded"]
BRIEF = [*DIGITS, "epochs=0.2"]  # one step


METHODS = sorted(path.stem for path in (cli.CONF / "method").glob("*.yaml"))


def the_error(done):
    """Return the one line that a mistake is to be told in.

    Before it imports torch a run says that it starts; mistakes found later are told below that.
    """
    assert done.returncode == 2, done.stderr
    assert done.stdout == "" and "Traceback" not in done.stderr
    (line,) = [one for one in done.stderr.splitlines() if not one.endswith(": starting")]
    assert line.startswith("error: ")
    return line


# Mistakes


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["method=rpg", *DIGITS], "Did you mean rgp?"),
        long(["method=rgp", "task=digts", "profile=embedded"], "Did you mean digits?"),
        long(["method=rgp", "task=digits", "profile=embeded"], "Did you mean embedded?"),
        long(["method=rgp", *DIGITS, "model=resnet"], "Did you mean resnet20?"),
        (["method=rgp", *DIGITS, "epocs=3"], "Did you mean epochs?"),
        long(["method=rgp", *DIGITS, "method.rnk=3"], "Did you mean rank?"),
        long(["method=rgp", *DIGITS, "recipe=minilm/rpg"], "Did you mean minilm/rgp?"),
        long(["method=rgp", *DIGITS, "scale@_global_=quik/gep"], "Did you mean quick/gep?"),
        long(["method=rgp", *DIGITS, "tuned=nope"], "Add +tuned=, one of embedded/dpexp/table4"),
        long(["method=rgp", *DIGITS, "+hydra/launcher=jobli"], "Did you mean joblib?"),
        long(["method=rgp", *DIGITS, "optimizer.rl=3"], "Did you mean lr?"),
        long(["-m", "method=rgp,rpg", *DIGITS], "Did you mean rgp?"),
        long(["task=digits", "-m", "method=rgp,rpg"], "Did you mean rgp?"),
        (
            ["-m", "method=rgp", *DIGITS, "denoise=null,disk"],
            "Name one, or several; denoise=none is a run without",
        ),
        (["method=rgp", *DIGITS, "epochs"], "override 'epochs'. Expected KEY=VALUE."),
        (["method=rgp", *DIGITS, "eps=1,2"], "For a sweep add -m"),
        (
            ["method=rgp", *DIGITS, "attack=Null"],
            "got attack=Null. Name one, or leave it out for its default; attack=none is",
        ),
        long(["method=3", *DIGITS], "got method=3. Name one."),
        long(["method=RGP", *DIGITS], "Did you mean rgp?"),
        long(["method=rgp", *DIGITS, "rank=4"], "Did you mean method.rank?"),
        long(["metod=rgp", *DIGITS], "Did you mean method?"),
        long(["method=rgp", *DIGITS, "prompt=film_reviews"], "Did you mean prompts?"),
        long(["method=rgp", *DIGITS, "delta=1e-5"], "Did you mean privacy.delta or task.delta?"),
        long(
            ["method=rgp", *DIGITS, "audit.m=9"],
            "No audit is chosen, so it has no settings. Add aud",
        ),
        long(["method=rgp", *DIGITS, "clipping.quantile=0.5"], "settings. Add clipping=adaptive."),
        long(["method=rgp", *DIGITS, "clipping.nothing=0.5"], "clipping=adaptive or clipping=norm"),
        long(["method=rgp", *DIGITS, "+privacy.clipnorm=1"], "Did you mean clip_norm?"),
        long(["method=rgp", *DIGITS, "eps:3"], "override 'eps:3'. Expected KEY=VALUE."),
        (["~method", *DIGITS], "Expected method, task, model and profile to be chosen"),
        long(["method=rgp", *DIGITS, "~privacy.delta"], "Expected privacy.delta to have a value"),
        long(["method=rgp", *DIGITS, "~eval_every"], "Expected eval_every to have a value"),
        (["method=rgp", *DIGITS, "data_root=/nope"], "data_root=/nope (no such folder). Set"),
        long(["method=rgp", *DIGITS, "optimizer.lr=null"], "optimizer.lr to be a number; got null"),
        (["method=rgp", *DIGITS, "+loop=os"], "loop to be a module with train; got"),
        long(["method=rgp", *DIGITS, "optimizer._target_=os.system"], "Hydra refuses it"),
        long(["method=rgp", *DIGITS, "schedule._target_=os.system"], "Hydra refuses it"),
        (
            ["--method", "rgp", *DIGITS],
            "arguments: --method. Settings are words such as method=rgp",
        ),
        long(["--method=rgp", *DIGITS], "arguments: --method=rgp. Settings are words"),
        (["method=rgp", *DIGITS, "-c"], "expected one argument. Settings are words"),
        (["method=rgp", *DIGITS, "--resolve"], "The --resolve flag can only be used"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_misspelt_word_is_answered_with_the_nearest_valid_one(shell, words, said):
    assert said in the_error(shell(*words))


def test_what_was_not_chosen_is_asked_for_with_the_choices(shell):
    assert "Set method, one of bgep" in the_error(shell("task=digits"))
    for method in ("rgp", "gep"):  # the second's public data depend on the task
        assert "Set task, one of cifar10" in the_error(shell(f"method={method}"))


@pytest.mark.parametrize("value", ["0", ""])
def test_a_mistake_is_one_line_whatever_hydra_is_told_to_print(shell, value):
    assert "Did you mean rgp?" in the_error(shell("method=rpg", *DIGITS, HYDRA_FULL_ERROR=value))


def test_an_assertion_that_fails_is_the_users_mistake_in_hydra_alone():
    with pytest.raises(AssertionError) as ours:
        assert not METHODS
    assert errors.mistake(ours.value) is None
    with pytest.raises(AssertionError) as hydras:
        cli.compose(["method=gep"])
    assert errors.mistake(hydras.value).startswith("Expected a task")


def test_a_list_in_a_names_place_is_the_users_mistake(monkeypatch):
    words = ["method=compressive", "features=resnet152", "task=[[1]]"]
    monkeypatch.setattr(sys, "argv", ["run.py", *words])
    with pytest.raises(TypeError) as hydras:  # it puts a group's name together of it
        cli.compose(words)
    assert "got task=[[1]]. Name one." in errors.mistake(hydras.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["analysis=residual"], "Expected a value for analysis.residual.parameter"),
        (["analysis=theorem1"], "'method.kappa' not found). Choose another analysis, task,"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_setting_without_a_value_is_named(shell, words, said):
    assert said in the_error(shell("method=rgp", *DIGITS, *words))


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["method=rgp_public", "public=texts"], "Choose another public, task, model or method."),
        (
            ["method=dpsgd", "prompts=film_reviews"],
            "Choose another prompts, task, model or method.",
        ),
        (
            ["method=dpsgd", "method.head=${model.first}"],
            "Choose another method, task or model, or set method.head.",
        ),
    ],
)
def test_a_key_that_cannot_help_is_no_remedy(words, remedy):
    with pytest.raises(InterpolationKeyError) as raised:
        cli.compose(["task=digits", "profile=embedded", "model=cnn", *words])
    assert errors.explain(raised.value).endswith(f"not found). {remedy}")


def test_a_task_without_a_default_model_asks_for_one(shell, tmp_path):
    """As a task of one's own, in a folder of one's own."""
    (tmp_path / "mine" / "task").mkdir(parents=True)
    own = (ROOT / "conf" / "task" / "digits.yaml").read_text().replace("digits\n", "own\n", 1)
    (tmp_path / "mine" / "task" / "own.yaml").write_text(own)
    words = ["--config-dir", str(tmp_path / "mine"), "method=rgp", "task=own", "profile=embedded"]
    line = the_error(shell(*words))
    assert "no default one under profile embedded" in line and "wrn10_1" in line


def test_a_mistake_in_a_value_is_one_line(shell, tmp_path):
    line = the_error(shell("method=rgp", *DIGITS, "eps=0"))
    assert line.startswith("error: Expected eps > 0; got 0.")
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["eps=-1"], "Expected eps > 0; got -1"),
        (["eps=null"], "Expected eps > 0; got None"),
        (["eps=abc"], "Expected eps > 0; got abc"),
        (["noise=maybe"], "Expected noise true, false, secret or correlated; got maybe"),
        (["sampling=poison"], "Did you mean poisson?"),
        (["task.delta=2"], r"Expected delta in \(0, 1\); got 2"),
        (["batch_size=5000"], r"Expected batch_size in \[1, 1437\].*got batch_size=5000"),
        (["batch_size=0"], "Expected batch_size .*> 0"),
        (["batch_size=1.5"], "Expected batch_size to be a whole number"),
        (
            ["checkpoint.steps=0"],
            "Expected checkpoint.steps to be null or a whole number >= 1; got 0",
        ),
        (["checkpoint.seconds=abc"], "Expected checkpoint.seconds to be null or a number >= 0"),
        (["micro_batch=0"], "Expected micro_batch to be a whole number > 0"),
        (["epochs=abc"], "Expected epochs to be a number > 0; got epochs=abc"),
        (["epochs=0"], "Expected epochs .*> 0"),
        (["eval_every=0"], "Expected eval_every"),
        (["privacy.clip_norm=0"], "Expected privacy.clip_norm"),
        (["method.rank=500"], r"Expected rank in \[1, \d+\].*got rank=500. Set method.rank"),
        (["method.rank=abc"], "Expected rank of RGP to be int; got rank=abc. Set method.rank."),
        (
            [*DIGITS, "task.mean=1"],
            r"Expected mean of digits to be a list of float; got mean=1. Set task.mean, with",
        ),
        (
            ["schedule=milestones", "schedule.factor=null"],
            "Expected a value of 'factor', which .*Milestones needs; null is none. Set it.",
        ),
        (["task.std=abc"], "Expected std of .* to be a list of float; got std=abc"),
        (["method.residual=3"], "Expected residual of RGP to be bool"),
        (["++method.rnk=3"], "Unknown key method.rnk: RGP takes rank, .* Did you mean rank?"),
        (["++model.widht=3"], "Unknown key model.widht: .* Did you mean width?"),
        (["model.depth=11"], "Expected a depth of"),
        (["model.head=tail"], "Expected the model to hold a classifier named 'tail'"),
        (
            ["method=dpsgd", "model.head=tail"],
            "Expected the model to hold a classifier named 'tail'",
        ),
        (["optimizer.lr=-1"], r"Expected optimizer.lr > 0; got -1\. Set optimizer.lr"),
        (["optimizer.momentum=2"], "Expected optimizer.momentum to be at most 1, or old steps"),
        (["optimizer=adam"], "Expected optimizer.lr beside optimizer=adam"),
        (["+optimizer.momentun=1"], "Unknown key optimizer.momentun: .* Did you mean momentum?"),
        (["~optimizer"], "Expected optimizer to hold settings of its own; it was taken out"),
        (["checkpoint=5"], "Expected checkpoint to hold settings of its own; got checkpoint=5"),
        (["optimizer.lr=nan"], "Expected optimizer.lr to be finite; got nan"),
        (["optimizer.lr=[1,2]"], "Expected optimizer.lr to be a number; got .1, 2."),
        (["optimizer.lr=abc"], "Expected optimizer.lr to be a number; got abc"),
        (["optimizer._target_=torch.optim.Foo"], "that can be imported; got torch.optim.Foo"),
        (["optimizer._target_=torch.optim"], "that can be called; got torch.optim"),
        (["optimizer.momentum=inf"], "Expected optimizer.momentum to be finite; got inf"),
        (["~wandb.mode"], "Expected wandb.mode, one of disabled, offline, online; it was taken"),
        (["model._target_=nowhere.Net"], r"that can be imported; got nowhere.Net \(No module"),
        (["schedule.fractions=[0.6,0.3]"], r"Expected schedule.fractions to rise in \(0, 1\)"),
        (["model._target_=os.system"], "Expected model to name what .* Hydra refuses it"),
        (["method._target_=os.system"], "Expected method to name what .* Hydra refuses it"),
        (
            ["task._target_=os.system", "task.name=own"],
            "Expected task to name what .* Hydra refuses it",
        ),
        (["task._target_=os.system"], "Expected task=digits to be of its own data.*Set task.name"),
        (["model.width=0"], "Expected model.width >= 1"),
        (["task.std=[0]"], r"Expected task.std to be positive numbers.*got \[0\]. Set task.std"),
        (["task.mean=[0.1,0.2]"], "Expected task.mean to be numbers, one a channel or one for all"),
        (["seed=null"], "Expected seed to be a whole number >= 0; got seed=null. Set seed"),
        (["seed=-1"], "Expected seed to be a whole number >= 0; got seed=-1"),
        ([f"seed={2**63}"], r"Expected seed to be .* below 2\^63; got one of 64 bits. Set seed"),
        ([f"method.rank={10**20}"], r"Expected method.rank to be a whole number below 2\^63"),
        (
            ["augmentation=crop_flip", "augmentation.padding=2000000000"],
            "Expected augmentation.padding to be at most the images' size; got 2000000000",
        ),
        (["wandb.mode=offlin"], "Did you mean offline?"),
        (["device=mps"], "Expected device auto, cpu, cuda or cuda:N; got device=mps. Set device."),
        (
            ["ranks=true"],
            "Expected ranks to be auto or a number from 1; got ranks=True. Set ranks.",
        ),
        (["task.dataset_size=1000"], "Expected task.dataset_size=1000 training examples"),
        (["device=gpu"], "Expected device auto, cpu, cuda or cuda:N"),
        (["recipe=bert"], "Expected recipe to be a block, such as recipe=minilm/rgp; got a whole"),
        (["+foo=1"], "Unknown key foo; valid here: eps, noise, "),
        (["+epocs=1"], "Unknown key epocs; .* Did you mean epochs?"),
        (["method.name=dpsgd"], "Expected method to keep the name .* got method.name=dpsgd"),
        (["~model.name"], "Expected model to keep the name of the chosen option; got ~model.name"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_value_that_cannot_be_meant_is_refused_before_training(tmp_path, words, said):
    with pytest.raises(ConfigError, match=said) as caught:
        cli.execute(cli.compose(["method=rgp", *DIGITS, f"results={tmp_path}", *words]))
    assert "\n" not in str(caught.value)
    assert not any(tmp_path.rglob("metrics.jsonl"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["target=nets.Net"], "Expected model=python beside target=; got model=wrn10_1. Set mod"),
        (["model=cnn", "name=x"], "Expected model=timm or model=torchvision beside name=; got m"),
        (["model=timm", "repo=a/b"], "Expected model=hf beside repo=; got model=timm, which takes"),
        (["model=hf", "repo=a/b", "model.hops=1"], "what it builds is model.args.hops."),
    ],
)
def test_a_word_of_another_model_is_told_whose_it_is(words, said):
    with pytest.raises(ConfigCompositionException) as caught:
        cli.compose(["method=rgp", *DIGITS, *words])
    line = errors.mistake(caught.value)
    assert said in line and "\n" not in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["optimizer.nesterov=true"], "If torch.optim.SGD takes it, add it: +optimizer.nesterov=V"),
        (
            ["optimizer=torch.optim.NAdam"],
            "For a class set optimizer._target_=torch.optim.NAdam.",
        ),
        (["~optimizer.momentun"], "has no optimizer.momentun. Did you mean ~optimizer.momentum?"),
        (["~epocs"], "it has no epocs. Did you mean ~epochs?"),
        (["~momentum"], "it has no momentum. Leave ~momentum out."),
        (["~optimizer.lr=9"], "it has optimizer.lr=4.0. Write ~optimizer.lr."),
        (["~denoise.a"], "it has no denoise.a. Leave ~denoise.a out."),
        (["~averaging=ema"], "no averaging=ema is. Leave ~averaging=ema out."),
        (["+optimizer.lr=1"], "optimizer.lr has a value. Leave the + out."),
        (["+optimizer=adam"], "a run has one already. Write optimizer=adam."),
        (["++optimizer=adam"], "no ++ before the choice of a group. Write optimizer=adam."),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_prefix_that_does_not_fit_is_told_with_the_word_to_write(words, said):
    with pytest.raises(ConfigCompositionException) as caught:
        cli.compose(["method=rgp", *DIGITS, *words])
    line = errors.mistake(caught.value)
    assert said in line and "\n" not in line


@pytest.mark.parametrize("key", ["noise", *map(long, ["eps", "clip", "sampling"])])
def test_a_setting_that_others_read_is_told_of_where_it_was_taken_out(key):
    with pytest.raises(InterpolationKeyError) as caught:
        cli.compose(["method=rgp", *DIGITS, f"~{key}"])
    said = (
        f"Expected {key} to have a value, which privacy.{key} takes; it was taken out. Set {key}."
    )
    assert errors.mistake(caught.value) == said


def test_a_setting_that_a_choice_brought_is_told_how_it_is_taken_out():
    words = ["method=rgp", *DIGITS, "optimizer._target_=torch.optim.Adam"]
    with pytest.raises(ConfigError, match=r"is taken out by ~optimizer\.momentum\.$"):
        cli.compose(words)
    assert "momentum" not in cli.compose([*words, "~optimizer.momentum"])["optimizer"]


@pytest.mark.parametrize("word", ["task.mean={a:1}", long("+task.mean={a:1}")])
def test_keys_are_no_list(shell, word):
    done = shell("method=dpsgd", "task=digits", "eps=8", word)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    said = "error: Expected task.mean to stay what it is, a list in brackets or keys in braces; got"
    assert done.stderr.splitlines()[-1] == f"{said} {{a:1}}. Set task.mean."


@pytest.mark.parametrize("word", ["task.mean.7=1", *map(long, ["task.mean.a=1", "~task.mean.a"])])
def test_a_place_that_a_list_has_not_is_said(shell, word):
    done = shell("method=dpsgd", "task=digits", "eps=8", word)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    at = word.partition("=")[0].rpartition(".")[2]
    said = f"error: Expected a place that the list has, a number from 0; got {at}. Set the whole"
    assert done.stderr.splitlines()[-1] == f"{said} list, task.mean=[...]."


def test_a_words_letters_are_no_list():
    words = ["method=rgp", "task=cifar10", "profile=quick", "eps=8", "task.train_splits=train"]
    with pytest.raises(ConfigError, match=r"to be a list of str; got train_splits=train. Set task"):
        cli.execute(cli.compose(words))


def test_every_failed_job_of_a_sweep_is_told_of_and_the_others_are_done(shell, tmp_path):
    done = shell("-m", "method=linear", *BRIEF, "noise=true", "clip=true", "eps=0,8,-1")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stdout.splitlines()[-1].startswith("results/embedded/runs/")
    told = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert [line.partition("got ")[2].partition(".")[0] for line in told] == ["0", "-1"]
    assert "eps=0: Expected eps > 0" in told[0] and "eps=-1: Expected eps > 0" in told[1]
    assert len(list((tmp_path / "results").rglob("result.json"))) == 1


def test_a_launcher_without_its_plugin_names_what_it_needs(shell):
    try:
        import hydra_plugins.hydra_ray_launcher  # noqa: F401
    except ImportError:
        line = the_error(shell("-m", "method=linear", *BRIEF, "hydra/launcher=ray"))
        assert line.startswith("error: Launcher ray does not start") and "'.[ray]'" in line
    else:
        pytest.skip("hydra-ray-launcher is installed")


def test_a_model_that_cannot_be_trained_is_said_before_anything_else(tmp_path):
    words = ["method=rgp", *DIGITS, f"results={tmp_path}", "model._target_=tests.test_cli.Mixing"]
    words += ["~model.depth", "~model.width", "~model.stem_stride", "~model.channels_last"]
    with pytest.raises(ConfigError, match="norm is a BatchNorm2d, whose statistics mix them"):
        cli.execute(cli.compose(words))
    assert not any(tmp_path.rglob("released.jsonl"))


class Mixing(nn.Module):
    """A network with statistics of the batch, and no layer as large as the rank."""

    def __init__(self, in_channels, num_classes):
        super().__init__()
        self.norm, self.head = nn.BatchNorm2d(in_channels), nn.Linear(64, num_classes)

    def forward(self, x):
        return self.head(self.norm(x).flatten(1))


def test_more_teachers_than_examples_are_refused(tmp_path):
    words = ["method=pate", *DIGITS, "method.teachers=1438", f"results={tmp_path}"]
    with pytest.raises(ConfigError, match="at most one teacher an example, 1437; got method.teach"):
        cli.execute(cli.compose(words))


@pytest.mark.long
def test_a_delta_too_large_is_warned_of_in_one_line(shell):
    done = shell("method=linear", *BRIEF, "noise=true", "clip=true", "eps=8", "task.delta=0.01")
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "delta" in line]
    line, announced = [line for line in told if not line.startswith("done: ")]
    assert line.startswith("warning: delta=0.01 is not below 1/N")
    assert "(delta is not below 1/N: such a guarantee" in announced  # as the certificate says


@pytest.mark.parametrize(
    "environment", [{}, long({"HF_HUB_OFFLINE": "1"})], ids=["down", "offline"]
)
def test_missing_data_is_said_within_ten_seconds(shell, tmp_path, environment):
    (tmp_path / "empty").mkdir()
    began = time.monotonic()
    done = shell("method=rgp", "task=svhn", "profile=embedded", "data_root=empty", **environment)
    assert time.monotonic() - began < 10
    line = the_error(done)
    assert "ufldl-stanford/svhn" in line and "data_root" in line


def test_a_full_disk_is_one_line(shell):
    words = ["method=dpsgd", *BRIEF, "noise=false"]
    done = shell(*words, limits={"RLIMIT_FSIZE": 300})  # less than a config
    assert done.returncode == 2 and done.stdout == ""
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "Cannot write" in line and line == done.stderr.splitlines()[-1]
