"""`dpexp.run`: the command line's run from Python."""

import os
import random
import subprocess
import sys

import numpy as np
import pytest
import torch

import dpexp
from dpexp import cli, records
from dpexp.types import ConfigError
from tests.runs import one_thread  # noqa: F401 (a fixture)

WORDS = "method=dpsgd task=digits profile=embedded eps=8 epochs=0.2 device=cpu"


def test_it_trains_and_the_second_time_looks_up_what_the_command_line_would_make(tmp_path):
    folder = tmp_path / "my results"
    first = dpexp.run(WORDS, f"results='{folder}'")
    assert first.privacy["epsilon"]["prv"] <= 8 and 0 < first.result["test_accuracy"] <= 100
    assert first.config == cli.compose([*WORDS.split(), f'results="{folder}"']) | {
        key: first.config[key] for key in ("device", "ranks", "micro_batch", "weights")
    }
    assert first.directory == records.locate(folder, first.config)
    written = (first.directory / "result.json").stat().st_mtime_ns
    again = dpexp.run(*WORDS.split(), f"results='{folder}'")
    assert again == first
    assert (first.directory / "result.json").stat().st_mtime_ns == written


@pytest.mark.parametrize("mode", [False, True])
def test_the_callers_random_numbers_and_mode_stay(mode, tmp_path):
    torch.manual_seed(5)
    others = random.getstate(), np.random.get_state()[1].tolist()
    with torch.inference_mode(mode):
        dpexp.run(WORDS.replace("0.2", "0.1"), f"results={tmp_path}")
        assert torch.is_inference_mode_enabled() == mode
    drawn = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3), drawn)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == others


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("method=rpg task=digits", r"got method=rpg. Did you mean rgp\?"),
        ("method=rgp task=digits eps=1,2", r"Ambiguous .* call dpexp.run once for each value; for"),
        ("-m method=rgp task=digits eps=1,2", r"got -m\. For a sweep call dpexp.run once for each"),
        ("method=rgp task=digits --help", r"got --help\. Leave out --help\.$"),
        ("method=rgp 'task=digits", r"quoted as in a shell; got .* \(No closing quotation\)"),
        (["method=rgp", "task=digits"], r"got \['method=rgp', .*\. Write dpexp\.run\(\*words\)\.$"),
        (None, r"Expected words such as 'eps=8'; got None"),  # shlex would wait for the terminal
        ("method=rgp task=digits epz=1", "Unknown key epz"),
        ("method=rgp", "Expected a task"),
        ("method=rgp task=digits profile=embedded eps=-1", "eps"),
    ],
)
def test_a_mistake_is_one_line(words, line, tmp_path):
    with pytest.raises(ConfigError, match=line) as refused:
        dpexp.run(words, f"results={tmp_path}")
    assert "\n" not in str(refused.value)
    assert not any(tmp_path.iterdir())


def test_an_override_without_effect_warns(tmp_path):
    words = WORDS.replace("eps=8", "eps=null noise=false clip=false")
    with pytest.warns(UserWarning, match="privacy.clip_norm=7 has no effect with method=dpsgd"):
        dpexp.run(words, "privacy.clip_norm=7", f"results={tmp_path}")


@pytest.mark.parametrize("package", ["dpexp", "scripts"])
@pytest.mark.parametrize(("known", "waits"), [({}, "1000"), ({"OMP_WAIT_POLICY": "active"}, None)])
def test_threads_that_wait_leave_their_core_to_others_unless_the_user_says_how(
    package, known, waits
):
    """Beside busy programs, on two cores, a run took up to fourteen times as long."""
    code = f"import os, {package}; print(os.environ.get('GOMP_SPINCOUNT'))"
    others = {k: v for k, v in os.environ.items() if not k.startswith(("GOMP_", "OMP_WAIT"))}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=others | known, capture_output=True, text=True
    )
    assert ended.stdout.split() == [str(waits)]


@pytest.mark.parametrize("library", ["torch", "hydra"])
def test_importing_the_package_waits_for_no_large_library(library):
    code = f"import sys, dpexp; dpexp.run; sys.exit({library!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_what_is_no_folder_is_one_line(tmp_path):
    done = dpexp.run(WORDS, f"results='{tmp_path}'")
    with pytest.raises(
        ConfigError, match=r"folder of a run; got a TrainedRun\. Set its \.directory"
    ):
        dpexp.load(done)
    with pytest.raises(ConfigError, match=r"folder of a run; got a int\. Set its path\.$"):
        dpexp.load(3)
