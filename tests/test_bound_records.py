"""Records whose files were edited, swapped or lost: found, or among what is said not to be checked.

Two editors. One changes a file and nothing else: the hashes in result.json tell. The other one
mends those hashes too, and is met by what the files say.
"""

import copy
import itertools
import re
import shutil

import numpy as np
import pytest
import yaml

from dpexp import cli, records
from dpexp.cli import parameter_names
from dpexp.privacy.verification.files import verify_files
from dpexp.privacy.verification.record import verify_record
from dpexp.records.binding import OF_LATER
from dpexp.records.predictions import PREDICTIONS, packed, unpacked
from dpexp.records.record import NONFINITE, hash_of
from tests.edited import content, edited, edits, found_in, mend, write
from tests.marks import some_long
from tests.runs import execute

SMALL = ["task=digits", "profile=embedded", "device=cpu", "model=linear", "epochs=0.5", "eps=3"]
PATE = ["method.teachers=8", "method.teacher_steps=2", "method.queries=50", "model=cnn"]
PATE += ["method.student_steps=5", "method.threshold=0.3"]
KINDS = {
    "dpsgd": ["method=dpsgd", *SMALL],
    "gep": ["method=gep", *SMALL, "method.m=20", "method.k=10", "method.groups=all"],
    "pate": [*SMALL, "method=pate", *PATE],
    "no noise": ["method=dpsgd", *SMALL, "noise=false", "eps=null"],
    "another seed": ["method=dpsgd", *SMALL, "seed=1"],
}


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


def is_said(found, file, where):
    """Return whether what is not checked names a place of a file."""
    lists = [words for words in found.unchecked if words.startswith(f"{file} ")]
    key = next(key for key in where if isinstance(key, str))
    if "dimension" in where:
        key = "dimensions"
    if key == "epsilon" and len(where) > 1:
        key = f"epsilon {where[1]}"
    if key == "public":
        key = "fingerprint" if "fingerprint" in where else "nothing"
    return any(re.search(rf"\b{key}\b", words) for words in lists)


@pytest.mark.parametrize("kind", some_long(["dpsgd", "gep", "pate", "no noise"], {"dpsgd", "pate"}))
def test_every_single_change_of_result_or_certificate_is_found_or_said(kind, copy_of):
    """Even where the hashes are mended; only an entry that is said not to be checked may pass."""
    directory = copy_of(kind)
    whole = records.read(directory)
    untouched = verify_record(whole)
    assert untouched.findings == ()
    passed, tried = [], 0
    for file in ("result.json", "privacy.json"):
        before = content(directory, file)
        for where, other, how in edits(before):
            changed = edited(before, where, other, how)
            result, privacy = copy.deepcopy(whole.result), copy.deepcopy(whole.privacy)
            if file == "privacy.json":
                privacy = changed
                result["files"]["privacy.json"] = hash_of(changed)
                write(directory, file, changed)
            else:
                result = changed
            record = records.Record(directory, whole.config, result, privacy, whole.metrics)
            found = verify_record(record)
            tried += 1
            is_told = is_said(found, file, where) or is_said(untouched, file, where)
            if not found.findings and not is_told:
                passed.append((file, where, how))
        write(directory, file, before)
    assert tried > 200
    assert passed == []


@pytest.mark.parametrize("kind", ["dpsgd", "pate"])
def test_every_change_of_the_last_evaluation_is_found(kind, copy_of):
    directory = copy_of(kind)
    before = content(directory, "metrics.jsonl")
    for key in ("step", "epsilon", "test_accuracy"):
        for other in (0, 12.5, None, "90", [90.0], True):
            lines = copy.deepcopy(before)
            lines[-1][key] = other
            write(directory, "metrics.jsonl", lines)
            mend(directory)
            assert found_in(directory).findings, (key, other)
    write(directory, "metrics.jsonl", before[:-1] or [{"step": 1}])
    mend(directory)
    assert found_in(directory).findings


@pytest.mark.parametrize("file", ["privacy.json", "metrics.jsonl", PREDICTIONS])
def test_who_changes_one_file_alone_is_found_whatever_is_changed(file, copy_of):
    directory = copy_of("dpsgd")
    if file == PREDICTIONS:
        name, right = unpacked(directory)
        np.savez(directory / file, **packed(name, {key: v[::-1] for key, v in right.items()}))
    elif file == "metrics.jsonl":
        lines = content(directory, file)
        lines[0]["train_loss"] = 0.1
        write(directory, file, lines)
    else:
        write(directory, file, content(directory, file) | {"frozen": {"stem.weight": 9}})
    assert any(file in finding for finding in found_in(directory).findings)
    (directory / file).unlink()
    found = found_in(directory)
    assert found is None or any(file in finding for finding in found.findings)


def test_accuracy_is_recounted_from_the_predictions(copy_of):
    """One more right than there was, and everything else in keeping with it."""
    directory = copy_of("dpsgd")
    result = content(directory, "result.json")
    name, right = unpacked(directory)
    each = right["test_accuracy"]
    assert 100 * each.mean() == pytest.approx(result["test_accuracy"], rel=1e-12)
    assert len(each) == 360 and name == directory.name
    better = result["test_accuracy"] + 100 / 360
    lines = content(directory, "metrics.jsonl")
    lines[-1]["test_accuracy"] = better
    write(directory, "metrics.jsonl", lines)
    write(directory, "result.json", result | {"test_accuracy": better})
    mend(directory)
    (finding,) = found_in(directory).findings
    assert "counted; got" in finding
    each[np.flatnonzero(~each)[0]] = True
    np.savez(directory / PREDICTIONS, **packed(name, right))
    mend(directory)
    assert found_in(directory).findings == ()


def test_several_test_sets_are_recounted_each_and_their_mean(copy_of):
    directory = copy_of("dpsgd")
    name, right = unpacked(directory)
    right["test_accuracy_mm"] = np.arange(360) < 257
    np.savez(directory / PREDICTIONS, **packed(name, right))
    first, second = (100 * each.mean() for each in right.values())
    more = {"test_accuracy_mm": second, "test_accuracy_mean": (first + second) / 2}
    lines = content(directory, "metrics.jsonl")
    write(directory, "metrics.jsonl", [*lines[:-1], lines[-1] | more])
    result = content(directory, "result.json")
    for wrong in (None, *more):
        change = {} if wrong is None else {wrong: more[wrong] + 1}
        write(directory, "result.json", result | more | change)
        mend(directory)
        findings = found_in(directory).findings
        assert bool(findings) == (wrong is not None)
        assert wrong is None or any(f"{wrong}: " in finding for finding in findings)


@pytest.mark.parametrize("file", ["result.json", "privacy.json", "metrics.jsonl", PREDICTIONS])
@pytest.mark.parametrize("other", ["another seed", "gep", "no noise"])
def test_a_file_of_another_run_is_found_even_where_the_hashes_are_mended(file, other, copy_of):
    directory, foreign = copy_of("dpsgd"), copy_of(other)
    shutil.copy(foreign / file, directory / file)
    if file != "result.json":
        mend(directory)
    assert found_in(directory).findings


def test_an_older_record_is_held_to_its_metrics_and_that_is_said(copy_of):
    directory = copy_of("dpsgd")
    (directory / PREDICTIONS).unlink()
    config = directory / "config.yaml"
    left = yaml.safe_load(config.read_text())
    left = {key: value for key, value in left.items() if key not in OF_LATER["config"]}
    config.write_text(yaml.safe_dump(left))
    for file, kind in FILES.items():
        written = content(directory, file)
        lines = written if isinstance(written, list) else [written]
        lines = [{k: v for k, v in line.items() if k not in OF_LATER[kind]} for line in lines]
        write(directory, file, lines if isinstance(written, list) else lines[0])
    found = found_in(directory)
    assert found.findings == ()
    unchecked = "; ".join(found.unchecked)
    assert "an older record" in unchecked
    assert "compared with metrics.jsonl, not recounted" in unchecked
    write(directory, "result.json", content(directory, "result.json") | {"test_accuracy": 99.0})
    assert any("ends with" in finding for finding in found_in(directory).findings)


FILES = {"result.json": "result", "privacy.json": "privacy", "metrics.jsonl": "line"}


@pytest.mark.parametrize("kept", ["weights", "longest", "weights_sha256", NONFINITE])
def test_a_record_with_an_entry_that_older_ones_never_had_is_not_one(kept, copy_of):
    """Else it would be excused from naming its run, and from its predictions."""
    directory = copy_of("dpsgd")
    (directory / PREDICTIONS).unlink()
    record = records.read(directory)
    parts = [record.config, record.result, record.privacy, *record.metrics]
    names = frozenset().union(*OF_LATER.values()) - {kept}
    parts = [{key: value for key, value in p.items() if key not in names} for p in parts]
    found = verify_record(records.Record(directory, *parts[:3], parts[3:]))
    assert any("belongs to run None" in finding for finding in found.findings)
    assert f"{PREDICTIONS}: missing; the run wrote it" in found.findings
    assert not any("older record:" in words for words in found.unchecked)


def test_no_record_is_without_predictions_as_its_code_writes_them(copy_of):
    directory = copy_of("dpsgd")
    (directory / PREDICTIONS).unlink()
    result = content(directory, "result.json")
    del result["files"][PREDICTIONS]
    write(directory, "result.json", result)
    assert found_in(directory).findings == (f"{PREDICTIONS}: missing; the run wrote it",)


@pytest.mark.parametrize(("kind", "count"), [("dpsgd", 2000), ("dpsgd", 100), ("pate", 181)])
def test_predictions_are_of_as_many_examples_as_the_config_has(kind, count, copy_of):
    directory = copy_of(kind)
    right = {"test_accuracy": np.arange(count) > 0}
    np.savez(directory / PREDICTIONS, **packed(directory.name, right))
    said = {"test_accuracy": 100 * right["test_accuracy"].mean()}
    write(directory, "result.json", content(directory, "result.json") | said)
    *before, last = content(directory, "metrics.jsonl")
    write(directory, "metrics.jsonl", [*before, last | said])
    mend(directory)
    due = {"dpsgd": 360, "pate": 180}[kind]
    (finding, *_) = found_in(directory).findings
    assert f"expected {due} examples of test_accuracy, as config.yaml has; " in finding
    assert finding.endswith(f"it counts {count}")


def test_digits_are_as_many_as_there_are(directories):
    record = records.read(directories["dpsgd"])
    for change, said in (
        ({"dataset_size": 14_370}, "expected 1437, as many as there are; got 14370"),
        ({"dataset_size": 1_400}, "expected 1437, as many as there are; got 1400"),
        ({"test_size": 359}, "expected 1438, as many as there are; got 1437"),
    ):
        config = record.config | {"task": record.config["task"] | change}
        found = verify_files(config, record.result, record.privacy)
        assert f"config.yaml task.dataset_size, N: {said}" in found.findings
    assert not any("N: that" in words for words in verify_record(record).unchecked)


@pytest.mark.parametrize(
    ("place", "change", "said"),
    [
        ("method", {"_target_": "elsewhere.gep.GEP"}, "method elsewhere.gep.GEP is not known"),
        ("method", {"_target_": "dpexp.methods.dpsgd.GEP"}, "dpexp.methods.dpsgd.GEP is not known"),
        ("optimizer", {"_target_": "mine.SGD"}, "optimizer mine.SGD is not of dpexp"),
        (
            "schedule",
            {"_target_": "dpexp.training.schedules.Steered"},
            "schedule dpexp.training.schedules.Steered",
        ),
        ("task", {"_target_": "dpexp.evil.digits"}, "task dpexp.evil.digits is not of dpexp"),
        (None, {"loop": "mine.loop"}, "loop mine.loop is not known"),
    ],
)
def test_what_is_not_ours_is_taken_on_trust_and_never_for_ours(place, change, said, directories):
    record = records.read(directories["dpsgd"])
    assert verify_record(record).trusted == ()
    config = copy.deepcopy(record.config)
    (config if place is None else config[place]).update(change)
    other = records.Record(record.directory, config, record.result, record.privacy, record.metrics)
    assert any(said in words for words in verify_record(other).trusted)


def test_every_part_that_conf_names_is_ours():
    from dpexp.privacy.stated import is_ours, statement_of

    texts = [path.read_text() for path in cli.CONF.rglob("*.yaml")]
    targets = {name for text in texts for name in re.findall(r"_target_: ([\w.]+)", text)}
    ours = {name for name in targets if not name.startswith("hydra")}
    assert len(ours) > 40 and all(map(is_ours, ours))
    of_methods = "".join(path.read_text() for path in (cli.CONF / "method").glob("*.yaml"))
    methods = {*re.findall(r"_target_: (dpexp\.(?:methods|pate)\.[\w.]+)", of_methods)}
    assert len(methods) > 9
    assert all(statement_of({"method": {"_target_": name}}).is_known for name in methods)


def test_a_loop_is_the_methods_own(directories):
    record = records.read(directories["dpsgd"])
    config = record.config | {"loop": "dpexp.pate"}
    other = records.Record(record.directory, config, record.result, record.privacy, record.metrics)
    assert any("loop: " in finding for finding in verify_record(other).findings)


def test_pates_caps_are_those_of_config_and_public_set(copy_of):
    directory = copy_of("pate")
    privacy = content(directory, "privacy.json")
    check, votes = privacy["releases"]
    assert privacy["public"]["examples"] == 180 and (check["at_most"], votes["at_most"]) == (50, 50)
    for release, count in ((check, privacy["steps"]), (votes, privacy["answers"])):
        assert count <= release["at_most"]
        for other in {count, count + 1, 51} - {50}:
            before, release["at_most"] = release["at_most"], other
            write(directory, "privacy.json", privacy)
            mend(directory)
            assert any("at_most: expected 50" in f for f in found_in(directory).findings), other
            release["at_most"] = before


@pytest.mark.parametrize("count", [10**12, 2**62])
def test_absurd_counts_are_a_finding_and_nothing_is_computed(count, copy_of):
    directory = copy_of("pate")
    record = records.read(directory)
    config = copy.deepcopy(record.config)
    config["method"] |= {"queries": count, "answers": count}
    config["task"]["test_size"] = 2 * count
    privacy = copy.deepcopy(record.privacy)
    privacy["public"]["examples"] = count
    for release in privacy["releases"]:
        release["at_most"] = count
    other = records.Record(directory, config, record.result, privacy, record.metrics)
    assert any("too many to be composed" in f for f in verify_record(other).findings)


@pytest.mark.parametrize("part", ["model", "method"])
@pytest.mark.parametrize("place", ["deep", "list", "arguments", "partial"])
def test_nothing_that_a_record_names_is_called(part, place, directories, tmp_path):
    """Checking a record builds its model, and Hydra calls whatever a value names."""
    record, written = records.read(directories["dpsgd"]), tmp_path / "written"
    assert parameter_names.compare(record) == []
    call = {"_target_": "torch.save", "obj": 1, "f": str(written)}
    more = {
        "deep": {"more": {"inner": call}},
        "list": {"more": [1, call]},
        "arguments": {"_args_": [call]},
        "partial": {"_partial_": True, "more": call},
    }[place]
    config = record.config | {part: record.config[part] | more}
    other = records.Record(record.directory, config, record.result, record.privacy, record.metrics)
    assert parameter_names.compare(other) is None
    assert not written.exists()
