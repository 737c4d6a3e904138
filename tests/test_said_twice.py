"""A setting has one value: a second one for it is refused, wherever it is typed."""

import subprocess
from pathlib import Path

import pytest

import dpexp
from dpexp.cli import audit, budget, lira, search, soak, wandb_view
from dpexp.cli.command_line import require_once, with_words
from dpexp.types import ConfigError
from tests.test_cli import BRIEF, the_error

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["eps=2", "eps=8"], "eps=2 and eps=8"),
        (["eps=2", "privacy.eps=8"], "eps=2 and privacy.eps=8"),
        (["task.delta=1e-5", "+privacy.delta=1e-6"], "task.delta=1e-5 and +privacy.delta=1e-6"),
        (["method=rgp", "seed=1", "method=lsg"], "method=rgp and method=lsg"),
        (["method.rank=2", "++method.rank=4"], "method.rank=2 and ++method.rank=4"),
        (["-m", "eps=1,2", "eps=8"], "eps=1,2 and eps=8"),
        (["noise=secret", "noise=true"], "noise=secret and noise=true"),
        (["results=a", "--config-dir", "mine", "results=b"], "results=a and results=b"),
    ],
)
def test_two_values_of_a_setting_are_refused_with_both(words, said):
    with pytest.raises(
        ConfigError, match=f"^Expected one value of .*; got {said.replace('+', '.')}"
    ):
        require_once(words)


@pytest.mark.parametrize(
    "word",
    ["clipping=[per_layer,normalize]", "+model=['linear', 'cnn']", 'averaging="[last,ema]"'],
)
def test_several_options_where_a_run_has_one_are_refused(word):
    with pytest.raises(ConfigError, match=r"^Expected one (clipping|model|averaging); got "):
        require_once([word])
    with pytest.raises(ConfigError, match=r"Expected one (clipping|model|averaging); got "):
        dpexp.run(f"method=dpsgd task=digits profile=embedded {word.replace(' ', '')} eps=8")


def test_options_that_are_told_apart_by_commas_are_for_a_sweep(shell):
    error = the_error(shell("method=dpsgd", *BRIEF, "eps=8", "clipping=per_layer,normalize"))
    assert error.endswith("For a sweep add -m; a run has one clipping.")


def test_a_word_that_a_shell_took_apart_is_to_be_quoted():
    torn = subprocess.run(  # bash expands the braces, sh does not
        ["bash", "-c", "printf '%s\\n' task.columns={rooms:[1,12],heating:[gas,oil]}"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert len(torn) == 4
    with pytest.raises(ConfigError, match=r"Put the word in quotes: 'task\.columns=\{\.\.\.\}'"):
        require_once(torn)


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "eps=2,8", "method=rgp,lsg", "method.rank=4"],
        ["analysis=[stable_rank,noise_norm]", "tracking=[csv,wandb]", "clipping=[normalize]"],
        ["-m", "clipping=[normalize],[per_layer]", "averaging=[]"],
        ["method=rgp", "method.rank=4", "method.head_factor=1", "eps=8", "eps=8"],
        ["hydra.searchpath=[file:///a]", "hydra.searchpath=[file:///b]"],
        ["--config-dir", "a=1", "--config-dir", "a=2", "a=3"],
        ["~attack", "attack=shadow", "task.delta=1e-5", "delta=1e-6"],
    ],
)
def test_what_is_said_once_or_in_the_same_words_is_taken(words):
    require_once(words)


def test_run_py_and_its_python_twin_refuse_a_second_value(shell, tmp_path):
    line = the_error(shell("method=dpsgd", *BRIEF, "eps=2", "eps=8"))
    assert line == "error: Expected one value of eps; got eps=2 and eps=8. Leave one of them out."
    with pytest.raises(ConfigError, match="got eps=2 and eps=8"):
        dpexp.run("method=dpsgd task=digits eps=2", "eps=8", f"results={tmp_path}")


@pytest.mark.parametrize(
    ("main", "words"),
    [
        (budget.main, ["eps=2", "delta=1e-5", "eps=8"]),
        (search.main, ["method=dpsgd", "task=digits", "optimizer.lr=1", "optimizer.lr=2"]),
        (lira.main, ["eps=2", "eps=8"]),
        (lira.main, ["eps=2", "privacy.eps=8"]),
        (audit.main, ["methods=rgp", "methods=lsg"]),
        (wandb_view.main, ["paper=rgp", "paper=gep"]),
    ],
)
def test_scripts_refuse_it_too(main, words, capsys):
    assert main(words) == 2
    assert "error: Expected one value of" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["PROFILE=embedded", ""])
def test_make_says_a_profile_once_unless_the_caller_says_two(word):
    command = ["make", "-n", "-o", ".venv/.ready", "TORCH=", "table3", "ARGS=profile=quick"]
    done = subprocess.run(
        [*command, *filter(None, [word])], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    said = [each for each in done.stdout.split() if each.startswith("profile=")]
    assert said == ["profile=embedded"] * bool(word) + ["profile=quick"]


@pytest.mark.long
def test_what_a_script_sets_by_itself_gives_way_to_what_is_typed(capsys):
    """A soak's runs, which are started with its own words before, were to take these too."""
    words = ["method=dpsgd", "model=linear", "ranks=1", "epochs=0.1", "disturbances=1"]
    assert soak.main(words) == 2
    assert "Expected a run long enough for four samples" in capsys.readouterr().err


def test_more_words_stand_in_place_of_those_that_set_the_same():
    words = ["method=rgp", "+eps=8", "seed=1"]
    assert with_words(words, ["privacy.eps=2", "seed=3"]) == [
        "method=rgp",
        "privacy.eps=2",
        "seed=3",
    ]
