"""docs/formats/frame.md says what the code does."""

import struct
from pathlib import Path

from tianzhou.base.limits import FRAME_BYTES_MAX, HEADER_BYTES_MAX
from tianzhou.wire import codec, frame
from tianzhou.wire.codec import Header, encode_json

DOC = (Path(__file__).parents[2] / "docs/formats/frame.md").read_text(encoding="utf-8")

Row = dict[str, str]


def tables(section: str) -> list[list[Row]]:
    """The tables of a section, each row by the names of its columns."""
    text = DOC.split(f"\n## {section}\n\n")[1].split("\n## ")[0]
    found: list[list[Row]] = []
    for block in text.strip().split("\n\n"):
        if block.startswith("| "):
            head, _, *rows = [
                [cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()
            ]
            found.append([dict(zip(head, row, strict=True)) for row in rows])
    return found


def fixed(rows: list[Row]) -> list[tuple[str, int, int]]:
    """The rows whose place does not depend on the content."""
    return [
        (row["NAME"], int(row["OFFSET"]), int(row["SIZE"]))
        for row in rows
        if row["OFFSET"].isdigit() and row["SIZE"].isdigit()
    ]


def test_frame_page_has_the_layout_of_a_frame() -> None:
    (rows,) = tables("Frame")
    assert fixed(rows) == list(frame.FIELDS)
    assert [row["NAME"] for row in rows] == [name for name, _, _ in frame.FIELDS] + [
        "header",
        "body",
    ]
    assert rows[len(frame.FIELDS)]["OFFSET"] == str(frame.PREFIX.size)
    # The bytes are where the table says.
    prefix = frame.frame_prefix(serialise_type=1, header_size=0x010203, body_size=5)
    values = {name: int.from_bytes(prefix[at : at + size], "big") for name, at, size in fixed(rows)}
    assert values == {
        "frame_size": 4 + 0x010203 + 5,
        "serialise_type": 1,
        "header_size": 0x010203,
    }


def test_frame_page_has_the_limits_of_the_code() -> None:
    assert f"frame_size ≤ {FRAME_BYTES_MAX}," in DOC
    assert f"header_size ≤ {HEADER_BYTES_MAX}," in DOC


def test_frame_page_lists_the_json_header_in_order() -> None:
    (rows,) = tables("JSON header")
    written = encode_json(Header(code=1, opaque=1, remark="x"))
    places = [written.index(b'"%s":' % row["KEY"].encode()) for row in rows]
    assert places == sorted(places)
    assert written.count(b'":') == len(rows)


def test_frame_page_has_the_layout_of_the_binary_header() -> None:
    head, entry = tables("Binary header")
    rows = fixed(head)
    at = 0
    for (name, offset, size), (field, code) in zip(rows, codec.BINARY_FIELDS, strict=True):
        assert (name, offset, size) == (field, at, struct.calcsize(">" + code))
        at += size
    assert at == codec.BINARY_HEAD.size
    assert [row["NAME"] for row in head[len(rows) :]] == ["remark", "ext_size", "ext"]
    assert [row["NAME"] for row in entry] == ["key_size", "key", "value_size", "value"]


def test_frame_page_explains_every_row() -> None:
    for section in ("Frame", "JSON header", "Binary header"):
        for rows in tables(section):
            assert all(row["MEANING"] for row in rows)
