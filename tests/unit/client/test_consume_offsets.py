"""Offsets of a group: what is saved, and what is logged when a commit fails."""

import asyncio
import logging

import pytest

from tianzhou.client.consume.offsets import BrokerOffsets
from tianzhou.client.core.offsets import OffsetTable
from tianzhou.client.errors import ClientError
from tianzhou.wire.queues import MessageQueue

QUEUE = MessageQueue(topic="orders", broker_name="broker-a", queue_id=3)
Q0 = MessageQueue(topic="T", broker_name="b", queue_id=0)
Q1 = MessageQueue(topic="T", broker_name="b", queue_id=1)


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
