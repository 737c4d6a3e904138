"""What every method promises of a run: it goes on exactly, it verifies."""

import pytest

from dpexp import records
from dpexp.cli import folders
from dpexp.privacy.verification.files import verify_files
from tests.contract.cases import ALL_METHODS, FOLDERS, METHODS, case
from tests.marks import few
from tests.runs import (
    assert_same_run,
    execute,
    killed,
    of,
    one_thread,  # noqa: F401 (a fixture)
)

WORDS = ["task=digits", "profile=embedded", "device=cpu", "noise=true", "clip=true", "eps=3"]
WORDS += ["batch_size=60", "epochs=0.25", "eval_every=0.1"]  # six steps


def words_of(method):
    own = folders.searchpath(FOLDERS)
    return [*own, f"method={method}", *WORDS, *case(method).few, *case(method).brief]


# Of each kind of state one: bases, adapters, directions.
# Runs of GEP and of PATE are killed in tests of their own, too.
SHORT = ("rgp", "dp_lora", "dp_zo")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", ALL_METHODS if FOLDERS else few(ALL_METHODS, SHORT))
def test_a_run_verifies_and_one_that_was_killed_ends_as_it_did(method, tmp_path):
    """Weights included: a result holds their hash. So the seed alone decides them, too."""
    words = words_of(method)
    directory = execute(tmp_path / "whole", *words)
    if method in METHODS:
        assert killed(tmp_path / "again", *words, at=4, every=2).exists()
    again = execute(tmp_path / "again", *words)
    whole = of(directory)
    assert whole[1]["weights_sha256"]
    assert_same_run(of(again), whole)
    record = records.read(directory)
    found = verify_files(record.config, record.result, record.privacy)
    assert found.findings == ()
    assert 0.9 * 3 < found.epsilon <= 3  # PATE's noise is calibrated by RDP, which is looser
    record.privacy["releases"][0]["name"] = "other"
    findings = verify_files(record.config, record.result, record.privacy).findings
    assert any("name: expected" in finding for finding in findings)
