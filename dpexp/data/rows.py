"""Read rows of parquet, CSV, TSV and JSONL files, each cell as it stands in the file."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dpexp.data import parquet
from dpexp.types import ConfigError, counted, one_line

DELIMITERS = {".csv": ",", ".tsv": "\t"}
LINES = ".jsonl"
FORMATS = (".parquet", *DELIMITERS, LINES)
"""Endings of the files that are read, in lower case."""

REMEDY = "Set the column's name, or mend the file."


class Row(NamedTuple):
    """Cells of one row.

    Attributes:
        where: file and place, for messages: "line 7 of /data/train.csv".
        cells: of the columns asked for, in their order: texts in CSV and TSV, else plain values;
            None where a parquet or JSONL file says null.
    """

    where: str
    cells: list[Any]


def columns_of(path: Path, delimiter: str | None) -> list[str]:
    """Return a file's columns; of a JSONL file the keys of its first line.

    Raises:
        ConfigError: the file cannot be read as what its ending says.
    """
    kind = path.suffix.lower()
    if kind == ".parquet":
        return parquet.schema(path).names
    if kind == LINES:
        first = next(_lines(path), None)
        return [] if first is None else list(first[1])
    header = next(_cells(path, delimiter), (0, []))[1]
    _check_delimiter(path, header, delimiter)
    return header


def of_first_line(path: Any) -> str:
    """Return what to add of a JSONL file to a refusal of a column that its first line lacks."""
    is_lines = Path(path).suffix.lower() == LINES
    return " They are its first line's keys; write null there for a missing value." * is_lines


def count(path: Path, delimiter: str | None) -> int:
    """Return a file's number of rows, a CSV or TSV file's header not among them.

    Raises:
        ConfigError: the file cannot be read as what its ending says.
    """
    kind = path.suffix.lower()
    if kind == ".parquet":
        return parquet.count(path, [], "")
    if kind == LINES:
        return sum(1 for _ in _lines(path))
    return max(sum(1 for _ in _cells(path, delimiter)) - 1, 0)


def read(path: Path, columns: Sequence[str], delimiter: str | None) -> Iterator[Row]:
    """Yield a file's rows.

    Args:
        path: the file.
        columns: to read.
        delimiter: between a CSV or TSV file's cells; None: a comma in CSV, a tab in TSV.

    Raises:
        ConfigError: the file cannot be read, or lacks a column or has it twice.
    """
    kind = path.suffix.lower()
    if kind == ".parquet":
        parquet.count(path, columns, REMEDY)
        for first, arrays in parquet.batches(path, columns):
            decoded = [_decoded(a, c, path, first) for a, c in zip(arrays, columns, strict=True)]
            for row, cells in enumerate(zip(*decoded, strict=True), first):
                yield Row(f"row {row} of {path}", list(cells))
        return
    if kind == LINES:
        for line, values in _lines(path):
            where = f"line {line} of {path}"
            for column in columns:
                if column not in values:
                    raise ConfigError(
                        f"Expected a key {column} in {where}; it has {_listed(values)}. Write null "
                        "for a missing value, set the column's name, or mend the file."
                    )
            yield Row(where, [values[column] for column in columns])
        return
    lines = _cells(path, delimiter)
    header = next(lines, (0, []))[1]
    _check_delimiter(path, header, delimiter)
    if any(header.count(column) != 1 for column in columns):
        raise ConfigError(
            f"Expected columns {', '.join(columns)} in {path}, each once; got {_listed(header)}. "
            f"{REMEDY}"
        )
    places = [header.index(column) for column in columns]
    for line, held in lines:
        yield Row(f"line {line} of {path}", [held[place] for place in places])


def _decoded(values: Any, column: str, path: Path, first: int) -> list[Any]:
    """Return a parquet column's values as Python's; dictionaries of words are looked up."""
    try:
        return values.to_pylist()
    except (UnicodeDecodeError, ValueError, OverflowError):
        for row, value in enumerate(values, first):
            try:
                value.as_py()
            except (UnicodeDecodeError, ValueError, OverflowError) as error:
                raise ConfigError(
                    f"Expected a value in column {column} of {path} that can be represented; row "
                    f"{row} holds one that cannot ({one_line(error)}). Mend the file."
                ) from None
        raise


def _cells(path: Path, delimiter: str | None) -> Iterator[tuple[int, list[str]]]:
    """Yield a CSV or TSV file's rows, the header first, each with the line that it ends on.

    Blank lines are no rows.
    """
    between = _delimiter(path, delimiter)
    line, width = 0, None
    before = csv.field_size_limit(sys.maxsize // 2**32)  # a text may be longer than 131,072 letters
    try:
        with _readable(path) as stream:
            rows = csv.reader(stream, delimiter=between, strict=True)
            for cells in rows:
                line = rows.line_num
                if not cells:
                    continue
                width = width or len(cells)
                if len(cells) != width:
                    found = counted(len(cells), "cell")
                    raise ValueError(f"line {line} has {found}, the header {width}")
                if between == "\t" and any("\t" in cell or "\n" in cell for cell in cells):
                    raise ConfigError(
                        f"Expected cells without tabs and line breaks at {path}, as it is TSV; the "
                        f"row that ends on line {line} has a quote that is not closed in its line. "
                        "Remove the quote, or save it as CSV."
                    )
                yield line, cells
    except ConfigError:
        raise
    except (ValueError, csv.Error) as error:
        raise ConfigError(
            f"Expected a table in UTF-8, with a header and {_named(between)} between columns, at "
            f"{path}; it cannot be read after line {line} ({one_line(error)}). Save it in this "
            "format, with quotes within a quoted cell doubled, or set task.delimiter."
        ) from None
    finally:
        csv.field_size_limit(before)


def _check_delimiter(path: Path, header: Sequence[str], delimiter: str | None) -> None:
    """Refuse a table of one column whose header holds what other tables have between columns."""
    if delimiter is None and len(header) == 1:
        for other in (";", "\t", "|", ","):
            if other in header[0]:
                between = _named(DELIMITERS[path.suffix.lower()])
                raise ConfigError(
                    f"Expected {between} between columns of {path}; its header has {_named(other)} "
                    f"instead: {header[0][:60]!r}. Set task.delimiter='{_word(other)}'."
                )


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield a JSONL file's objects, each with its line; blank lines are no rows."""
    with _readable(path) as stream:
        number = 0
        try:
            for number, text in enumerate(stream, 1):
                if text.strip():
                    value = json.loads(
                        text,
                        object_pairs_hook=_once,
                        parse_constant=_refused,
                        parse_float=_finite,
                    )
                    if not isinstance(value, dict):
                        raise ValueError(f"it holds {type(value).__name__}")
                    yield number, value
        except UnicodeDecodeError:
            raise  # told of by _readable
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                f"Expected a JSON object a line, in UTF-8, at {path}; line {max(number, 1)} cannot "
                f"be read ({one_line(error)}). Mend the file."
            ) from None


@contextmanager
def _readable(path: Path) -> Iterator[Any]:
    """Open a file of text in UTF-8, with or without a byte-order mark."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            yield stream
    except OSError as error:
        raise ConfigError(
            f"Expected a readable file at {path}; {error.strerror}. Set task.data."
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"Expected text in UTF-8 at {path}; line {_line_of_another_encoding(path)} is in "
            f"another encoding ({error.reason}). Save it in UTF-8."
        ) from None


def _line_of_another_encoding(path: Path) -> int:
    """Return the first line that is not UTF-8; a stream decodes many lines before it gives one."""
    with path.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return number
    raise AssertionError(f"{path} is in UTF-8 by now")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise ValueError(f"it has the key {twice[0]} twice")
    return dict(pairs)


def _refused(word: str) -> Any:
    raise ValueError(f"it holds {word}, which JSON does not know")


def _finite(word: str) -> float:
    if math.isinf(number := float(word)):
        raise ValueError(f"it holds {word[:40]}, which no number of 64 bits holds")
    return number


def _delimiter(path: Path, delimiter: str | None) -> str:
    """Return what is between a file's cells."""
    if delimiter is None:
        return DELIMITERS[path.suffix.lower()]
    character = "\t" if delimiter == _word("\t") else delimiter
    if len(character) != 1 or character in '"\r\n':
        raise ConfigError(
            "Expected task.delimiter to be one character, or tab; got "
            f"{delimiter!r}. Set task.delimiter."
        )
    return character


def _word(delimiter: str) -> str:
    """Return how a delimiter is written on a command line."""
    return "tab" if delimiter == "\t" else delimiter


def _named(delimiter: str) -> str:
    known = {",": "commas", "\t": "tabs", ";": "semicolons"}
    return known.get(delimiter, repr(delimiter))


def _listed(names: Sequence[str] | dict[str, Any]) -> str:
    """Return names in a line of bounded length; a file of another kind has strange ones."""
    text = " ".join(", ".join(map(str, names)).split())
    return (text if len(text) <= 200 else f"{text[:200]}…") or "none"
