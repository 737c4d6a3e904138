"""Recompute finished runs' privacy certificates from their configs, by another accountant.

Also checks a record's other files: accuracy must match the predictions and the last evaluation.

    python scripts/verify.py results/embedded/runs/85ecd41b59aa
    python -m scripts.verify results/quick/runs/*
    python -m scripts.verify --config-dir mine/conf results/mine/runs/*

The last line names a config folder of one's own (docs/extend.md). The methods in its folder
`method` are imported, as are those in conf/method, so that their statements are known. A method
that only a record names is not imported.

Each finding prints a line. A run without findings prints what was recomputed, or that no privacy is
claimed; each part that is not dpexp's own and is taken on trust; and what was not checked. What is
compared, and how closely: `dpexp.privacy.verification.files`, docs/privacy/checks.md.
Exit code: 0 if every certificate holds; 1 if one does not; else 2 if a path is not a finished run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from dpexp import records
from dpexp.cli import folders, own_methods, parameter_names
from dpexp.privacy.certificate import without_held_out
from dpexp.privacy.stated import class_of, statement_of
from dpexp.privacy.verification.files import NAMES
from dpexp.privacy.verification.record import verify_record
from dpexp.records.keeping import KEPT_FILES, WEIGHTS
from dpexp.records.rounded import at_most
from dpexp.reporting.text import clean
from dpexp.training.progress import folded
from dpexp.types import ConfigError, setting_at

SCRIPTS = "python -m scripts.verify", "python scripts/verify.py"

LONGEST_LINE = 4000
"""Most characters of a printed line; a record may list many entries (ours)."""

HOLDS, DIFFERS, NO_RUN = 0, 1, 2

READ = ("config.yaml", "result.json", "privacy.json", "metrics.jsonl", WEIGHTS)
"""Files of a run that are compared with each other."""


def verify(directory: Path) -> tuple[int, list[str]]:
    """Check one run's directory; return its exit code and its lines."""
    if not os.path.isdir(directory):
        return NO_RUN, [f"Expected a run's directory; there is none at {directory}."]
    record = records.read(directory)
    if record is None:
        why = records.damage(directory)
        return NO_RUN, [
            "Expected a finished run: whole config.yaml, result.json, privacy.json and "
            f"metrics.jsonl; {directory} does not hold them{f' ({why})' if why else ''}."
        ]
    found = verify_record(record)
    parameters = parameter_names.compare(record) if not found.findings else None
    findings = [*found.findings, *(parameters or [])]
    name = records.run_id(record.config)
    if directory.resolve().name != name:
        findings.append(
            f"config.yaml is that of run {name}, not of this directory; a folder that was renamed "
            f"is to be called {name} again"
        )
    hint = _of_unknown_method(record)
    if findings:
        return DIFFERS, [*(f"differs: {finding}" for finding in findings), *hint]
    lines = [_passed(record, found.epsilon, bool(found.trusted))]
    lines += [*(f"taken on trust: {words}" for words in found.trusted), *hint]
    unchecked = [w for w in found.unchecked if w != NAMES or parameters is None]
    if beside := _beside(directory, record):
        unchecked.append(f"what is beside the record: {', '.join(beside)}")
    return HOLDS, [*lines, f"not checked: {'; '.join(unchecked)}"]


def _beside(directory: Path, record: records.Record) -> list[str]:
    """Return the names of a run's files that no hash of the record covers, in order."""
    covered = {*READ, *record.result.get("files", {}), *record.result.get(KEPT_FILES, {})}
    paths = (path for path in directory.rglob("*") if path.is_file() or path.is_symlink())
    names = (path.relative_to(directory) for path in paths)
    return sorted({clean(name.parts[0]) for name in names if name.as_posix() not in covered})


def _of_unknown_method(record: records.Record) -> list[str]:
    """Return what to set or to write where a method's own statement of its releases is missing."""
    target = setting_at(record.config, "method._target_")
    if not isinstance(target, str) or statement_of(record.config).is_known:
        return []
    if (found := class_of(target)) is not None:
        inherits = any("stated_releases" in vars(parent) for parent in found.__mro__[1:])
        return [
            f"note: {target} states no releases{' itself, and inherits none' if inherits else ''}, "
            "so that they are taken on trust. Write what a step releases, from the paper, into the "
            "class: a static method stated_releases(config, size) that returns "
            '[Stated("gradient", config["privacy"]["clip_norm"])], or one Stated (dpexp.privacy.'
            "stated) for each release. docs/extend.md has an example."
        ]
    return [
        f"note: {target} is not known here, so what it states of its releases was not read. Add "
        "--config-dir FOLDER, the folder of config groups that holds its method file."
    ]


def require(directory: Path) -> records.Record:
    """Read a finished run and verify it.

    Raises:
        RecordError: if it is not finished, or fails verification; one line, the first finding.
    """
    record = records.read(directory)
    if record is None:
        why = records.damage(directory) or "it holds no finished run"
        raise records.RecordError(
            f"Expected a finished run in {directory}; {clean(why)}. Set results."
        )
    if findings := verify_record(record).findings:
        raise records.RecordError(
            f"Expected the record {directory} to hold; {clean(findings[0])}. Set results to "
            "another one."
        )
    return record


def _passed(record: records.Record, epsilon: float | None, is_trusting: bool) -> str:
    deviations = "; ".join(record.privacy["deviations"])
    if epsilon is None:
        return f"pass: no privacy is claimed ({deviations})"
    target = record.privacy["target_epsilon"]
    word, of = "holds on trust" if is_trusting else "pass", without_held_out(record.privacy)
    return f"{word}: epsilon {at_most(epsilon)} of {target:g} by PLD{of}" + (
        f" ({deviations})" if deviations else ""
    )


def main(words: Sequence[str], called: str = "") -> int:
    """Check the runs that the command line names; return the exit code.

    Args:
        words: of the command line.
        called: the program's name in its help; "" keeps the scripts' names.
    """
    try:
        words = folders.taken(words)
        runs = [word for word in words if not folders.is_searchpath(word)]
        if not runs or {"-h", "--help"} & set(words):
            doc = __doc__ or ""
            for name in SCRIPTS if called else ():
                doc = doc.replace(name, called)
            print(doc)
            return 0 if runs else NO_RUN
        own_methods.admit_methods(words)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return NO_RUN
    codes = []
    for word in runs:
        code, lines = verify(Path(word))
        codes.append(code)
        for line in (clean(text, LONGEST_LINE) for text in lines):
            if code == NO_RUN:
                print(f"error: {line}", file=sys.stderr)
            else:
                print(folded(f"{word}: {line}", sys.stdout))
    return DIFFERS if DIFFERS in codes else max(codes)
