"""What a command imports before it answers."""

import json
import os
import subprocess
import sys

import pytest

from dpexp.cli import made_data
from tests.programs import ROOT

COMMAND = """
import sys
from dpexp.cli.run import main
sys.argv[0] = "run.py"
try:
    main()
except SystemExit as end:
    print("ended with", end.code)
print("heavy:", *sorted({"torch", "torch._dynamo", "opacus"} & {*sys.modules}))
"""


def environment(tmp_path):
    return {**os.environ, "DPEXP_CACHE": str(tmp_path / "cache")}


def said_by(tmp_path, *words):
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, f"results={tmp_path / 'results'}", *words],
        env=environment(tmp_path), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()[-1], done.stderr


WRONG = {
    "eps=-8": "Expected eps > 0",
}


@pytest.mark.parametrize("word", WRONG)
def test_a_wrong_value_is_refused_without_torch(word, tmp_path):
    heavy, error = said_by(tmp_path, "method=rgp", "task=digits", word)
    assert heavy == "heavy:" and WRONG[word] in error
    assert "starting" not in error


def test_a_run_imports_what_it_needs_and_a_look_up_no_torch(tmp_path, programs):
    def again():  # where nobody looks at what is imported
        command = [str(ROOT / "run.py"), f"results={tmp_path / 'results'}", *words]
        return programs.run(command, env=environment(tmp_path)).stderr

    words = ("method=rgp", "task=digits", "profile=embedded", "epochs=0.1")
    heavy, first = said_by(tmp_path, *words)
    assert heavy == "heavy: torch" and "done: test_accuracy" in first
    again()  # compares the data, and keeps their fingerprint
    heavy, error = said_by(tmp_path, *words)
    assert heavy == "heavy:" and "done before: test_accuracy" in error
    (kept,) = (tmp_path / "cache" / "fingerprints").rglob("*.json")
    kept.write_text('"' + "0" * 64 + '"')
    error = again()
    assert "the data of digits were" in error and "000000000000" in error, "it is compared"


MISTAKES = {
    "all": "profile=embeded",
    "artifact": "table99",
    "attack": "seconds=0",
    "audit": "methods=nothing",
    "bench": "--only=nothing",
    "check_method": "method=nothing",
    "gpu_report": "--minutes=0",
    "lira": "shadows=1",
    "models": "nothing",
    "noise": "nothing=1",
    "readme": "nothing=1",
    "search": "method=nothing",
    "soak": "nothing=1",
    "transcripts": "nothing=1",
    "tune": "table99",
    "verdicts": "nothing=1",
    "verify": "nowhere",
    "wandb_view": "nothing=1",
}
"""What no program of scripts/ takes, by program."""

OTHERS = (
    ("dpexp.cli", "predict nowhere x"),
    ("dpexp.cli", "predict --help"),
)

OF_VALUES = (
    ("scripts.audit", "methods=rgp eps=-1"),
    ("scripts.check_method", "method=rgp eps=-1"),
    ("scripts.lira", "methods=rgp task=digits batch_size=-5"),
    ("scripts.search", "method=rgp task=digits eps=-1"),
)

PROGRAMS = """
import contextlib, io, json, runpy, sys
for name, words in json.loads(sys.argv[1]):
    sys.argv[1:] = words.split()
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            runpy.run_module(name, run_name="__main__")
        except SystemExit as end:
            code = end.code
    heavy = {"torch", "pandas", "matplotlib", "sklearn", "dpexp.attacks.soundness"}
    heavy = sorted((heavy | {"dpexp.training.train"}) & {*sys.modules})
    print(json.dumps([name, words, code, said.getvalue(), heavy]))
"""


def test_help_and_a_mistake_of_every_program_wait_for_nothing_heavy(tmp_path):
    """Torch takes a second or more, and half a second each of the others."""
    programs = {path.stem for path in (ROOT / "scripts").iterdir() if path.stem[0] not in "_."}
    assert {*MISTAKES} == programs
    asked = [(f"scripts.{name}", w) for name in MISTAKES for w in ("--help", MISTAKES[name])]
    asked += [*OTHERS, *OF_VALUES]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS, json.dumps(asked)],
        cwd=ROOT, env=environment(tmp_path), capture_output=True, text=True, check=True,
    )  # fmt: skip
    for line in done.stdout.splitlines():
        name, words, code, said, heavy = json.loads(line)
        is_help = "--help" in words
        assert (code or 0) == (0 if is_help else 2), (name, words, said)
        assert said.startswith("error: ") != is_help, (name, words, said)
        # A value is looked at beside its optimizer, which imports torch, and before a part is made.
        assert {*heavy} <= ({"torch"} if (name, words) in OF_VALUES else set()), (name, words)
    assert len(done.stdout.splitlines()) == len(asked)


def test_only_fingerprints_are_taken_for_one_and_only_of_data_that_no_file_decides(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("DPEXP_CACHE", str(tmp_path))
    digits = {"task": {"_target_": "dpexp.data.digits.digits", "test_size": 360}}
    kept = made_data.kept_for(digits)
    for wrong in (["no fingerprint"], "a" * 63, "A" * 64, 3, None):
        kept.put("digits", wrong)
        assert made_data.fingerprint(kept, "digits") == ""
    kept.put("digits", "a" * 64)
    assert made_data.fingerprint(kept, "digits") == "a" * 64
    for other in (
        {"task": {"_target_": "dpexp.data.images.hub_images", "data_root": "data"}},
        {**digits, "features": {"encoder": "timm/one"}},
        {**digits, "public": {"name": "mnist"}},
    ):
        assert made_data.kept_for(other) is None


READS = """
import importlib, os, sys
from tests.programs import OWN, ROOT
read, own = [], {name: getattr(os, name) for name in ("getcwd", "getenv")}
of_environment = type(os.environ).__getitem__

def noted(what, call):
    def asked(*args):
        for depth in (1, 2):  # `get` stands between
            if sys._getframe(depth).f_code.co_filename.startswith(f"{ROOT}/dpexp/"):
                read.append(f"{what} {args[-1:]}")
        return call(*args)
    return asked

type(os.environ).__getitem__ = noted("environment", of_environment)
for name, call in own.items():
    setattr(os, name, noted(name, call))
for name in OWN:
    importlib.import_module(name)
print(read)
"""


def test_what_tests_import_for_all_programs_reads_nothing_of_a_program(programs):
    """Else each would have the environment and the folder of the process that imported it."""
    done = programs.run(["-c", READS])
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
