"""Columns of any chunk of records equal the records read one by one."""

from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from tianzhou.base.kinds import queue_key
from tianzhou.record import compression, flags
from tianzhou.record.chunk import Entry, build, stamp
from tianzhou.record.message import MessageView, decode_all
from tianzhou.spark.arrow import pa
from tianzhou.spark.columns import Chunk, Entries, to_batch
from tianzhou.spark.schema import STORE, arrow_schema, table_schema

SCHEMA = arrow_schema(STORE, table_schema(STORE, []))
STORE_HOST = bytes([127, 0, 0, 1, 0, 0, 42, 159])
STORE_HOST_V6 = bytes(range(16)) + bytes([0, 0, 42, 159])

# Separators, reserved names, text, and bytes that are not valid text.
PIECES = st.sampled_from(
    [
        b"\x01",
        b"\x02",
        b"TAGS",
        b"KEYS",
        b"UNIQ_KEY",
        b"a",
        b"b c",
        b" ",
        b"\xff",
        "天".encode(),
        b"__CRC32#",
        b"__transactionId__",
        b"TAGS\x01north\x02",
        b"KEYS\x01k1 k2\x02",
        b"",
    ]
)
PROPERTIES = st.lists(PIECES, max_size=12).map(b"".join)


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    body = draw(st.binary(max_size=40))
    kind = draw(
        st.sampled_from([0, 0, flags.COMPRESSED, flags.COMPRESSED | flags.COMPRESSION_ZSTD])
    )
    sys_flag = kind | draw(st.sampled_from([0, flags.TRANSACTION_COMMIT]))
    is_v6 = draw(st.booleans())
    host = bytes(range(16)) + bytes([0, 0, 1, 2]) if is_v6 else bytes([10, 0, 0, 1, 0, 0, 1, 2])
    return Entry(
        queue_key(draw(st.sampled_from(["orders", "t" * 130, "支付"])), draw(st.integers(0, 9))),
        compression.compress(body, sys_flag),
        draw(PROPERTIES),
        sys_flag=sys_flag | (flags.BORN_HOST_V6 if is_v6 else 0),
        born_timestamp=draw(st.integers(0, 2**41)),
        born_host=host,
        reconsume_times=draw(st.integers(0, 16)),
    )


def expected(view: MessageView) -> dict[str, Any]:
    address, port = view.born_host
    is_transaction = view.sys_flag & flags.TRANSACTION_MASK
    return {
        "topic": view.topic,
        "brokerName": "broker-a",
        "queueId": view.queue_id,
        "queueOffset": view.queue_offset,
        "msgId": view.message_id,
        "tags": view.tags,
        "keys": list(view.keys),
        "body": view.body,
        "properties": dict(view.properties),
        "bornTimestamp": view.born_timestamp,
        "storeTimestamp": view.store_timestamp,
        "bornHost": f"[{address}]:{port}" if ":" in address else f"{address}:{port}",
        "reconsumeTimes": view.reconsume_times,
        "sysFlag": view.sys_flag,
        "transactionId": view.properties.get("__transactionId__")
        or (view.unique_id if is_transaction else None),
        "physicalOffset": view.physical_offset,
    }


def found(chunk: Chunk) -> list[dict[str, Any]]:
    batch = to_batch(chunk, SCHEMA, broker_name="broker-a")
    batch.validate(full=True)
    rows: list[dict[str, Any]] = batch.to_pylist()
    for row in rows:
        row["properties"] = dict(row["properties"])
        for name in ("bornTimestamp", "storeTimestamp"):
            row[name] = round(row[name].timestamp() * 1000)
    return rows


@given(st.lists(entries(), min_size=1, max_size=12), st.booleans(), st.booleans())
def test_columns_equal_single_records(messages: list[Entry], v6: bool, crc: bool) -> None:
    made = build(messages, store_host=STORE_HOST_V6 if v6 else STORE_HOST, record_crc=crc)
    stamp(
        made,
        0,
        len(made),
        queue_offsets=range(100, 100 + len(made)),
        physical_offset=4096,
        store_timestamp=1_700_000_000_123,
    )
    chunk = Chunk(made.data, made.starts, len(made.data))
    wanted = [expected(view) for view in decode_all(bytes(made.data))]
    assert found(chunk) == wanted
    some = np.arange(0, len(made), 2)
    assert found(chunk.chosen(some)) == wanted[::2]


@given(st.lists(PROPERTIES, max_size=20))
@example([b"a\x01b", b"\x02c\x01d", b"", b"\x01\x02\x01", b"x\x01\x01y"])
def test_column_entries_equal_those_of_the_reference_reader(strings: list[bytes]) -> None:
    from tianzhou.record import properties

    made = Entries(pa.array(strings, pa.binary()))
    kind = SCHEMA.field("properties").type
    plain = [properties.decode(text) for text in strings]
    for one in plain:
        one.pop("__CRC32#", None)
    assert [dict(row) for row in made.maps(kind).to_pylist()] == plain
    for name in (b"TAGS", b"a", b"KEYS", b"nowhere"):
        wanted = [properties.find(text, name) for text in strings]
        assert made.values(name).to_pylist() == wanted
