"""A push consumer while it runs: its parts, and how they start and stop."""

import asyncio
import contextlib
from collections.abc import Mapping
from time import monotonic
from typing import Final

from tianzhou.client.consume.acknowledger import Acknowledger
from tianzhou.client.consume.consumer_requests import ConsumerRequests
from tianzhou.client.consume.context import ConsumerContext, wait_until_idle
from tianzhou.client.consume.group_member import GroupMember, check_expressions
from tianzhou.client.consume.iterator import (
    BatchIterator,
    IteratorDelivery,
    MessageIterator,
    OrderlyIteratorDelivery,
)
from tianzhou.client.consume.listener import Listener
from tianzhou.client.consume.orderly import OrderlyWorkers
from tianzhou.client.consume.puller import Puller
from tianzhou.client.consume.ready import Ready
from tianzhou.client.consume.workers import Delivery, TaskWorkers, ThreadWorkers
from tianzhou.client.core.assigned_queue import AssignedQueue
from tianzhou.client.core.received import GROWING
from tianzhou.client.core.subscription import Sql92, retry_topic, subscribe
from tianzhou.client.tracing import ConsumeTrace

_OVERDUE_CHECK_S: Final = 60.0


class RunningConsumer:
    """The parts of a running push consumer; the `AssignmentListener` of its group member.

    Owner: the event loop.
    """

    def __init__(self, context: ConsumerContext, listener: Listener | None) -> None:
        """Without a listener, messages are delivered to iterators."""
        self.context = context
        self._listener = listener
        ready = Ready()
        self.acknowledger = Acknowledger(context, ready)
        self.member = GroupMember(context, self)
        self.iterator_delivery: IteratorDelivery | None = None
        self.delivery: Delivery = self._make_delivery(ready)
        self.acknowledger.offer = self.delivery.offer
        self.puller = Puller(
            context, self.member.assignments, self.delivery.offer, self.acknowledger.rates
        )
        self._requests = ConsumerRequests(self.member, self.puller, self.acknowledger, listener)
        self._iterators: list[MessageIterator | BatchIterator] = []
        self._trace: ConsumeTrace | None = None
        self._is_stopping = False
        self.is_hurried = False
        """Whether `stop` must not wait for the messages of loops."""

    def _make_delivery(self, ready: Ready) -> Delivery:
        context, listener, acknowledger = self.context, self._listener, self.acknowledger
        if listener is not None and context.options.orderly:
            return OrderlyWorkers(context, listener, ready, acknowledger)
        if listener is not None and listener.is_async:
            return TaskWorkers(context, listener, ready, acknowledger)
        if listener is not None:
            return ThreadWorkers(context, listener, ready, acknowledger)
        if context.options.orderly:
            self.iterator_delivery = OrderlyIteratorDelivery(context, ready, acknowledger)
        else:
            self.iterator_delivery = IteratorDelivery(ready, acknowledger)
        return self.iterator_delivery

    async def start(
        self, wanted: Mapping[str, str | Sql92], trace: ConsumeTrace | None = None
    ) -> None:
        """Join the group with these subscriptions. Raises ClientError."""
        context = self.context
        version = context.shared.now_ms()
        topics = dict(wanted)
        if not context.options.broadcasting:
            topics[retry_topic(context.group)] = "*"
        for topic, expression in topics.items():
            self.member.subscriptions[topic] = subscribe(topic, expression, version=version)
        await check_expressions(self.member, topics)
        if trace is not None:
            self._trace = await trace.start()
            if self.iterator_delivery is not None:
                self.iterator_delivery.trace = trace
            elif self._listener is not None:
                self._listener.trace = trace
        self.delivery.start()
        self._requests.start()
        await self.member.join()
        context.tasks.run(self._fail_overdue())

    def subscribe(self, topic: str, expression: str | Sql92) -> None:
        """Add a subscription while running."""
        version = self.context.shared.now_ms()
        self.member.subscribe(subscribe(topic, expression, version=version))
        self.context.tasks.run(self._announce([topic]))

    def unsubscribe(self, topic: str) -> None:
        self.member.subscriptions.pop(topic, None)
        self.context.tasks.run(self._announce([]))

    async def _announce(self, topics: list[str]) -> None:
        """Announce subscriptions that changed while running."""
        await check_expressions(self.member, topics)
        await self.context.shared.heartbeat_now()
        self.member.balance_soon()

    async def stop(self) -> None:
        """Release the queues, leave the group and end all background work."""
        self._is_stopping = True
        try:
            await self.member.leave()
        finally:
            self._requests.stop()
            await self.delivery.stop()
            await self.context.tasks.cancel()
            if self._trace is not None:
                await self._trace.close()
            await self.context.shared.leave(consumer_group=self.context.group)

    # AssignmentListener

    def on_assigned(self, assigned: AssignedQueue) -> None:
        self.puller.start(assigned)

    async def on_revoked(self, assigned: AssignedQueue) -> None:
        self.puller.stop(assigned)
        self.delivery.discard(assigned)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience_s):
                await wait_until_idle(assigned)

    @property
    def _patience_s(self) -> float | None:
        """How long to wait for messages in flight; None: without a limit."""
        options = self.context.options
        if not self._is_stopping:
            return None if options.orderly else options.release_timeout_s
        if self.iterator_delivery is None:
            return options.stop_timeout_s
        return 0 if self.is_hurried else options.release_timeout_s

    def committable(self, assigned: AssignedQueue) -> int:
        return assigned.window.committable

    # Iterating

    def messages(self) -> MessageIterator:
        assert self.iterator_delivery is not None
        auto_ack = self.context.options.auto_ack
        made = MessageIterator(self.iterator_delivery, auto_ack=auto_ack)
        self._iterators.append(made)
        return made

    def batches(self, count_max: int) -> BatchIterator:
        assert self.iterator_delivery is not None
        auto_ack = self.context.options.auto_ack
        made = BatchIterator(self.iterator_delivery, count_max, auto_ack=auto_ack)
        self._iterators.append(made)
        return made

    def leave_loops(self, *, is_done: bool) -> None:
        """Acknowledge the messages delivered last if the loops ended without an exception;
        otherwise do not wait for them."""
        self.is_hurried = not is_done
        for iterator in self._iterators if is_done else ():
            iterator.settle()

    def is_iterating(self, task: "asyncio.Task[object] | None") -> bool:
        """Whether a task runs a loop: a stop from inside the loop must not wait for itself."""
        return any(iterator.task is task for iterator in self._iterators)

    # Messages that take too long

    async def _fail_overdue(self) -> None:
        """Return messages to the broker whose listener exceeds the timeout."""
        limit_s = self.context.options.consume_timeout_s
        while True:
            await asyncio.sleep(min(limit_s / 4, _OVERDUE_CHECK_S))
            before = monotonic() - limit_s
            for part, message in self.delivery.overdue(before):
                self.acknowledger.fail(part.assigned, message, message.verdict or GROWING)
