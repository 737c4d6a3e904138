"""The command that checks certificates: its lines, its exit codes, and that it runs as said."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

import dpexp
from dpexp import records
from dpexp.cli.verify import main
from dpexp.privacy.verification.files import verify_files
from dpexp.records.predictions import packed, unpacked
from dpexp.records.record import contents
from dpexp.types import ConfigError
from tests.edited import mend
from tests.marks import long
from tests.runs import execute

ROOT = Path(__file__).resolve().parents[1]
DIGITS = ["task=digits", "profile=embedded", "model=linear", "device=cpu", "epochs=0.5"]
PRIVATE = ["method=dpsgd", *DIGITS, "eps=4"]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return execute(tmp_path_factory.mktemp("runs"), *PRIVATE)


def copied(directory, tmp_path, name=None):
    return Path(shutil.copytree(directory, tmp_path / (name or directory.name)))


def edit(path, **change):
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


def test_a_run_that_holds_says_what_was_recomputed_and_what_was_not_checked(run_dir, capsys):
    assert main([str(run_dir)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"{run_dir}: pass: epsilon 3.9") and "of 4 by PLD" in out
    checked, rest = out.splitlines()
    assert rest.startswith(f"{run_dir}: not checked: ") and "wall_s" in rest and not err
    assert "weights_sha256" not in rest and "not checked: config.yaml: that the run had" in rest
    assert "accuracy" not in rest and "older record" not in rest
    assert rest.endswith("; what is beside the record: released.jsonl")


def test_what_no_hash_covers_is_named(run_dir, tmp_path, capsys):
    """Else a card that claims another epsilon, or foreign adapters, would seem to have passed."""
    there = copied(run_dir, tmp_path)
    (there / "README.md").write_text("(0.1, 1e-9)-differentially private")
    (there / "adapter").mkdir()
    (there / "adapter" / "adapter_model.safetensors").write_bytes(b"foreign")
    (there / "released.jsonl").unlink()
    assert main([str(there)]) == 0
    assert "; what is beside the record: README.md, adapter\n" in capsys.readouterr().out


def test_the_weights_hash_is_one_in_both_files_and_absent_from_older_certificates(run_dir):
    record = records.read(run_dir)
    stated = record.privacy["weights_sha256"]
    assert stated == record.result["weights_sha256"] and len(stated) == 64
    for change in (
        {"privacy": {**record.privacy, "weights_sha256": "0" * 64}},
        {"result": {**record.result, "weights_sha256": "0" * 64}},
    ):
        files = {"result": record.result, "privacy": record.privacy} | change
        (finding,) = verify_files(record.config, **files).findings
        assert "weights_sha256" in finding
    older = {key: value for key, value in record.privacy.items() if key != "weights_sha256"}
    found = verify_files(record.config, record.result, older)
    assert not found.findings
    assert "privacy.json weights_sha256: missing, as in older records" in found.unchecked


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sampling=shuffle", "eps=4"], "of 4 by PLD (shuffled batches: epsilon is paper-compat"),
        (["noise=false", "eps=null"], "pass: no privacy is claimed (no noise: no privacy)"),
    ],
    ids=["shuffled", "no noise"],
)
def test_what_a_run_does_not_guarantee_is_said(tmp_path, capsys, words, said):
    directory = execute(tmp_path, "method=dpsgd", *DIGITS, *words)
    assert main([str(directory)]) == 0
    assert said in capsys.readouterr().out


def test_each_finding_is_a_line_and_the_exit_code_is_1(run_dir, tmp_path, capsys):
    forged = copied(run_dir, tmp_path)
    edit(forged / "privacy.json", q=0.5, noise_draws=0)
    assert main([str(run_dir), str(forged)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines] == 2 * [str(run_dir)] + 4 * [str(forged)]
    assert lines[2].startswith(f"{forged}: differs: q: expected ")
    assert "noise_draws: expected" in lines[3]
    assert "the stated noise gives" in lines[4]  # at the q that is stated
    assert "privacy.json does not match its hash in result.json" in lines[5]


def test_the_last_lines_epsilon_is_that_of_the_accountant_of_the_noise(run_dir, tmp_path, capsys):
    forged = copied(run_dir, tmp_path)
    by_others = json.loads((forged / "privacy.json").read_text())["epsilon"]["rdp"]
    path = forged / "metrics.jsonl"
    *before, last = path.read_text().splitlines()
    last = json.dumps(json.loads(last) | {"epsilon": by_others})
    path.write_text("\n".join([*before, last, ""]))
    assert main([str(forged)]) == 1
    assert f"ends with epsilon {by_others}; privacy.json states" in capsys.readouterr().out


def test_a_config_that_was_edited_is_not_that_of_its_directory(run_dir, tmp_path, capsys):
    forged = copied(run_dir, tmp_path)
    config = forged / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace("lr: ", "lr: 1"))
    assert config.read_text() != text
    assert main([str(forged)]) == 1
    assert "not of this directory" in capsys.readouterr().out


def test_a_path_that_is_no_finished_run_is_one_line_and_exit_code_2(run_dir, tmp_path, capsys):
    unfinished = copied(run_dir, tmp_path)
    (unfinished / "result.json").unlink()
    for path in (tmp_path / "nowhere", unfinished, tmp_path):
        assert main([str(path), str(run_dir)]) == 2
        out, err = capsys.readouterr()
        assert err.startswith("error: Expected") and err.count("\n") == 1
        assert "pass" in out  # the other one is checked all the same


@pytest.mark.parametrize(
    ("entry", "value", "said"),
    [
        ("epsilon", 3.9, 'expected numbers by accountant, as {"prv": 7.9}; got 3.9'),
        ("epsilon", {"prv": "3.9"}, "expected numbers by accountant"),
        ("deviations", 7, "expected a list of sentences; got 7"),
        ("noise_multiplier", [1], "expected a number; got [1]"),
        ("delta", "1e-4", "expected a number; got '1e-4'"),
        ("releases", {"clip_norm": 1.0}, "expected a list of releases"),
        ("trainable", ["head.weight"], "expected sizes by parameter"),
    ],
    ids=str,
)
def test_a_certificate_in_another_form_is_refused_by_all_who_read_it(
    run_dir, tmp_path, capsys, entry, value, said
):
    """A bare number was "malformed ('float' object is not iterable)", and a trace in `load`."""
    changed = copied(run_dir, tmp_path)
    edit(changed / "privacy.json", **{entry: value})
    assert main([str(changed)]) == 2
    assert f"(privacy.json {entry}: {said}" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=f"Expected a finished run .*privacy.json {entry}: exp"):
        dpexp.load(changed)


def test_a_certificate_that_differs_outweighs_a_path_that_is_no_run(run_dir, tmp_path):
    forged = copied(run_dir, tmp_path)
    edit(forged / "privacy.json", noise_draws=0)
    assert main([str(tmp_path / "nowhere"), str(forged)]) == 1


@pytest.mark.parametrize("how", [["scripts/verify.py"], ["-m", "scripts.verify"]])
def test_it_runs_as_it_says(run_dir, how, programs):
    done = programs.run([*how, str(run_dir)])
    assert done.returncode == 0 and ": pass: epsilon" in done.stdout and not done.stderr


@pytest.mark.parametrize(
    "words",
    [
        long(["method=rgp", "task=digits", "model=wrn10_1"]),
        ["method=bitfit", "task=digits", "model=cnn"],
        long(["method=linear", "task=sentiment", "model=bert_tiny"]),
    ],
    ids=["rgp", "bitfit", "texts"],
)
def test_parameters_are_those_of_the_model_that_the_config_builds(tmp_path, capsys, words):
    """Names swapped, lost or made up, with all hashes mended, are not the model's."""
    directory = execute(tmp_path, *words, "profile=embedded", "device=cpu", "epochs=0.1", "eps=4")
    assert main([str(directory)]) == 0
    assert "that they are the model's names" not in capsys.readouterr().out
    privacy = json.loads((directory / "privacy.json").read_text())
    first = next(iter(privacy["trainable"]))
    changes = [
        {"trainable": privacy["frozen"], "frozen": privacy["trainable"]},
        {"frozen": privacy["frozen"] | {"made.up": 3}},
        {"trainable": {k if k != first else "other": n for k, n in privacy["trainable"].items()}},
        {"trainable": {k: n for k, n in privacy["trainable"].items() if k != first}},
    ]
    for change in changes:
        edit(directory / "privacy.json", **{**privacy, **change})
        result = json.loads((directory / "result.json").read_text())
        files = result["files"] | {"privacy.json": contents(directory, "privacy.json")}
        edit(directory / "result.json", files=files)
        assert main([str(directory)]) == 1
        assert "differs: " in capsys.readouterr().out


def test_a_method_that_is_not_ours_holds_on_trust_and_says_so(run_dir, tmp_path, capsys):
    """As a user's own method leaves it: all numbers in keeping, its path another."""
    config = yaml.safe_load((run_dir / "config.yaml").read_text())
    config["method"]["_target_"] = "mine.methods.DPSGD"
    name = records.run_id(config)
    other = copied(run_dir, tmp_path, name)
    (other / "config.yaml").write_text(yaml.safe_dump(config))
    right = unpacked(other)[1]
    np.savez(other / "predictions.npz", **packed(name, right))
    edit(other / "privacy.json", run=name)
    files = json.loads((other / "result.json").read_text())["files"]
    edit(other / "result.json", run=name, files={f: contents(other, f) for f in files})
    assert main([str(other)]) == 0
    out = capsys.readouterr().out
    assert f"{other}: holds on trust: epsilon 3.9" in out and ": pass" not in out
    assert "taken on trust: method mine.methods.DPSGD is not known here" in out


EVIL = "\x1b]0;owned\x07\x1b[2J\n/elsewhere: pass: epsilon 0.1"


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("privacy.json", {"deviations": [EVIL]}),
        ("privacy.json", {"trainable": {EVIL: 640}}),
        ("result.json", {"metric": EVIL, EVIL: 99.0}),
        ("result.json", {EVIL: 1}),
        ("privacy.json", {EVIL: 1}),
    ],
    ids=["deviations", "trainable", "metric", "an entry", "an entry of privacy.json"],
)
def test_no_word_of_a_record_is_printed_raw(run_dir, tmp_path, capsys, file, change):
    """Neither a terminal's commands nor a line of its own, that would look like this program's."""
    forged = copied(run_dir, tmp_path)
    edit(forged / file, **change)
    mend(forged)
    main([str(forged)])
    out, err = capsys.readouterr()
    assert "owned" in out + err
    for line in (out + err).splitlines():
        assert line.isprintable() and line.startswith(str(forged))
