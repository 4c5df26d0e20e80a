"""Lists as CSV. A cell that a spreadsheet would take for a formula is made plain text."""

import csv
import io
from collections.abc import Iterable, Sequence

from starlette.responses import Response


def csv_response(name: str, titles: Sequence[str], rows: Iterable[Sequence[object]]) -> Response:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(titles)
    writer.writerows([plain(value) for value in row] for row in rows)
    return Response(
        text.getvalue(),
        media_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}.csv"'},
    )


def plain(value: object) -> object:
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return "'" + value
    return value
