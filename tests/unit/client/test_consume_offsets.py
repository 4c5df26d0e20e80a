"""Offsets of a group: what is saved, what is logged when a commit fails, and the file of broadcast
consumers."""

import asyncio
import logging
from pathlib import Path

import pytest

from tianzhou.client.consume.offsets import FILE_NAME, BrokerOffsets, FileOffsets, OffsetTable
from tianzhou.client.errors import ClientError, UsageError
from tianzhou.wire.queues import MessageQueue

QUEUE = MessageQueue(topic="orders", broker_name="broker-a", queue_id=3)
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


class Brokers:
    """Brokers that fail commits with this cause, while there is one."""

    group = "readers"
    cause = ""

    async def committed(self, queue: MessageQueue) -> int | None:
        return None

    async def commit(self, queue: MessageQueue, offset: int, *, oneway: bool = False) -> None:
        if self.cause:
            raise ClientError(self.cause)


def test_failed_commit_is_logged_once_per_cause_and_when_it_succeeds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    brokers = Brokers()
    offsets = BrokerOffsets(brokers)

    def commit(times: int, cause: str) -> list[str]:
        brokers.cause = cause
        caplog.clear()
        with caplog.at_level(logging.INFO):
            for offset in range(times):
                offsets.put(QUEUE, offset + 1 + len(cause))
                asyncio.run(offsets.save())
        return [f"{record.levelname} {record.getMessage()}" for record in caplog.records]

    (line,) = commit(5, "timed out")
    assert line.startswith("WARNING group readers could not commit offset 10 of queue broker-a:3")
    assert "timed out" in line
    (line,) = commit(5, "the topic is gone")
    assert "the topic is gone" in line
    (line,) = commit(5, "")
    assert line.startswith("INFO group readers resumed committing offsets of queue broker-a:3")
    assert commit(5, "") == []
    assert len(commit(1, "timed out")) == 1, "a new failure after a recovery is logged"


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


def file_offsets(directory: Path, content: bytes | None = None) -> FileOffsets:
    if content is not None:
        path = directory / "client" / "group" / FILE_NAME
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    return FileOffsets(directory, "client", "group")


def test_decode_file_reads_a_java_offset_file(tmp_path: Path) -> None:
    assert file_offsets(tmp_path, JAVA_FILE).table() == {Q0: 12, Q1: 7}


def test_encode_file_writes_the_java_format(tmp_path: Path) -> None:
    offsets = file_offsets(tmp_path)
    offsets.put(Q0, 12)
    asyncio.run(offsets.save())
    path = tmp_path / "client" / "group" / FILE_NAME
    assert path.read_bytes() == b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:12}}'
    offsets.put(Q1, 1 << 40)
    asyncio.run(offsets.save())
    assert file_offsets(tmp_path).table() == {Q0: 12, Q1: 1 << 40}


@pytest.mark.parametrize("wrong", [b"", b"{", b"[]", b'{"offsetTable":{"x":1}}'])
def test_decode_file_rejects_a_damaged_file(tmp_path: Path, wrong: bytes) -> None:
    with pytest.raises(UsageError, match=FILE_NAME):
        file_offsets(tmp_path, wrong)
