"""Prints the structure of this repository in numbers: at the first build, now, and the target.

python tools/house.py               everything; the traced paths take most of a minute
python tools/house.py --no-paths    only what is read from the files
python tools/house.py LIST          where: signatures, classes, importers, store, sockets,
                                    banned, banned-visible
"""

import importlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import structure

ROOT: Final = Path(__file__).resolve().parent.parent


class Row(NamedTuple):
    """One number. `-` means: not measured, or no target."""

    what: str
    first: str
    now: str
    target: str = "-"


LISTS: Final[dict[str, Callable[[], Iterable[object]]]] = {
    "signatures": structure.long_signatures,
    "classes": structure.large_classes,
    "importers": structure.single_importers,
    "store": structure.store_users,
    "sockets": structure.socket_files,
    "banned": structure.banned_everywhere,
    "banned-visible": structure.banned_user_visible,
}


def protocol_literals() -> int:
    """Literals of the protocol outside wire/names.py, as the tidiness test finds them."""
    sys.path.insert(0, str(ROOT / "tests" / "tidy"))
    gate: Any = importlib.import_module("test_protocol_names")
    files = [path for path in gate.FILES if path != gate.HOME]
    return sum(len([*gate.texts_in(path), *gate.numbers_in(path)]) for path in files)


def count(found: Iterable[object]) -> str:
    return str(sum(1 for _ in found))


def read_rows() -> list[Row]:
    single = structure.by_package(structure.single_importers())
    parts = ", ".join(f"{package} {number}" for package, number in single.most_common())
    return [
        Row("modules in src", "535", str(len(structure.modules()))),
        Row("lines in src", "69,600", f"{structure.line_count():,}"),
        Row("functions with > 4 positional parameters", "-", count(LISTS["signatures"]()), "0"),
        Row("classes with > 12 attributes", "-", count(LISTS["classes"]()), "0"),
        Row("modules with a single importer", "72", str(single.total()), "36"),
        Row(f"  {parts}", "", ""),
        Row("modules that take MessageStore", "59", count(structure.store_users())),
        Row("files that open or accept sockets", "9", count(structure.socket_files())),
        Row("protocol literals outside wire/names.py", "-", str(protocol_literals()), "0"),
        Row("`# fmt: skip`", "958", count(structure.formatter_exemptions()), "< 50"),
        Row("banned words, user-visible", "-", count(structure.banned_user_visible()), "0"),
        Row("banned words, everywhere", "-", count(structure.banned_everywhere())),
    ]


def traced_rows() -> list[Row]:
    import paths

    def traced(name: str) -> tuple[str, str]:
        trace = paths.TRACES[name]()
        return str(len(trace.files)), str(trace.moves)

    send, consume, batch, listing = map(traced, ("send", "consume", "micro-batch", "topic-list"))
    return [
        Row("a steady send: files", "40", send[0], "25"),
        Row("a steady send: moves between files", "104", send[1], "60"),
        Row("until consumed and committed: files", "81", consume[0], "50"),
        Row("until consumed and committed: moves", "624", consume[1]),
        Row("a Spark micro-batch, Spark's processes: files", "-", batch[0]),
        Row("`topic list`, process of the command: files", "78", listing[0], "40"),
    ]


def table(rows: list[Row]) -> str:
    lines = [("", "first build", "now", "target"), *rows]
    width = max(len(line[0]) for line in lines)
    return "\n".join(
        f"{what:{width}}  {first:>11}  {now:>7}  {target:>7}".rstrip()
        for what, first, now, target in lines
    )


def main(arguments: list[str]) -> int:
    match arguments:
        case []:
            print(table([*read_rows(), *traced_rows()]))
        case ["--no-paths"]:
            print(table(read_rows()))
        case [name] if name in LISTS:
            print(*LISTS[name](), sep="\n")
        case _:
            print(f"usage: house.py [--no-paths | {' | '.join(LISTS)}]", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
