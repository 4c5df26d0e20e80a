"""Output of commands: tables for people, JSON for programs, with untrusted text escaped.

Names, bodies and properties come from any client. Characters that control a terminal (escape codes,
line feeds, changes of the text direction) are printed as escapes, and rich's markup is not
interpreted in them. The table library is loaded when the first table is printed.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

CELL_CHARS_MAX: Final = 256
COLUMNS_MIN: Final = 132
PIPE_COLUMNS: Final = 400
"""Without a terminal, nothing is cut or wrapped."""


def plain(text: str, chars_max: int | None = None) -> str:
    """Escape control characters and put the text on one line; mark a cut."""
    cut = text if chars_max is None or len(text) <= chars_max else text[: chars_max - 1] + "…"
    if cut.isprintable():
        return cut
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in cut)


def is_undecoded(text: str) -> bool:
    """Whether text came from bytes that are not UTF-8: Python keeps them as lone surrogates."""
    return any("\ud800" <= char <= "\udfff" for char in text)


def body_text(body: bytes) -> str | None:
    """The body as text, if it is UTF-8."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def body_cell(body: bytes, chars_max: int | None = CELL_CHARS_MAX) -> str:
    """The body on one line, as text or hexadecimal digits."""
    text = body_text(body)
    return plain(text if text is not None else f"0x{body.hex()}", chars_max)


def time_text(time_ms: int) -> str:
    """Local time; empty if unknown."""
    if time_ms <= 0:
        return ""
    try:
        found = datetime.fromtimestamp(time_ms / 1000).astimezone()
    except (ValueError, OverflowError, OSError):
        return str(time_ms)  # a client's clock may be wrong
    return found.isoformat(sep=" ", timespec="milliseconds")


# JSON


def json_text(data: object) -> str:
    """One line. Letters of all languages stay, everything else outside ASCII is escaped."""
    text = json.dumps(data, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else json.dumps(sign)[1:-1] for sign in text)


def echo_json(data: object) -> None:
    click.echo(json_text(data))


# Tables


def console(*, err: bool = False) -> "Console":
    from rich.console import Console

    stream = sys.stderr if err else sys.stdout
    if stream.isatty():
        return Console(stderr=err, highlight=False)
    return Console(stderr=err, width=PIPE_COLUMNS, highlight=False)


def cell(value: object) -> "Text":
    from rich.text import Text

    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, int):
        return Text(f"{value:,}", justify="right")
    if isinstance(value, float):
        return Text(f"{value:,.{2 if 0 < abs(value) < 10 else 1}f}", justify="right")
    return Text(plain("" if value is None else str(value), CELL_CHARS_MAX))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> "Table":
    from rich import box
    from rich.table import Table

    found = Table(
        *columns,
        title=plain(title) or None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for row in rows:
        found.add_row(*map(cell, row))
    return found


def show(view: "RenderableType") -> None:
    """Print once. A table that is wider than the terminal gets up to COLUMNS_MIN columns: the
    terminal wraps its lines, but ids and addresses stay whole and can be copied."""
    from rich.measure import Measurement

    found = console()
    needed = Measurement.get(found, found.options.update(max_width=COLUMNS_MIN), view).maximum
    found.width = max(found.width, needed)
    found.print(view, crop=False)


def listing(
    rows: Sequence[Mapping[str, Any]],
    columns: Mapping[str, str],
    none: str,
    *,
    times: Sequence[str] = (),
) -> "RenderableType":
    """A table of these fields under these titles, or the sentence `none` if it is empty. Fields in
    `times` are milliseconds since 1970."""
    if not rows:
        return sentence(none)
    shown = [
        [time_text(row[name]) if name in times else row[name] for name in columns] for row in rows
    ]
    return table(list(columns.values()), shown)


def sentence(text: str, style: str = "") -> "Text":
    from rich.text import Text

    return Text(plain(text), style)


def verbatim(line: str) -> "Text":
    """A line that only the terminal wraps, so that copied text is whole."""
    from rich.text import Text

    return Text(plain(line), no_wrap=True, overflow="ignore")


def pairs(facts: Mapping[str, object]) -> "Table":
    """Names and values, one pair per line."""
    from rich.table import Table
    from rich.text import Text

    found = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        text = cell(value)
        text.justify = "left"
        found.add_row(Text(plain(name), style="bold"), text)
    return found


def stack(*parts: "RenderableType") -> "RenderableType":
    from rich.console import Group

    return Group(*parts)
