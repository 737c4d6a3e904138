"""What `make setup` ends with: the first run's own words, and all that it would wait for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpexp.cli.ready import FIRST_RUN

ROOT = Path(__file__).parents[1]


def test_the_first_run_is_the_one_of_the_readme():
    assert " ".join(("run.py", *FIRST_RUN, "results=mine")) in (ROOT / "README.md").read_text()


@pytest.mark.long
def test_a_first_run_finds_all_that_it_keeps_on_a_machine(tmp_path):
    env = os.environ | {"DPEXP_CACHE": str(tmp_path / "cache")}
    python = [sys.executable, "-m"]
    subprocess.run([*python, "dpexp.cli.ready"], cwd=ROOT, env=env, check=True, timeout=300)
    before = sorted((tmp_path / "cache").rglob("*.*"))
    kinds = {each.relative_to(tmp_path / "cache").parts[0] for each in before}
    assert {"kernels", "multipliers", "sound"} <= kinds
    words = [*FIRST_RUN, f"results={tmp_path / 'results'}"]
    subprocess.run([sys.executable, "run.py", *words], cwd=ROOT, env=env, check=True, timeout=300)
    assert sorted((tmp_path / "cache").rglob("*.*")) == before
