"""Offsets that a group keeps at its brokers: what is logged when a commit fails."""

import asyncio
import logging

import pytest

from tianzhou.client.consume.offsets import BrokerOffsets
from tianzhou.client.errors import ClientError
from tianzhou.wire.queues import MessageQueue

QUEUE = MessageQueue(topic="orders", broker_name="broker-a", queue_id=3)


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
