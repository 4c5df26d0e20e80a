"""Trace records, as Java writes them and as we do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianzhou.client.core.trace import (
    ConsumeBegun,
    ConsumeEnded,
    Published,
    Recalled,
    TraceError,
    TraceRecord,
    TransactionEnded,
    decode_trace,
    encode_trace,
    keys_of,
)

PUB = Published(
    timestamp_ms=1_700_000_000_000,
    region_id="DefaultRegion",
    group="makers",
    topic="orders",
    message_id="7F0000010001",
    tags="a",
    keys="k1 k2",
    store_host="10.0.0.1:10911",
    body_length=12,
    cost_ms=3,
    message_type=0,
    offset_id="0A000001",
    is_success=True,
)
PUB_TEXT = (
    "Pub\x011700000000000\x01DefaultRegion\x01makers\x01orders\x017F0000010001\x01a\x01k1 k2\x01"
    "10.0.0.1:10911\x0112\x013\x010\x010A000001\x01true\x02"
)


def test_encode_trace_of_a_publish_equals_java() -> None:
    assert encode_trace([PUB]) == PUB_TEXT.encode()
    assert decode_trace(PUB_TEXT) == [PUB]


def test_encode_trace_of_the_other_kinds_equals_java() -> None:
    text = (
        "SubBefore\x015\x01r\x01readers\x01REQ\x01ID\x012\x01k\x02"
        "SubAfter\x01REQ\x01ID\x017\x01false\x01k\x014\x019\x01readers\x02"
        "EndTransaction\x015\x01r\x01makers\x01t\x01ID\x01a\x01k\x01h:1\x012\x01TX\x01"
        "ROLLBACK_MESSAGE\x01true\x02"
        "Recall\x015\x01r\x01makers\x01t\x01ID\x01true\x02"
    )
    records: list[TraceRecord] = [
        ConsumeBegun(timestamp_ms=5, region_id="r", group="readers", request_id="REQ",
                     message_id="ID", retry_times=2, keys="k"),
        ConsumeEnded(request_id="REQ", message_id="ID", cost_ms=7, is_success=False, keys="k",
                     context_code=4, timestamp_ms=9, group="readers"),
        TransactionEnded(timestamp_ms=5, region_id="r", group="makers", topic="t", message_id="ID",
                         tags="a", keys="k", store_host="h:1", message_type=2,
                         transaction_id="TX", state="ROLLBACK_MESSAGE", from_check=True),
        Recalled(timestamp_ms=5, region_id="r", group="makers", topic="t", message_id="ID"),
    ]  # fmt: skip
    assert decode_trace(text) == records
    assert encode_trace(records) == text.encode()


def test_decode_trace_reads_old_and_foreign_records() -> None:
    short = PUB_TEXT.replace("\x010A000001", "")
    (old,) = decode_trace(short)
    assert isinstance(old, Published)
    assert (old.offset_id, old.is_success, old.message_type) == ("", True, 0)
    (with_host,) = decode_trace(PUB_TEXT.replace("true\x02", "true\x0110.0.0.9\x02"))
    assert with_host == PUB
    (cloud,) = decode_trace("SubAfter\x01REQ\x01ID\x017\x01true\x01null\x010\x02")
    assert cloud == ConsumeEnded(request_id="REQ", message_id="ID", cost_ms=7)
    assert decode_trace("Future\x011\x01x\x02" + PUB_TEXT) == [PUB]
    assert decode_trace(b"") == []


@pytest.mark.parametrize("text", ["Pub\x011\x02", "Pub\x01soon\x01r\x01g\x01t\x01ID\x02"])
def test_decode_trace_rejects_an_invalid_record(text: str) -> None:
    with pytest.raises(TraceError, match="trace record"):
        decode_trace(text)


words = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=20).filter(
    lambda text: text != "null"
)


@given(
    st.lists(
        st.builds(
            Published,
            timestamp_ms=st.integers(0, 1 << 50),
            region_id=words,
            group=words,
            topic=words,
            message_id=words,
            tags=words,
            keys=words,
            store_host=words,
            body_length=st.integers(0, 1 << 22),
            cost_ms=st.integers(0, 10_000),
            message_type=st.integers(0, 4),
            offset_id=words,
            is_success=st.booleans(),
        )
    )
)
def test_trace_round_trip_keeps_records(records: list[TraceRecord]) -> None:
    assert decode_trace(encode_trace(records)) == records


def test_encode_trace_replaces_separators_in_values() -> None:
    (record,) = decode_trace(
        encode_trace([Recalled(timestamp_ms=1, group="g\x02", topic="t\x01t", message_id="ID")])
    )
    assert record == Recalled(timestamp_ms=1, group="g ", topic="t t", message_id="ID")


def test_keys_of_a_trace_are_its_ids_and_keys() -> None:
    recalled = Recalled(timestamp_ms=1, group="g", topic="t", message_id="R1")
    assert keys_of([PUB, recalled]) == {"7F0000010001", "k1", "k2", "R1"}
