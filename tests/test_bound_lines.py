"""Each line of metrics.jsonl and each array of predictions.npz edited, with the hashes mended."""

import itertools
import re
import shutil

import numpy as np
import pytest

from dpexp.records.predictions import PREDICTIONS, packed, unpacked
from tests.edited import content, edited, edits, found_in, mend, write
from tests.marks import some_long
from tests.runs import execute

SMALL = ["task=digits", "profile=embedded", "device=cpu", "model=linear", "epochs=1", "eps=3"]
SMALL += ["eval_every=0.25"]
PATE = ["method.teachers=8", "method.teacher_steps=2", "method.queries=50", "model=cnn"]
PATE += ["method.student_steps=5", "method.threshold=0.3"]
KINDS = {
    "dpsgd": ["method=dpsgd", *SMALL],
    "gep": ["method=gep", *SMALL, "method.m=20", "method.k=10", "method.groups=all"],
    "pate": [*SMALL, "method=pate", *PATE],
    "no noise": ["method=dpsgd", *SMALL, "noise=false", "eps=null"],
    "compressive": ["method=compressive", *SMALL, "method.p=20"],
}
MEASURED = ("step", "epoch", "epsilon", "test_accuracy", "nonfinite_outputs")
"""Entries that are compared with the last line."""


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    return {name: execute(root, *words) for name, words in KINDS.items()}


@pytest.fixture
def copy_of(directories, tmp_path):
    numbers = itertools.count()

    def copied(kind):
        directory = directories[kind]
        return shutil.copytree(directory, tmp_path / str(next(numbers)) / directory.name)

    return copied


@pytest.mark.parametrize(
    "kind", some_long(["dpsgd", "gep", "pate", "no noise", "compressive"], {"dpsgd"})
)
def test_every_single_change_of_the_evaluations_is_found_or_said(kind, copy_of):
    """The same of metrics.jsonl, and lines that are there twice, in another order or too many."""
    directory = copy_of(kind)
    before, whole = content(directory, "metrics.jsonl"), found_in(directory)
    assert whole.findings == () and len(before) > 2
    passed, tried = [], 0
    for where, other, how in edits(before):
        write(directory, "metrics.jsonl", edited(before, where, other, how))
        mend(directory)
        found, tried = found_in(directory), tried + 1
        if not found.findings and not is_told_of_line(whole, where, len(before)):
            passed.append((where, how))
    assert tried > 100 and passed == []
    spoiled = {
        "twice": [before[0], *before],
        "turned": [before[1], before[0], *before[2:]],
        "step 999": [{**before[0], "step": 999}, *before],
        "behind": [*before, {**before[-1], "step": before[-1]["step"] + 1}],
        "between": [before[0], {**before[0], "step": before[0]["step"] + 1}, *before[1:]],
        "more": [*before[:-1], {**before[-1], "other_accuracy": 99.0}],
    }
    for name, lines in spoiled.items():
        write(directory, "metrics.jsonl", lines)
        mend(directory)
        assert found_in(directory).findings, name


def is_told_of_line(found, where, count):
    """Return whether what is not checked names an entry of a line; of the last one's, apart."""
    index, key = where[0], where[-1]
    lists = [words for words in found.unchecked if words.startswith("metrics.jsonl ")]
    if index == count - 1:
        lists = [words for words in lists if "before its last line" not in words]
    return any(re.search(rf"\b{key}\b", words) for words in lists)


def test_what_a_line_is_said_not_to_be_checked_for_is_its_diagnostics(directories):
    """The list is no way out: what can be recomputed is not on it."""
    lists = [w for w in found_in(directories["dpsgd"]).unchecked if w.startswith("metrics.jsonl")]
    assert lists == [
        "metrics.jsonl train_loss, clip_fraction, nonfinite",
        "metrics.jsonl before its last line: test_accuracy, nonfinite_outputs",
    ]
    assert not any(is_told_of_line(found_in(directories["dpsgd"]), (3, k), 4) for k in MEASURED)


def changed_arrays(arrays):
    """Return changes of predictions.npz that are to be found, each with its name."""
    (name,) = [key for key in arrays if key not in ("run",) and not key.endswith(":count")]
    bits, count = np.unpackbits(arrays[name]), int(arrays[f"{name}:count"])
    for place in (0, count // 2, count - 1):
        flipped = bits.copy()
        flipped[place] ^= 1
        yield f"bit {place}", {**arrays, name: np.packbits(flipped)}
    for key in arrays:
        yield f"{key} lost", {other: each for other, each in arrays.items() if other != key}
        yield f"{key} renamed", {f"{k}?" if k == key else k: each for k, each in arrays.items()}
        yield f"{key} as numbers", {**arrays, key: np.ones(3)}
    yield "another run", {**arrays, "run": np.array("0" * 12)}
    for other in (count - 1, count + 1, count + 8, -1, 0):
        yield f"{other} counted", {**arrays, f"{name}:count": np.array(other)}
    yield "another array", {**arrays, "more": np.ones(3)}
    yield "another metric", {**arrays, "more": arrays[name], "more:count": np.array(count)}
    yield "a second axis", {**arrays, name: arrays[name][None]}


@pytest.mark.parametrize("kind", some_long(["dpsgd", "pate"], {"pate"}))
def test_every_single_change_of_the_predictions_is_found_or_said(kind, copy_of):
    directory = copy_of(kind)
    with np.load(directory / PREDICTIONS) as file:
        arrays = dict(file)
    for name, changed in changed_arrays(arrays):
        np.savez(directory / PREDICTIONS, **changed)
        mend(directory)
        assert found_in(directory).findings, name
    run_name, right = arrays["run"], unpacked_of(directory, arrays)
    turned = {key: each[::-1] for key, each in right.items()}
    assert any((turned[key] != right[key]).any() for key in right)
    np.savez(directory / PREDICTIONS, **packed(str(run_name), turned))
    mend(directory)
    found = found_in(directory)
    assert found.findings == ()
    assert f"{PREDICTIONS}: which examples are correct, only how many" in found.unchecked


def unpacked_of(directory, arrays):
    np.savez(directory / PREDICTIONS, **arrays)
    return unpacked(directory)[1]
