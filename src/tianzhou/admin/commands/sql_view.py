"""Rows of a result as a table, CSV or JSON."""

import base64
import csv
import json
from datetime import date, datetime
from decimal import Decimal
from typing import Any, TextIO, cast

from pyspark.sql import DataFrame, Row
from rich.console import Console
from rich.table import Table
from rich.text import Text

CELL_WIDTH = 60


def table(found: DataFrame, rows_max: int) -> None:
    rows: list[Any] = found.limit(rows_max + 1).collect()
    shown = Table(box=None, pad_edge=False)
    for name, kind in found.dtypes:
        is_number = kind.startswith(("int", "bigint", "double", "float", "decimal", "smallint"))
        shown.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in rows[:rows_max]:
        shown.add_row(*(Text(_cell(value)) for value in row))
    console = Console()
    console.print(shown)
    more = "; there are more, raise --rows to show them" if len(rows) > rows_max else ""
    console.print(Text(f"{min(len(rows), rows_max):,} rows{more}", style="dim"))


def lines(found: DataFrame, form: str, file: TextIO) -> None:
    """CSV or JSON lines, row by row: a result need not fit into memory."""
    rows: Any = found.toLocalIterator()
    if form == "csv":
        writer = csv.writer(file)
        writer.writerow(found.columns)
        for row in rows:
            writer.writerow([_text(value) for value in row])
        return
    for row in rows:
        file.write(json.dumps(plain(row), ensure_ascii=False) + "\n")


def _cell(value: object) -> str:
    text = _text(value)
    return text if len(text) <= CELL_WIDTH else f"{text[: CELL_WIDTH - 1]}…"


def _text(value: object) -> str:
    found = plain(value)
    if found is None:
        return ""
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def plain(value: Any) -> Any:
    """Convert to JSON types. Bytes become text if they are UTF-8, else base64."""
    if isinstance(value, Row):
        return {name: plain(one) for name, one in value.asDict().items()}
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in cast("list[Any]", value)]
    if isinstance(value, bytes | bytearray):
        return _bytes(bytes(value))
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


def _bytes(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()
