"""docs/formats/record.md says what the code does."""

import struct
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from tianzhou.base import limits
from tianzhou.record import batch, compression, flags, ids, layout

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs/formats/record.md").read_text(encoding="utf-8")

Row = dict[str, str]


def tables(section: str) -> Iterator[list[Row]]:
    """The tables of a section, each row by the names of its columns."""
    text = DOC.split(f"\n## {section}\n\n")[1].split("\n## ")[0]
    for table in text.strip().split("\n\n"):
        if table.startswith("| "):
            head, _, *rows = [
                [cell.strip().strip("`") for cell in line.strip("|").split("|")]
                for line in table.splitlines()
            ]
            yield [dict(zip(head, row, strict=True)) for row in rows]


def only_table(section: str) -> list[Row]:
    (table,) = tables(section)
    return table


def placed(fields: tuple[tuple[str, str], ...]) -> list[tuple[int, int, str]]:
    """Offset, size and name of each field."""
    rows: list[tuple[int, int, str]] = []
    at = 0
    for name, code in fields:
        size = struct.calcsize(">" + code)
        rows.append((at, size, name))
        at += size
    return rows


def described(section: str) -> list[tuple[int, int, str]]:
    return [(int(row["OFFSET"]), int(row["SIZE"]), row["NAME"]) for row in only_table(section)]


def constants(module: ModuleType, prefix: str = "") -> dict[str, int]:
    return {
        name: value
        for name, value in vars(module).items()
        if name.isupper() and name.startswith(prefix) and isinstance(value, int)
    }


def values(section: str) -> dict[str, int]:
    return {row["NAME"]: int(row["VALUE"], 16) for row in only_table(section)}


def test_record_page_explains_every_row() -> None:
    for section in DOC.split("\n## ")[1:]:
        for table in tables(section.partition("\n")[0]):
            assert all(row["MEANING"] for row in table)


def test_record_page_has_the_layout_of_the_fixed_part() -> None:
    assert described("Fixed part") == placed(layout.FIELDS)
    assert f"at offset {layout.HEAD.size} with IPv4 hosts" in DOC


def test_record_page_has_the_layout_of_the_variable_part() -> None:
    sizes = {row["NAME"]: row["SIZE"] for row in only_table("Variable part")}
    assert list(sizes) == ["body", "topic_size", "topic", "properties_size", "properties"]
    assert int(sizes["properties_size"]) == layout.INT16.size
    assert f"The smallest record has {layout.RECORD_BYTES_MIN} bytes" in DOC
    assert f"at most {limits.PROPERTIES_BYTES_MAX:,}" in DOC
    assert f"a topic has at most {limits.TOPIC_BYTES_MAX}" in DOC


def test_record_page_has_the_magic_numbers() -> None:
    unsigned = {
        name: value & 0xFFFFFFFF for name, value in constants(layout, prefix="MAGIC_").items()
    }
    assert values("Magic numbers") == unsigned


def test_record_page_has_the_bits_of_the_system_flag() -> None:
    assert values("System flag") == constants(flags)
    assert f"at most {compression.EXPANDED_BYTES_MAX >> 20} MiB" in DOC


def test_record_page_describes_the_checksum_property() -> None:
    assert f"`{layout.CRC_PROPERTY.decode()}`" in DOC
    assert f"{layout.CRC_PROPERTY_BYTES} bytes in all" in DOC


def test_record_page_has_the_layout_of_a_batch_body() -> None:
    assert described("Batch body") == placed(batch.FIELDS)
    assert f"more than {limits.BATCH_MESSAGES_MAX:,}" in DOC


def test_record_page_has_the_layout_of_ids() -> None:
    offset_id, unique_id = tables("Ids")
    hosts = f"{layout.HOST_BYTES_V4} or {layout.HOST_BYTES_V6}"
    assert [(row["SIZE"], row["NAME"]) for row in offset_id] == [
        (hosts, "store_host"),
        (str(layout.INT64.size), "physical_offset"),
    ]
    assert tuple(row["NAME"] for row in unique_id) == ids.UniqueIdParts._fields
    tail = [int(row["SIZE"]) for row in unique_id[1:]]
    assert tail == [struct.calcsize(code) for code in ids.UNIQUE_TAIL.format.lstrip(">")]
