"""Run one config from Python: `dpexp.run`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from dpexp import records
from dpexp.cli import errors, folders, validate
from dpexp.cli.composition import compose
from dpexp.cli.execution import execute
from dpexp.cli.lookup import done_before
from dpexp.cli.quoting import readable
from dpexp.types import ConfigError


def run(words: Sequence[str]) -> records.Record:
    """Train a run, or look it up; see `dpexp.run`."""
    split = [part for word in words for part in shlex.split(word)]
    try:
        overrides = readable(folders.taken(split))
        config = compose(overrides)
    except Exception as error:
        line = errors.mistake(error)
        if line is None:
            raise
        raise ConfigError(line) from error
    validate.warn_of_idle(config, overrides)
    done_before(config)  # refuses a run of other data or weights
    record = records.read(execute(config))
    assert record is not None  # `execute` has just written or looked it up
    return record
