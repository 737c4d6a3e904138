"""One set of packages, said in three files that may not drift apart; and imports that work."""

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from dpexp.records import LEDGER, binding
from tests.marks import few, long

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "dpexp"
CUDA_ONLY = re.compile(r"^(nvidia-|cuda-|triton$)")


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def asked(project):
    lines = project["dependencies"] + project["optional-dependencies"]["dev"]
    return [Requirement(line) for line in lines]


@pytest.fixture(scope="module")
def pins():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    wanted = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(pin.name): pin for pin in wanted}


def version(pin):
    (specifier,) = pin.specifier
    assert specifier.operator == "==", f"{pin} is not one exact version"
    return specifier.version


def test_every_file_beside_the_code_is_named_as_package_data():
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    named = {
        path for glob in tool["setuptools"]["package-data"]["dpexp"] for path in PACKAGE.glob(glob)
    }
    files = (path for path in PACKAGE.rglob("*") if path.is_file())
    beside = {path for path in files if path.suffix not in (".py", ".pyc")}
    assert len(beside) > 3
    assert beside <= named


def test_a_commit_is_held_to_what_make_lint_runs():
    makefile = (ROOT / "Makefile").read_text()
    (recipe,) = re.findall(r"^lint: .*\n((?:\t.*\n)+)", makefile, re.M)
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    assert [f"\t$(PY){hook['entry'].removeprefix('.venv/bin/python')}" for hook in hooks] == (
        recipe.splitlines()
    )


def test_every_constraint_is_one_exact_public_version_for_any_machine(pins):
    for name, pin in pins.items():
        assert "+" not in version(pin), f"{pin} names one build"
        assert not CUDA_ONLY.match(name), f"{name} exists on CUDA machines only"
        assert pin.marker is None and not pin.extras


def test_every_direct_dependency_is_pinned_within_its_range(asked, pins):
    for requirement in asked:
        pin = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version(pin)), f"{pin} is outside {requirement}"


def test_every_transitive_dependency_is_pinned(asked, pins):
    seen, todo = set(), list(asked)
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name in seen or CUDA_ONLY.match(name):
            continue
        seen.add(name)
        assert name in pins, f"{name} is installed but has no line in constraints.txt"
        for line in importlib.metadata.requires(name) or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                todo.append(needed)
    assert seen == set(pins), f"pinned but needed by nothing: {sorted(set(pins) - seen)}"


def test_conda_environment_is_the_same_set(project):
    *conda, pip = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    (python,) = [Requirement(line) for line in conda if line.startswith("python")]
    assert python.specifier == SpecifierSet(project["requires-python"])
    assert [line for line in conda if not line.startswith("python")] == ["pip"]
    assert pip == {"pip": ["-c constraints.txt", "-e .[dev]"]}


def test_make_asks_for_that_python(project):
    text = (ROOT / "Makefile").read_text()
    low, high = re.search(r"\((3, \d+)\) <= sys.version_info\[:2\] < \((3, \d+)\)", text).groups()
    bounds = f">={low},<{high}".replace(", ", ".")
    assert SpecifierSet(bounds) == SpecifierSet(project["requires-python"])


def test_make_refuses_an_unfit_python_with_one_line(tmp_path):
    old = tmp_path / "python-old"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && { echo Python 3.8.1; exit 0; }\nexit 1\n')
    old.chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    done = subprocess.run(
        ["make", "setup", f"PYTHON={old}", "TORCH="],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "Expected Python 3.11 or 3.12" in done.stderr and "got Python 3.8.1" in done.stderr
    assert not list(tmp_path.glob(".venv*"))


PYTHON = """#!/bin/sh
case "$*" in
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  *pip*|*dpexp*) echo "$@" ;;
esac
"""


@pytest.mark.parametrize("torch", ["", "2.11.0"])
def test_make_installs_the_exact_set_but_for_another_torch(torch, tmp_path):
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    command = ["make", "setup", f"PYTHON={python}", f"TORCH={torch}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    venv = f".venv-torch-{torch}" if torch else ".venv"
    asked = f" torch=={torch}" if torch else ""
    assert f"-c {venv}/constraints.txt{asked} -e .[dev]" in done.stdout, done.stderr
    assert done.stdout.endswith("\n-m dpexp.cli.ready\n")
    everything = set((ROOT / "constraints.txt").read_text().splitlines())
    got = set((tmp_path / venv / "constraints.txt").read_text().splitlines())
    left_out = {line.split("==")[0] for line in everything - got}
    assert got <= everything
    assert left_out == ({"torch", "torchvision", "setuptools"} if torch else set())


@pytest.mark.parametrize("torch", ["2.11", "1.13.1", "2.11.*", "nightly"])
def test_make_refuses_a_torch_that_is_not_supported_with_one_line(torch, tmp_path):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    command = ["make", "setup", f"PYTHON={sys.executable}", f"TORCH={torch}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and not list(tmp_path.glob(".venv*"))
    assert "Expected TORCH=2.11.0 to 2.13" in done.stderr and f"got TORCH={torch}" in done.stderr


@pytest.mark.parametrize("target", ["table3", "figure5"])
def test_make_hands_its_variables_to_the_artifact_script(target):
    command = ["make", "-n", "-o", ".venv/.ready", "TORCH=", target]
    command += ["PAPER=gep", "PROFILE=quick", "ARGS=plan=true", "LAUNCHER=joblib"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    wanted = f"-m scripts.artifact {target} paper=gep profile=quick launcher=joblib plan=true"
    assert wanted in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("PROFLE=quick", "got PROFLE=. Did you mean PROFILE?"),
        long("paper=rgp", "got paper=. Did you mean PAPER?"),
        long("ARG=plan=true", "got ARG=. Did you mean ARGS?"),
        ("epochs=3", 'got epochs=. Overrides go into ARGS: ARGS="epochs=3'),
        ("prof'ile=a", "got prof'ile=. Did you mean PROFILE?"),
    ],
)
def test_make_refuses_words_that_nothing_reads_in_one_line(word, said):
    command = ["make", "--no-print-directory", "-n", "table3", word]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "unread"),
    [
        (["soak", "PROFILE=quick"], "PROFILE"),
        (["lira", "PAPER=gep"], "PAPER"),
        (["audit", "LAUNCHER=joblib"], "LAUNCHER"),
        (["lint", "docs", "ARGS=x"], "ARGS"),
    ],
)
def test_make_refuses_a_word_that_no_target_at_hand_reads(words, unread):
    """It was passed over: `make soak PROFILE=quick` tried another profile without a word."""
    done = make("-n", *words)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1
    assert f"Expected {unread}= beside all" in done.stderr
    assert f"; {words[0]} does not read it." in done.stderr
    assert make("-n", words[0], "table1", *words[1:]).returncode == 0


RECORD = ["config.yaml", "metrics.jsonl", "result.json", "privacy.json", *binding.ARRAYS]
KEPT = [
    *("model.safetensors", "README.md", "preprocessing.json", "config.json", "tokenizer.json"),
    *("vocab.txt", "spiece.model", "chat_template.jinja", "preprocessor_config.json"),
    *("generation_config.json", "adapter/adapter_model.safetensors", "checkpoint.pt", LEDGER),
    *("metrics.csv", "wandb/run/x", "tensorboard/x", ".unfinished-1"),
]


def ignored(paths):
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: nothing is ignored")
    command = ["git", "check-ignore", "--no-index", "--stdin"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, input="\n".join(paths))
    assert done.stderr == ""
    return set(done.stdout.splitlines())


def test_git_ignores_what_a_run_keeps_in_any_folder_and_never_its_record():
    for folder in ("results/embedded", "results/own", "mine/quick", "a/b/c", "results/bench/x"):
        run = f"{folder}/runs/0123456789ab"
        kept = {f"{run}/{name}" for name in KEPT} | {f"{run}.broken-2/result.json"}
        record = {f"{run}/{name}" for name in RECORD}
        assert ignored(kept | record) == kept
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout
    assert listed and not ignored(listed.splitlines())


def test_git_holds_records_of_runs_in_results_alone():
    asked = ["git", "ls-files", *("*result.json", "*privacy.json", "*metrics.jsonl")]
    listed = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    stray = [name for name in listed if not name.startswith("results/")]
    assert not stray, "a run was kept in a folder that is not a results folder"
    assert listed or not (ROOT / ".git").exists()


def make(*words):
    command = ["make", "--no-print-directory", "-o", ".venv/.ready", "TORCH=", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


THERE = [path.name for path in ROOT.iterdir() if path.name != "docs"]  # which it has
MISTYPED = {
    "tabel3": "tableN",
    "figures3": "figureN",
    "table": "tableN",
    "verfy": "verify",
    "Audit": "audit",
    "pin_configs": "pin-configs",
    "it's": "",
    "results/embedded/runs/0123": "",
}


def test_make_refuses_a_target_that_it_does_not_have():
    for target in [*THERE, *MISTYPED]:
        for words in ([target], ["verify", target]):
            done = make("PYTHON=none", *words)
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
            assert "tableN, figureN, all setup test" in done.stderr
            assert f"got {target}. Folders and overrides go into ARGS: " in done.stderr


@pytest.mark.parametrize("target", few(MISTYPED, [*MISTYPED][::3]))
def test_make_names_the_target_that_is_nearest(target):
    near = MISTYPED[target]
    hint = f" Did you mean {near}?" if near else ""
    assert f"got {target}.{hint} Folders" in make(target).stderr


def test_make_takes_every_target_that_the_makefile_has():
    makefile = (ROOT / "Makefile").read_text()
    rules = re.findall(r"^([a-z][\w-]*):(?!=)", makefile, re.M)
    assert len(rules) > 10
    for target in [*rules, "table3", "figure12", ".venv/.ready"]:
        done = make("-n", target)
        assert (done.returncode, done.stderr) == (0, ""), target


@pytest.mark.long  # without it no test would begin
def test_torchvision_and_transformers_import_after_dpexp():
    code = (  # whatever of dpexp is imported, the package is first
        "import dpexp.types, torchvision; from transformers import BertModel; "
        "from torchvision.models import resnet18; print(BertModel.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "BertModel"


def test_a_command_line_is_read_without_torch():
    """It takes a second, for which help and completion would wait."""
    code = "import dpexp.cli.run, sys; assert not {'torch', 'torchvision'} & {*sys.modules}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_operators_are_declared_once_however_often_it_is_asked():
    import torchvision

    import dpexp

    assert dpexp._declare_torchvision_ops() is None
    assert torchvision.__version__ and hasattr(torch.ops.torchvision, "nms")


def test_operators_a_matching_torchvision_declares_are_left_alone(programs):
    """Stands in for a CPU build of torchvision: the operators exist before dpexp is imported."""
    code = (
        "import torch; own = torch.library.Library('torchvision', 'DEF'); "
        "own.define('nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor'); "
        "own.define('qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor'); "
        "import dpexp, torchvision; assert dpexp._BEFORE_TORCHVISION.declared is None"
    )
    if torch.backends.cuda.is_built():
        pytest.skip("dpexp declares nothing beside a torch built for CUDA")
    done = programs.run(["-c", code])
    assert done.returncode == 0, done.stderr
