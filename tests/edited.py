"""Every single edit of a finished record's files, and hashes mended after it."""

import copy
import json

from dpexp import records
from dpexp.privacy.verification.record import verify_record
from dpexp.records.record import contents


def found_in(directory):
    record = records.read(directory)
    return None if record is None else verify_record(record)


def content(directory, name):
    text = (directory / name).read_text()
    return [json.loads(line) for line in text.splitlines()] if "jsonl" in name else json.loads(text)


def write(directory, name, value):
    lines = [json.dumps(line) for line in value] if "jsonl" in name else [json.dumps(value)]
    (directory / name).write_text("\n".join(lines) + "\n")


def mend(directory):
    """Put the hashes of a changed record's files in place of the former ones."""
    result = content(directory, "result.json")
    result["files"] = {name: contents(directory, name) for name in result["files"]}
    write(directory, "result.json", result)


def edits(value, place=()):
    """Return every single change of a plain value: entries lost, and scalars of other sizes."""
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in entries:
        where = (*place, key)
        yield where, None, "lost"
        if isinstance(inner, dict | list):
            yield from edits(inner, where)
        elif isinstance(inner, bool):
            yield where, not inner, "flipped"
        elif isinstance(inner, int | float):
            for other in (inner * 1.5 + 1, inner / 2 - 1e-3, -inner - 1, None, str(inner), True):
                yield where, other, f"{other!r}"
        elif inner is None:
            yield where, 1.0, "1.0"
        else:
            yield where, f"{inner}?", "other words"


def edited(value, where, other, how):
    changed = copy.deepcopy(value)
    *path, last = where
    inner = changed
    for key in path:
        inner = inner[key]
    if how == "lost":
        del inner[last]
    else:
        inner[last] = other
    return changed
