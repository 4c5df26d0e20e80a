"""Where a group begins, what is saved, and the file of broadcast consumers."""

from datetime import UTC, datetime

import pytest

from tianzhou.base.errors import UsageError
from tianzhou.client.core.offsets import (
    Ask,
    OffsetTable,
    StartPosition,
    decode_file,
    encode_file,
    epoch_ms,
    start_rule,
)
from tianzhou.wire.errors import BodyError
from tianzhou.wire.queues import MessageQueue

Q0 = MessageQueue(topic="T", broker_name="b", queue_id=0)
Q1 = MessageQueue(topic="T", broker_name="b", queue_id=1)
JAVA_FILE = b"""{
	"offsetTable":{{
			"brokerName":"b",
			"queueId":0,
			"topic":"T"
		}:12,{
			"brokerName":"b",
			"queueId":1,
			"topic":"T"
		}:7
	}
}"""


@pytest.mark.parametrize(
    ("start", "plain", "retry"),
    [
        (StartPosition.FIRST, Ask.ZERO, Ask.ZERO),
        (StartPosition.LAST, Ask.MAX, Ask.ZERO),
        ("20260131235959", Ask.TIME, Ask.MAX),
        (datetime(2026, 1, 31, tzinfo=UTC), Ask.TIME, Ask.MAX),
    ],
)
def test_start_rule_asks_for_the_position_of_a_new_group(
    start: StartPosition | str | datetime, plain: Ask, retry: Ask
) -> None:
    rule = start_rule(start)
    assert rule.ask_for("T") is plain
    assert rule.ask_for("%RETRY%g") is retry


def test_epoch_ms_accepts_datetimes_java_timestamps_and_numbers() -> None:
    assert epoch_ms(datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)) == 1500
    local = datetime(2026, 1, 31, 23, 59, 59).astimezone()
    assert epoch_ms("20260131235959") == local.timestamp() * 1000
    assert epoch_ms(12) == 12


@pytest.mark.parametrize("wrong", ["2026013123595", "20260231000000", "yesterday", ""])
def test_epoch_ms_rejects_invalid_timestamps(wrong: str) -> None:
    with pytest.raises(UsageError, match="yyyyMMddHHmmss"):
        epoch_ms(wrong)


def test_offset_table_saves_changes_only() -> None:
    table = OffsetTable({Q0: 5})
    table.put(Q0, 5)
    table.put(Q1, 3)
    assert table.changed() == {Q1: 3}
    table.saved({Q1: 3})
    assert table.changed() == {}
    table.put(Q1, 1)  # a reset goes back
    assert table.changed() == {Q1: 1}
    table.remove(Q1)
    assert (table.changed(), table.all(), table.get(Q1)) == ({}, {Q0: 5}, None)
    assert table.of([Q0, Q1]) == {Q0: 5}


def test_decode_file_reads_a_java_offset_file() -> None:
    assert decode_file(JAVA_FILE) == {Q0: 12, Q1: 7}


def test_encode_file_writes_the_java_format() -> None:
    assert encode_file({Q0: 12}) == (
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:12}}'
    )
    assert decode_file(encode_file({Q0: 12, Q1: 1 << 40})) == {Q0: 12, Q1: 1 << 40}


@pytest.mark.parametrize("wrong", [b"", b"{", b"[]", b'{"offsetTable":{"x":1}}'])
def test_decode_file_rejects_a_damaged_file(wrong: bytes) -> None:
    with pytest.raises(BodyError):
        decode_file(wrong)
