"""Writes docs/api: a page for each public package, with one entry for each public name.

    python tools/gen_api.py            write the pages
    python tools/gen_api.py --check    write nothing; exit 1 if a page is stale

The site fills the entries from docstrings (mkdocstrings). Public names are those of `__all__`; the
parts of `Admin` are public as well. The blocking page leaves out what both clients share.
"""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, get_type_hints

ROOT: Final = Path(__file__).resolve().parent.parent
PAGES: Final = ROOT / "docs" / "api"


class Page(NamedTuple):
    """One page of the reference."""

    title: str
    about: str
    names: list[str]
    """Full names, in order."""


def public_names(package: str) -> list[str]:
    module = importlib.import_module(package)
    return [f"{package}.{name}" for name in module.__all__]


def value_of(name: str) -> object:
    package, _, last = name.rpartition(".")
    return getattr(importlib.import_module(package), last)


def is_shown(name: str) -> bool:
    """Modules among public names have pages of their own."""
    return not hasattr(value_of(name), "__path__") and type(value_of(name)).__name__ != "module"


def admin_parts() -> Iterator[str]:
    """The classes behind `admin.topics`, `admin.groups` and so on."""
    for name, part in get_type_hints(value_of("tianzhou.client.Admin")).items():
        if not name.startswith("_"):
            yield f"{part.__module__}.{part.__qualname__}"


def pages() -> dict[str, Page]:
    asyncio_names = [name for name in public_names("tianzhou.client") if is_shown(name)]
    shared = {id(value_of(name)) for name in asyncio_names}
    blocking = [
        name
        for name in public_names("tianzhou.client.sync")
        if is_shown(name) and id(value_of(name)) not in shared
    ]
    return {
        "client": Page(
            "API: asyncio client",
            "`tianzhou.client`: producers and consumers for asyncio. The guides are"
            " [producers](../client.md) and [consumers](../consumers.md).",
            [name for name in asyncio_names if not name.endswith(".Admin")],
        ),
        "client-sync": Page(
            "API: blocking client",
            "`tianzhou.client.sync`: the same clients for programs without asyncio. Names that"
            " are not listed here are those of [the asyncio client](client.md).",
            blocking,
        ),
        "admin": Page(
            "API: administration",
            "`tianzhou.client.Admin` and its parts. The guide is [administration](../admin.md).",
            ["tianzhou.client.Admin", *admin_parts()],
        ),
        "errors": Page(
            "API: errors",
            "`tianzhou.client.errors`: what clients raise.",
            public_names("tianzhou.client.errors"),
        ),
        "spark": Page(
            "API: Spark",
            "`tianzhou.spark`: sessions and registration. The formats `rocketmq` and"
            " `rocketmq-store` and their options are in [Spark tables](../spark.md).",
            public_names("tianzhou.spark"),
        ),
        "testing": Page(
            "API: test kit",
            "`tianzhou.testing`: a broker inside your tests. The guide is [tests with a"
            " broker](../testing.md).",
            public_names("tianzhou.testing"),
        ),
    }


def text_of(page: Page) -> str:
    entries = "".join(f"\n::: {name}\n" for name in page.names)
    return f"# {page.title}\n\n{page.about}\n\nWritten by `tools/gen_api.py`.\n{entries}"


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print("usage: gen_api.py [--check]", file=sys.stderr)
        return 2
    stale = 0
    PAGES.mkdir(exist_ok=True)
    for name, page in pages().items():
        path, text = PAGES / f"{name}.md", text_of(page)
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale = 1
        if arguments:
            print(f"{path.relative_to(ROOT)} is stale: run tools/gen_api.py", file=sys.stderr)
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    return stale if arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
