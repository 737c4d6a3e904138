"""One directory per run, named by its config's hash."""

from dpexp.records.diagnostics import DIAGNOSTICS, without_diagnostics
from dpexp.records.files import RecordError, replace_file, write_atomically
from dpexp.records.ledger import LEDGER, Ledger, Mark, read_mark
from dpexp.records.lock import Busy, held, is_held
from dpexp.records.provenance import (
    code_sha256,
    describe,
    describe_device,
    git_commit,
    versions,
)
from dpexp.records.record import RESULT_NEUTRAL, Record, find, locate, read, run_id
from dpexp.records.run import SCORES, Run
from dpexp.records.series import ANALYSIS, NoSeries, picture, series

__all__ = [
    "ANALYSIS",
    "Busy",
    "DIAGNOSTICS",
    "LEDGER",
    "Ledger",
    "Mark",
    "NoSeries",
    "RESULT_NEUTRAL",
    "Record",
    "RecordError",
    "Run",
    "SCORES",
    "code_sha256",
    "describe",
    "describe_device",
    "find",
    "git_commit",
    "held",
    "is_held",
    "locate",
    "picture",
    "read",
    "read_mark",
    "replace_file",
    "run_id",
    "series",
    "versions",
    "without_diagnostics",
    "write_atomically",
]
