"""Tables of a document, as rows by the names of their columns."""

from pathlib import Path

Row = dict[str, str]


def section_of(text: str, title: str) -> str:
    return text.split(f"\n## {title}\n\n")[1].split("\n## ", maxsplit=1)[0]


def tables_of(text: str) -> list[list[Row]]:
    found: list[list[Row]] = []
    for block in text.strip().split("\n\n"):
        if block.startswith("| "):
            head, _, *rows = [
                [cell.strip().strip("`") for cell in line.strip("|").split("|")]
                for line in block.splitlines()
            ]
            found.append([dict(zip(head, row, strict=True)) for row in rows])
    return found


def only_table(text: str, title: str) -> list[Row]:
    (table,) = tables_of(section_of(text, title))
    return table


def placed(rows: list[Row]) -> list[tuple[int, int, str]]:
    """Offset, size and name of each row."""
    return [(int(row["OFFSET"]), int(row["SIZE"]), row["NAME"]) for row in rows]


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")
