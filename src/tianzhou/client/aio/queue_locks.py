"""Locks on queues, for ordered consumption: asked of the brokers, renewed, given back.

A broker keeps a lock for 60 seconds after it was asked for. We rely on it for 30 at most, and ask
again every 20, so a consumer that can't reach its broker stops in time.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from tianzhou.client.aio.cluster import Cluster
from tianzhou.client.aio.lane import Lane
from tianzhou.client.errors import ClientError
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.fastjson import encode
from tianzhou.wire.queues import LockBatch, MessageQueue, decode_locked_queues

log: Final = logging.getLogger("tianzhou.client")

RELY_S: Final = 30.0


class QueueLocks:
    """Owner: the event loop."""

    def __init__(self, group: str, cluster: Cluster) -> None:
        self._group = group
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()

    async def lock(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, float]:
        """Those that are ours now, and until when."""
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_broker.setdefault(queue.broker_name, []).append(queue)
        granted = await asyncio.gather(
            *(self._lock_at(broker, wanted) for broker, wanted in by_broker.items())
        )
        return {queue: until for some in granted for queue, until in some.items()}

    async def _lock_at(self, broker: str, wanted: list[MessageQueue]) -> dict[MessageQueue, float]:
        # From before the question: the broker counts from when it gets it, which is later.
        until = self._loop.time() + RELY_S
        try:
            answer = await self._call(RequestCode.LOCK_BATCH_MQ, broker, wanted)
        except ClientError as error:
            log.warning(
                "group %s could not lock %d queues at broker %s: %s; ordered consumption of them "
                "waits for the lock",
                self._group, len(wanted), broker, error,
            )  # fmt: skip
            return {}
        return dict.fromkeys(decode_locked_queues(answer).queues, until)

    async def renew(self, lanes: Iterable[Lane]) -> None:
        """A queue that was not granted again is not served until it is."""
        held = {lane.queue: lane for lane in lanes}
        granted = await self.lock(held)
        for queue, lane in held.items():
            if queue in granted:
                lane.locked_until = granted[queue]
            elif lane.locked_until > self._loop.time():
                log.warning(
                    "group %s lost its lock on queue %s:%d of topic %s; ordered consumption of it "
                    "waits until the broker grants the lock again",
                    self._group, queue.broker_name, queue.queue_id, queue.topic,
                )  # fmt: skip

    async def unlock(self, queue: MessageQueue) -> None:
        """A broker that can't be told lets the lock run out."""
        try:
            await self._call(RequestCode.UNLOCK_BATCH_MQ, queue.broker_name, [queue])
        except ClientError as error:
            log.info(
                "group %s could not unlock queue %s:%d of topic %s: %s; the lock expires by itself",
                self._group, queue.broker_name, queue.queue_id, queue.topic, error,
            )  # fmt: skip

    async def _call(self, code: int, broker: str, queues: list[MessageQueue]) -> bytes:
        body = LockBatch(
            client_id=self._cluster.client_id, consumer_group=self._group, mq_set=tuple(queues)
        )
        address = await self._cluster.broker_address(broker)
        _, answer = await self._cluster.call_ok(address, code, {}, encode(body))
        return answer
