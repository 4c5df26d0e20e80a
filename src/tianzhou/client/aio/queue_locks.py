"""Locks on queues, for ordered consumption: asked of the brokers, renewed, given back.

A broker keeps a lock for 60 seconds after it was asked for. We rely on it for 30 at most, and ask
again every 20, or every second while a lock is missing. So a consumer that can't reach its broker
stops in time, and goes on soon after the broker is back.
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
        self._silent: set[str] = set()
        """Brokers that did not answer the last time they were asked."""

    async def lock(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, float]:
        """Those that are ours now, and until when."""
        return {queue: until for queue, until in (await self._ask(queues)).items() if until}

    async def renew(self, lanes: Iterable[Lane]) -> bool:
        """Ask again for the locks of these queues. Returns False if some were not granted.

        A queue that its broker refuses is not served until it is granted. One whose broker does
        not answer is served until the lock it has runs out.
        """
        held = {lane.queue: lane for lane in lanes}
        answers = await self._ask(held)
        for queue, lane in held.items():
            until = answers.get(queue, lane.locked_until)
            if not until and lane.locked_until:
                log.warning(
                    "group %s lost its lock on queue %s:%d of topic %s; ordered consumption of it "
                    "waits until the broker grants the lock again",
                    self._group, queue.broker_name, queue.queue_id, queue.topic,
                )  # fmt: skip
            lane.locked_until = until
        return all(answers.get(queue) for queue in held)

    async def _ask(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, float]:
        """Until when each queue is ours, 0 if it is not; those of brokers that answer."""
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_broker.setdefault(queue.broker_name, []).append(queue)
        answers = await asyncio.gather(
            *(self._ask_broker(broker, wanted) for broker, wanted in by_broker.items())
        )
        return {queue: until for some in answers for queue, until in some.items()}

    async def _ask_broker(
        self, broker: str, wanted: list[MessageQueue]
    ) -> dict[MessageQueue, float]:
        # From before the question: the broker counts from when it gets it, which is later.
        until = self._loop.time() + RELY_S
        try:
            answer = await self._call(RequestCode.LOCK_BATCH_MQ, broker, wanted)
        except ClientError as error:
            # The locks are asked for every second until the broker answers; one line is enough.
            if broker not in self._silent:
                self._silent.add(broker)
                log.warning(
                    "group %s could not lock %d queues at broker %s: %s; it asks again until the "
                    "broker answers, and consumes a queue in order only while it has the lock",
                    self._group, len(wanted), broker, error,
                )  # fmt: skip
            return {}
        self._silent.discard(broker)
        granted = set(decode_locked_queues(answer).queues)
        return {queue: until if queue in granted else 0.0 for queue in wanted}

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
