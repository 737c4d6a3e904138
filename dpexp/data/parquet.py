"""Read rows of parquet files directly, without copies, caches or path patterns."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from dpexp.types import ConfigError, one_line

ROWS_AT_A_TIME = 1000


def count(path: Path, columns: Sequence[str], remedy: str) -> int:
    """Return the number of rows of a parquet file; check that it has the columns.

    Args:
        path: the file.
        columns: required columns, each once.
        remedy: end of the error message: what to set.

    Raises:
        ConfigError: it is corrupt, lacks a column or has it twice.
    """
    with _opened(path) as file:
        present, rows = file.schema_arrow.names, file.metadata.num_rows
    if any(present.count(column) != 1 for column in columns):
        raise ConfigError(
            f"Expected columns {', '.join(columns)} in {path}, each once; got "
            f"{', '.join(present)}. {remedy}"
        )
    return rows


def schema(path: Path) -> pa.Schema:
    """Return a file's columns with their types; raises ConfigError if it is corrupt."""
    with _opened(path) as file:
        return file.schema_arrow


def batches(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, list[pa.Array]]]:
    """Stream a file's columns in batches of rows.

    Yields:
        The number of the batch's first row in the file, and the columns in the given order.

    Raises:
        ConfigError: the file is corrupt, or its number of rows differs from its metadata.
    """
    first = 0
    with _opened(path) as file:
        for batch in file.iter_batches(ROWS_AT_A_TIME, columns=list(columns)):
            yield first, [batch.column(column) for column in columns]
            first += len(batch)
        if first != file.metadata.num_rows:
            raise OSError(f"it holds {first} rows, its metadata say {file.metadata.num_rows}")


def texts(values: pa.Array, column: str, path: Path, first: int, remedy: str) -> list[str]:
    """Return a column's texts unchanged.

    Args:
        values: rows of the column.
        column: its name.
        path: the file they are from.
        first: the first row's number in the file.
        remedy: end of the error message: what to set.

    Raises:
        ConfigError: a row holds no text, or invalid UTF-8; the message names it.
    """
    strings = []
    for row, scalar in enumerate(values, first):
        try:
            value = scalar.as_py()
        except UnicodeDecodeError:
            value = scalar.as_buffer().to_pybytes()[:20]
        if not isinstance(value, str):
            raise ConfigError(
                f"Expected texts in column {column} of {path}; row {row} holds "
                f"{reprlib.repr(value)}. {remedy}"
            )
        strings.append(value)
    return strings


def class_names(path: Path, column: str) -> tuple[str, ...] | None:
    """Return the class names of a column in the order of their indices; None if it has none.

    They are in the schema's metadata, where the `datasets` library writes them.

    Raises:
        ConfigError: the file is corrupt.
    """
    with _opened(path) as file:
        kept = (file.schema_arrow.metadata or {}).get(b"huggingface")
    try:
        feature = json.loads(kept or "{}")["info"]["features"][column]
        names = feature["names"] if feature["_type"] == "ClassLabel" else None
        if isinstance(names, dict):
            names = [names[key] for key in sorted(names, key=int)]
        return tuple(map(str, names)) if names else None
    except (ValueError, KeyError, TypeError):  # written by another library
        return None


@contextmanager
def _opened(path: Path) -> Iterator[pa.parquet.ParquetFile]:
    """Open a file as a stream: given a path, pyarrow adds columns from the names of its folders."""
    try:
        with (
            path.open("rb") as stream,
            pa.parquet.ParquetFile(stream, page_checksum_verification=True) as file,
        ):
            yield file
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(
            f"Expected a parquet file at {path}; it is corrupt ({one_line(error)}). Fetch it again."
        ) from None
