"""One directory per run, named by its config's hash."""

from dpexp.records.binding import OF_A_LINE, Binding, bind, is_older
from dpexp.records.diagnostics import DIAGNOSTICS, without_diagnostics
from dpexp.records.files import RecordError, at_home, make_folder, replace_file, write_atomically
from dpexp.records.kinds import wrong_kinds
from dpexp.records.ledger import LEDGER, DiffersError, Ledger, Mark, read_mark
from dpexp.records.lock import Busy, held, is_held
from dpexp.records.moved import MOVED, first_names, present_names
from dpexp.records.predictions import PREDICTIONS
from dpexp.records.provenance import (
    code_sha256,
    describe,
    describe_device,
    git_commit,
    versions,
)
from dpexp.records.record import (
    NONFINITE,
    RESULT_NEUTRAL,
    Record,
    damage,
    find,
    finished,
    is_neutral,
    locate,
    profile_of,
    read,
    run_id,
)
from dpexp.records.run import SCORES, Run
from dpexp.records.safely import arrays_of
from dpexp.records.series import ANALYSIS, NoSeries, picture, series

__all__ = [
    "ANALYSIS",
    "Binding",
    "Busy",
    "DIAGNOSTICS",
    "DiffersError",
    "LEDGER",
    "Ledger",
    "MOVED",
    "Mark",
    "NONFINITE",
    "NoSeries",
    "OF_A_LINE",
    "PREDICTIONS",
    "RESULT_NEUTRAL",
    "is_neutral",
    "Record",
    "RecordError",
    "Run",
    "SCORES",
    "arrays_of",
    "at_home",
    "bind",
    "code_sha256",
    "damage",
    "describe",
    "describe_device",
    "find",
    "finished",
    "first_names",
    "git_commit",
    "held",
    "is_held",
    "is_older",
    "locate",
    "make_folder",
    "picture",
    "profile_of",
    "present_names",
    "read",
    "read_mark",
    "replace_file",
    "run_id",
    "series",
    "versions",
    "without_diagnostics",
    "write_atomically",
    "wrong_kinds",
]
