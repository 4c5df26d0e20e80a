"""Templates, with everything escaped, and numbers as people read them."""

import time
from collections.abc import Callable
from importlib.resources import files
from typing import Any, Final
from urllib.parse import quote

import jinja2

from tianzhou.client.core.views import is_job, size_text, span_text
from tianzhou.wire.names import PERM_READ_WRITE

_STATES: Final = {2: "write only", 4: "read only", 6: "read and write", 0: "closed"}


def environment() -> jinja2.Environment:
    made = jinja2.Environment(
        # Now, and not when a page is first looked at: the package may be upgraded before that.
        loader=jinja2.DictLoader(_sources()),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(FILTERS)
    for name in made.list_templates():
        made.get_template(name)  # compiled now, by a thread, and not in the loop by the first page
    return made


def _sources() -> dict[str, str]:
    folder = files("tianzhou.dashboard") / "templates"
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


def count_text(number: float) -> str:
    return f"{number:,.0f}"


def rate_text(rate: float) -> str:
    """Per second."""
    if not rate:
        return "0"
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}" if rate >= 0.1 else f"{rate:.2g}"


def percent_text(part: float) -> str:
    return f"{part:.0%}" if part >= 0.01 or not part else f"{part:.1%}"


def time_text(at_ms: int) -> str:
    """In UTC; the script of the page puts the reader's own time in its place."""
    if at_ms <= 0:
        return "never"
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_ms / 1000))


def exact_text(at_ms: int) -> str:
    """Like `time_text`, with milliseconds: many messages may be stored within a second."""
    if at_ms <= 0:
        return "never"
    day = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at_ms // 1000))
    return f"{day}.{at_ms % 1000:03} UTC"


def perm_text(perm: int) -> str:
    return _STATES.get(perm & PERM_READ_WRITE, str(perm))


def segment(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="")


FILTERS: Final[dict[str, Callable[..., Any]]] = {
    "count": count_text,
    "exact": exact_text,
    "is_job": is_job,
    "timestamp": time_text,
    "percent": percent_text,
    "perm": perm_text,
    "rate": rate_text,
    "seg": segment,
    "size": size_text,
    "span": span_text,
}
