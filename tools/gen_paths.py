"""Writes docs/paths: for five operations the files that they pass through, in order.

    python tools/gen_paths.py           trace everything and write the pages (about a minute)
    python tools/gen_paths.py send      only this page

A page has one row for each file, at the function where the path enters it first. The explanation of
a row is in tools/path_notes.toml under `file:function` or `file`; without one it is the first
sentence of the docstring of the function, of its class, or of its module (`Owner:` explains
nothing). A row without any fails.
"""

import ast
import re
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import paths

ROOT: Final = Path(__file__).resolve().parent.parent
NOTES: Final = ROOT / "tools" / "path_notes.toml"
PAGES: Final = ROOT / "docs" / "paths"


ABOUT_ROWS: Final = (
    "Written by `tools/gen_paths.py` from a traced run. A row is a file, at the function where the"
    " path enters it first; file names are below [src/tianzhou](../../src/tianzhou)."
)


class Page(NamedTuple):
    """The words of a page."""

    title: str
    about: str
    places: dict[str, str]
    """Headings by place."""


DOCUMENTS: Final = {
    "send": Page(
        "Path of a send",
        "One message, from `Producer.send` of the asyncio client to its `SendResult`, after the"
        " first sends have found the route and opened the connection. The broker flushes"
        " asynchronously and has no replica.",
        {"client": "Client", "broker": "Broker"},
    ),
    "consume": Page(
        "Path of a delivery",
        "One message that is sent, delivered to a `PushConsumer` whose pull waits at the broker,"
        " handled by a listener, and committed. The first rows are those of [a send](send.md).",
        {"client": "Client: producer and consumer", "broker": "Broker"},
    ),
    "micro-batch": Page(
        "Path of a Spark micro-batch",
        "One micro-batch of a stream that reads a topic, after the first batches. Spark runs the"
        " connector in two kinds of Python processes: one plans batches for the driver, the others"
        " run tasks. The broker's part is in [the path of a delivery](consume.md).",
        {"driver": "The process that plans", "task": "The process that runs a task"},
    ),
    "promotion": Page(
        "Path of a promotion",
        "A slave becomes the master: `tianzhou broker promote --switch`, in the process of that"
        " slave. Left out are the steps that a slave also takes while nothing happens, and the way"
        " of the requests through `net` and `wire`.",
        {"slave": "The slave"},
    ),
    "dashboard-page": Page(
        "Path of a dashboard page",
        "The page of topics, from the request of a browser to its HTML.",
        {"broker": "The process of the broker"},
    ),
}


@cache
def docstrings_of(file: str) -> dict[str, str]:
    """First sentences by qualified name; the module's own has the name ''."""
    found: dict[str, str] = {}

    def visit(node: ast.AST, name: str) -> None:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                found[name] = first_sentence(text)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                visit(child, f"{name}.{child.name}".lstrip("."))

    visit(ast.parse((ROOT / "src" / "tianzhou" / file).read_text(encoding="utf-8")), "")
    return found


def first_sentence(text: str) -> str:
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<=[.!?]) (?=[A-Z])|:$", paragraph)[0].rstrip(".:") + "."


def explanation_of(step: str, notes: dict[str, str]) -> str | None:
    file, _, name = step.partition(":")
    if step in notes or file in notes:
        return notes.get(step) or notes[file]
    known = docstrings_of(file)
    for candidate in (name, name.rpartition(".")[0], ""):
        if known.get(candidate, "Owner:").partition(":")[0] != "Owner":
            return known[candidate]
    return None


def tour_of(name: str) -> dict[str, list[str]]:
    """The rows of a page by place. What only one of two runs did is background work."""
    first, second = paths.TRACES[name]().tour, paths.TRACES[name]().tour
    return {
        place: [step for step in steps if step in second.get(place, ())]
        for place, steps in first.items()
        if place in DOCUMENTS[name].places
    }


def page_of(name: str, tour: dict[str, list[str]], notes: dict[str, str]) -> str:
    words = DOCUMENTS[name]
    text = [
        f"# {words.title}\n",
        f"{wrapped(words.about)}\n",
        f"{wrapped(ABOUT_ROWS)}\n",
    ]
    for place, heading in words.places.items():
        text += [f"## {heading}\n", "| step | what happens there |", "| --- | --- |"]
        for step in tour[place]:
            file, _, function = step.partition(":")
            about = explanation_of(step, notes)
            if about is None:
                raise SystemExit(f"{step} has no docstring and no row in {NOTES.name}")
            link = f"[{file}](../../src/tianzhou/{file})"
            text.append(f"| {link} `{function}` | {escaped(about)} |")
        text.append("")
    return "\n".join(text)


def escaped(text: str) -> str:
    return text.replace("|", "\\|")


def wrapped(text: str) -> str:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > 118:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".lstrip()
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    unknown = set(arguments) - DOCUMENTS.keys()
    if unknown:
        print(f"unknown page {sorted(unknown)}; pages: {', '.join(DOCUMENTS)}", file=sys.stderr)
        return 2
    notes: dict[str, str] = tomllib.loads(NOTES.read_text(encoding="utf-8"))
    PAGES.mkdir(exist_ok=True)
    for name in arguments or DOCUMENTS:
        page = PAGES / f"{name}.md"
        page.write_text(page_of(name, tour_of(name), notes), encoding="utf-8")
        print(f"wrote {page.relative_to(ROOT)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
