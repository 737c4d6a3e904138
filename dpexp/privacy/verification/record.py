"""Verify a finished run's record: its certificate and its files."""

from __future__ import annotations

from dataclasses import replace

from dpexp.privacy.verification.counts import keeps_predictions
from dpexp.privacy.verification.files import Verification, verify_files
from dpexp.privacy.verification.lines import verify_lines
from dpexp.records import PREDICTIONS, Binding, Record, bind, is_older
from dpexp.records.keeping import KEPT_FILES, WEIGHTS
from dpexp.types import one_line

OF_RESULTS = {
    *("method", "model", "task", "profile", "seed", "eps", "delta", "metric", "steps", "epochs"),
    *("asked", "answered", "run", "files", KEPT_FILES),
}
"""Entries of result.json that are compared, in addition to those of metrics.jsonl."""


def verify_record(record: Record) -> Verification:
    """Recompute a finished run's certificate, and compare its files with each other.

    Never raises: what cannot be read or computed is a finding.
    """
    try:
        bound = bind(record)
    except Exception as error:
        bound = Binding((f"malformed or incomplete: {one_line(error)[:200]}",), (), {})
    parts = record.config, record.result, record.privacy
    is_old = is_older(*parts, record.metrics)
    found = verify_files(*parts, bound.tests, is_old=is_old)
    try:
        of_lines, unread = verify_lines(record, is_certified=not found.findings)
    except Exception as error:
        of_lines, unread = [f"metrics.jsonl: malformed or incomplete: {one_line(error)[:200]}"], []
    lost = []
    if not is_old and not (record.directory / PREDICTIONS).exists():
        if keeps_predictions(record.config, record.result):
            lost.append(f"{PREDICTIONS}: missing; the run wrote it")
    compared = {key for line in record.metrics[-1:] for key in line} | OF_RESULTS
    if (record.directory / WEIGHTS).exists() or "weights_sha256" in record.privacy:
        compared.add("weights_sha256")
    rest = sorted(str(key) for key in record.result.keys() - compared)
    unchecked = [*found.unchecked, *bound.unchecked, *unread]
    unchecked += [f"result.json {', '.join(rest)}"] if rest else []
    findings = tuple(dict.fromkeys((*found.findings, *bound.findings, *lost, *of_lines)))
    return replace(found, findings=findings, unchecked=tuple(unchecked))
