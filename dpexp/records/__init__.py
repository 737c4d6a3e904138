"""One directory per run, named by its config's hash."""

from dpexp.records.files import RecordError, replace_file, write_atomically
from dpexp.records.provenance import describe_device, git_commit, versions
from dpexp.records.run import RESULT_NEUTRAL, Record, Run, find, locate, read, run_id

__all__ = [
    "RESULT_NEUTRAL",
    "Record",
    "RecordError",
    "Run",
    "describe_device",
    "find",
    "git_commit",
    "locate",
    "read",
    "replace_file",
    "run_id",
    "versions",
    "write_atomically",
]
