"""Queue locks for ordered consumption: acquire, renew and release them at the brokers.

A broker keeps a lock for 60 seconds after the request. The consumer relies on it for at most 30
seconds and renews it every 20, or every second while a lock is missing. A consumer that cannot
reach its broker therefore stops in time, and resumes soon after the broker is back.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from tianzhou.client.aio.assigned_queue import AssignedQueue
from tianzhou.client.aio.shared_client import SharedClient
from tianzhou.client.errors import ClientError
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.fastjson import encode
from tianzhou.wire.queues import LockBatch, MessageQueue, decode_locked_queues

log: Final = logging.getLogger("tianzhou.client")

RELY_S: Final = 30.0


class QueueLocks:
    """Owner: the event loop."""

    def __init__(self, group: str, shared: SharedClient) -> None:
        self._group = group
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self._silent: set[str] = set()
        """Brokers that did not respond to the last request."""

    async def lock(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, float]:
        """Those that are ours now, and until when."""
        return {queue: until for queue, until in (await self._ask(queues)).items() if until}

    async def renew(self, assignments: Iterable[AssignedQueue]) -> bool:
        """Renew the locks of these queues. Returns False if some were not granted.

        A queue whose lock the broker refuses is not consumed until the lock is granted. A queue
        whose broker does not respond is consumed until its current lock expires.
        """
        held = {assigned.queue: assigned for assigned in assignments}
        answers = await self._ask(held)
        for queue, assigned in held.items():
            until = answers.get(queue, assigned.locked_until)
            if not until and assigned.locked_until:
                log.warning(
                    "group %s lost its lock on queue %s:%d of topic %s; ordered consumption of it "
                    "waits until the broker grants the lock again",
                    self._group, queue.broker_name, queue.queue_id, queue.topic,
                )  # fmt: skip
            assigned.locked_until = until
        return all(answers.get(queue) for queue in held)

    async def _ask(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, float]:
        """When the lock of each queue expires, or 0 if it was refused; only for brokers that
        responded."""
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
            # The request is repeated every second until the broker responds; one line is enough.
            if broker not in self._silent:
                self._silent.add(broker)
                log.warning(
                    "group %s could not lock %d queues at broker %s: %s; it retries until the "
                    "broker responds, and consumes a queue only while it holds the lock",
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
            client_id=self._shared.client_id, consumer_group=self._group, mq_set=tuple(queues)
        )
        address = await self._shared.broker_address(broker)
        _, answer = await self._shared.call_ok(address, code, {}, encode(body))
        return answer
