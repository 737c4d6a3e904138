"""Rows of parquet files, read where they lie: no copy, cache or pattern comes in between."""

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
    """Count a file's rows, once it is a parquet file that has the columns.

    Args:
        path: the file.
        columns: what it must have, each once.
        remedy: what to set where it has not.

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


def batches(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, list[pa.Array]]]:
    """Stream a file's columns, some rows at a time.

    Yields:
        The number of the first row in the file, and the columns in the order asked for.

    Raises:
        ConfigError: the file is corrupt, or holds other than the rows it says.
    """
    first = 0
    with _opened(path) as file:
        for batch in file.iter_batches(ROWS_AT_A_TIME, columns=list(columns)):
            yield first, [batch.column(column) for column in columns]
            first += len(batch)
        if first != file.metadata.num_rows:
            raise OSError(f"it holds {first} rows and says {file.metadata.num_rows}")


def texts(values: pa.Array, column: str, path: Path, first: int, remedy: str) -> list[str]:
    """Take a column's texts as they are.

    Args:
        values: some rows of the column.
        column: its name.
        path: the file they are from.
        first: the first row's number in the file.
        remedy: what to set where it holds something else.

    Raises:
        ConfigError: a row holds no text, or bytes that are none; it is named.
    """
    found = []
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
        found.append(value)
    return found


def class_names(path: Path, column: str) -> tuple[str, ...] | None:
    """Return the names a file has for a column's class indices, in their order; None: it has none.

    They lie where the `datasets` library keeps them, in the schema.

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
    except (ValueError, KeyError, TypeError):  # written by something else
        return None


@contextmanager
def _opened(path: Path) -> Iterator[pa.parquet.ParquetFile]:
    """Open a file by itself: given a path, pyarrow reads columns off the names of its folders."""
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
