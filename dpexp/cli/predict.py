"""Use the model that a run has kept on files, without the data that it was trained on.

    dpexp predict results/own/runs/0123456789ab photos/ another.png
    dpexp predict results/own/runs/0123456789ab reviews.txt
    dpexp predict results/own/runs/0123456789ab - < reviews.txt

FILES are images, or folders of them; for a model of texts, files with a text a line, with a tab
between two texts that belong together, or - for the standard input; for a model of texts or of a
table, parquet, CSV, TSV or JSONL files with the columns that it was trained on. Prints CSV: the
input (a row by file and place), the most probable class or the number, and the class's probability.
CSV and TSV files have between cells what they had in training; task.delimiter=';' names another.
trust=true allows a model that is not dpexp's, which calls code that the folder names.
Exit code: 0; 2 for a user error.
"""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dpexp import records
from dpexp.cli import errors
from dpexp.types import ConfigError

STDIN = "-"
OPTION = "trust"
DELIMITER = "task.delimiter"


def main(words: Sequence[str]) -> int:
    """Print the predictions that the command line asks for; return the exit code."""
    options = [word for word in words if word.startswith((f"{OPTION}=", f"{DELIMITER}="))]
    places = [word for word in words if word not in options]
    if not places or {"-h", "--help"} & {*words}:
        print((__doc__ or "").strip())
        return 0 if places else 2
    try:
        return _predict(places[0], places[1:], options)
    except ConfigError as error:
        return errors.fail(str(error))
    except BrokenPipeError:  # of `dpexp predict ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _predict(run: str, files: Sequence[str], options: Sequence[str]) -> int:
    allowed = {f"{OPTION}=true": True, f"{OPTION}=false": False}
    between = [word.partition("=")[2] for word in options if word.startswith(DELIMITER)]
    trusts = [word for word in options if not word.startswith(DELIMITER)]
    if wrong := [word for word in trusts if word not in allowed]:
        raise ConfigError(f"Expected {OPTION}=true or {OPTION}=false; got {wrong[0]}.")
    if len(between) > 1:
        raise ConfigError(f"Expected one value of {DELIMITER}; got {', '.join(between)[:200]}.")
    if not files:
        raise ConfigError(
            f"Expected FILES after the run {run}; got none. See dpexp predict --help."
        )
    records.finished(Path(run))  # a mistake does not wait for torch
    from dpexp.cli.trained import load

    model = load(run, trust=any(allowed[word] for word in trusts))
    kind = None if model.preprocessing is None else model.preprocessing.kind
    if kind not in READERS:
        raise ConfigError(
            f"Expected a model of {' or '.join(READERS)}; the run {run} has kept how inputs are "
            f"made for {kind or 'none'}. Use dpexp.load from Python, and pass tensors."
        )
    if between and READERS[kind] is _images:
        raise ConfigError(
            f"Expected no {DELIMITER} for a model of images; got {between[0]}. Leave it out."
        )
    delimiter = between[0] if between else model.record.config["task"].get("delimiter")
    names, raw = zip(*READERS[kind](files, model.preprocessing, delimiter), strict=True)
    guesses = model.predict(list(raw))
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("input", "prediction", "probability"))
    for name, guess in zip(names, guesses, strict=True):
        share = "" if guess.probability is None else f"{guess.probability:.4f}"
        writer.writerow((name, "" if guess.label is None else guess.label, share))
    sys.stdout.flush()
    return 0


def _images(files: Sequence[str], _: Any, __: str | None) -> Iterator[tuple[str, Any]]:
    """Yield the paths of images; folders are searched, hidden files are left out."""
    from PIL import Image

    known = {*Image.registered_extensions()}
    for file in files:
        path = Path(file)
        if not path.is_dir():
            yield file, path
            continue
        found = [one for one in sorted(path.rglob("*")) if one.suffix.lower() in known]
        found = [one for one in found if not one.name.startswith(".")]
        if not found:
            raise ConfigError(f"Expected images in the folder {file}; it holds none.")
        yield from ((str(one), one) for one in found)


def _rows(files: Sequence[str], made: Any, delimiter: str | None) -> Iterator[tuple[str, Any]]:
    """Yield the rows of tables, as mappings of columns to cells."""
    from dpexp.data import rows

    for file in files:
        for where, cells in rows.read(_existing(file), made.names, delimiter):
            yield where, dict(zip(made.names, cells, strict=True))


def _texts(files: Sequence[str], made: Any, delimiter: str | None) -> Iterator[tuple[str, Any]]:
    """Yield the texts of tables and the lines of other files; an empty line is an empty text."""
    from dpexp.data import rows

    for file in files:
        if Path(file).suffix.lower() in rows.FORMATS:
            if not made.names:
                raise ConfigError(
                    f"Expected a file with a text a line; the model's columns have no names that "
                    f"{file} could hold. Write the texts into a .txt file."
                )
            for where, cells in rows.read(_existing(file), made.names, delimiter):
                yield where, tuple(cells) if len(cells) > 1 else cells[0]
            continue
        try:
            content = sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()
            # str.splitlines would also break a text at a form feed or a Unicode line separator.
            lines = list(io.StringIO(content.decode("utf-8-sig"), newline=None))
        except OSError as error:
            raise ConfigError(f"Expected a file of texts at {file}; {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"Expected texts in UTF-8 in {file}; {error}.") from error
        if not lines:
            raise ConfigError(f"Expected texts in {file}, one a line; it is empty.")
        for number, line in enumerate(lines, 1):
            parts = line.removesuffix("\n").split("\t")
            yield f"{file}:{number}", parts[0] if len(parts) == 1 else tuple(parts)


def _existing(file: str) -> Path:
    if not Path(file).is_file():
        raise ConfigError(f"Expected a file at {file}; there is none. Set another path.")
    return Path(file)


READERS = {"images": _images, "features": _images, "texts": _texts, "table": _rows}
