"""Consumers of a group while they run: their parts, and how these start and stop."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Final, Protocol

from tianzhou.base.errors import UsageError
from tianzhou.client.consume.consumer_requests import ConsumerRequests
from tianzhou.client.consume.context import ConsumerContext, wait_until_idle
from tianzhou.client.consume.deliveries import Acknowledger, PollDelivery, Ready
from tianzhou.client.consume.group_member import GroupMember, check_expressions
from tianzhou.client.consume.iterator import (
    BatchIterator,
    IteratorDelivery,
    MessageIterator,
    OrderlyIteratorDelivery,
)
from tianzhou.client.consume.listener import Listener, TaskWorkers
from tianzhou.client.consume.listener_threads import ThreadWorkers
from tianzhou.client.consume.orderly import OrderlyWorkers
from tianzhou.client.consume.puller import Puller
from tianzhou.client.core.assigned_queue import AssignedQueue, committable
from tianzhou.client.core.received import GROWING, PulledRecords
from tianzhou.client.core.subscription import Sql92, retry_topic, subscribe
from tianzhou.client.hooks import ConsumeHooks, ConsumeObserver
from tianzhou.client.tracing import ConsumeTrace
from tianzhou.wire.queues import MessageQueue

_OVERDUE_CHECK_S: Final = 60.0


class Delivery(Protocol):
    """How messages get to the user."""

    def start(self) -> None: ...
    def offer(self, pulled: PulledRecords) -> None: ...
    def discard(self, assigned: AssignedQueue) -> None:
        """Drop messages of this queue that are not started."""
        ...

    async def stop(self) -> None: ...


class RunningConsumer:
    """The parts of every consumer in a group; the `AssignmentListener` of its member.

    Owner: the event loop.
    """

    def __init__(
        self,
        context: ConsumerContext,
        delivery: Delivery,
        acknowledger: Acknowledger,
        *,
        listener: Listener | None = None,
        committable: Callable[[AssignedQueue], int | None] = committable,
        lite: bool = False,
    ) -> None:
        """`committable` returns the offset to commit for a queue; by default the one below which
        all messages are done. `lite` is for lite pull consumers, which poll."""
        self.context = context
        self.delivery = delivery
        self.acknowledger = acknowledger
        self.committable = committable
        acknowledger.offer = delivery.offer
        self.member = GroupMember(context, self, lite=lite)
        self.puller = Puller(
            context,
            self.member.assignments,
            delivery.offer,
            acknowledger.rates,
            committable=committable,
        )
        self._requests = ConsumerRequests(self.member, self.puller, acknowledger, listener)

    async def start(self, wanted: Mapping[str, str | Sql92]) -> None:
        """Join the group with these subscriptions, if there are any. Raises ClientError."""
        if isinstance(self.delivery, PollDelivery):
            self.delivery.observer = consume_observer(self.context)
        await self.declare(wanted)
        await self._join()

    async def declare(self, wanted: Mapping[str, str | Sql92]) -> None:
        """Set these subscriptions, and let a broker check them. Raises ClientError."""
        version, full = self.context.shared.now_ms(), self.context.names.full
        for topic, expression in wanted.items():
            made = subscribe(full(topic), expression, version=version)
            self.member.subscriptions[made.topic] = made
        await check_expressions(self.member, map(full, wanted))

    async def _join(self) -> None:
        self.delivery.start()
        if self.member.subscriptions:
            self._requests.start()
            await self.member.join()

    async def stop(self) -> None:
        """Release the queues, leave the group and end all background work."""
        try:
            await self.member.leave()
        finally:
            self._requests.stop()
            await self.delivery.stop()
            await self.context.tasks.cancel()
            await self.context.leave()

    # What users see

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues of a topic from a fresh route. Raises TopicNotFound."""
        names = self.context.names
        return names.plain_queues(
            (await self.context.shared.refresh(names.full(topic))).read_queues
        )

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        return frozenset(self.context.names.plain_queues(self.member.assignments.queues))

    # AssignmentListener

    def on_assigned(self, assigned: AssignedQueue) -> None:
        self.puller.start(assigned)

    async def on_revoked(self, assigned: AssignedQueue) -> None:
        self.puller.stop(assigned)
        self.delivery.discard(assigned)


class RunningPushConsumer(RunningConsumer):
    """A push consumer while it runs.

    Owner: the event loop.
    """

    def __init__(self, context: ConsumerContext, listener: Listener | None) -> None:
        """Without a listener, messages are delivered to iterators."""
        ready = Ready()
        acknowledger = Acknowledger(context, ready)
        delivery = (
            _to_iterators(context, ready, acknowledger)
            if listener is None
            else _to_listener(context, listener, ready, acknowledger)
        )
        super().__init__(context, delivery, acknowledger, listener=listener)
        self._listener = listener
        self._iterators: list[MessageIterator | BatchIterator] = []
        self._trace: ConsumeTrace | None = None
        self._is_stopping = False
        self.is_hurried = False
        """Whether `stop` must not wait for the messages of loops."""

    async def start(
        self, wanted: Mapping[str, str | Sql92], trace: ConsumeTrace | None = None
    ) -> None:
        """Join the group with these subscriptions. Raises ClientError."""
        context = self.context
        topics = dict(wanted)
        if not context.options.broadcasting:
            topics[retry_topic(context.group)] = "*"
        await self.declare(topics)
        self._trace = None if trace is None else await trace.start()
        observer = consume_observer(context, self._trace)
        if observer is not None:
            (self._listener or self.iterator_delivery).observer = observer
        await self._join()
        if isinstance(self.delivery, TaskWorkers | ThreadWorkers):
            context.tasks.run(self._fail_overdue(self.delivery))

    def subscribe(self, topic: str, expression: str | Sql92) -> None:
        """Add a subscription while running."""
        version, topic = self.context.shared.now_ms(), self.context.names.full(topic)
        self.member.subscribe(subscribe(topic, expression, version=version))
        self.context.tasks.run(self._announce([topic]))

    def unsubscribe(self, topic: str) -> None:
        self.member.subscriptions.pop(self.context.names.full(topic), None)
        self.context.tasks.run(self._announce([]))

    async def _announce(self, topics: list[str]) -> None:
        """Announce subscriptions that changed while running."""
        await check_expressions(self.member, topics)
        await self.context.shared.heartbeat_now()
        self.member.balance_soon()

    async def stop(self) -> None:
        self._is_stopping = True
        try:
            await super().stop()
        finally:
            if self._trace is not None:
                await self._trace.close()

    async def on_revoked(self, assigned: AssignedQueue) -> None:
        await super().on_revoked(assigned)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience_s):
                await wait_until_idle(assigned)

    @property
    def _patience_s(self) -> float | None:
        """How long to wait for messages in flight; None: without a limit."""
        options = self.context.options
        if not self._is_stopping:
            return None if options.orderly else options.release_timeout_s
        if self._listener is not None:
            return options.stop_timeout_s
        return 0 if self.is_hurried else options.release_timeout_s

    # Iterating

    @property
    def iterator_delivery(self) -> IteratorDelivery:
        """The source of messages for loops. Raises UsageError if the consumer has a listener."""
        if not isinstance(self.delivery, IteratorDelivery):
            group = self.context.group
            raise UsageError(f"consumer of {group} has a listener, which gets the messages")
        return self.delivery

    def messages(self) -> MessageIterator:
        auto_ack = self.context.options.auto_ack
        made = MessageIterator(self.iterator_delivery, auto_ack=auto_ack)
        self._iterators.append(made)
        return made

    def batches(self, count_max: int) -> BatchIterator:
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

    async def _fail_overdue(self, workers: TaskWorkers | ThreadWorkers) -> None:
        """Return messages to the broker whose listener exceeds the timeout."""
        limit_s = self.context.options.consume_timeout_s
        while True:
            await asyncio.sleep(min(limit_s / 4, _OVERDUE_CHECK_S))
            before = monotonic() - limit_s
            for part, message in workers.overdue(before):
                self.acknowledger.fail(part.assigned, message, message.verdict or GROWING)


def consume_observer(
    context: ConsumerContext, trace: ConsumeTrace | None = None
) -> ConsumeObserver | None:
    """Return what is told about every delivery: the trace and the hooks, if there are any."""
    if not context.options.hooks:
        return trace
    return ConsumeHooks(context.names.plain(context.group), context.options.hooks, trace)


def _to_listener(
    context: ConsumerContext, listener: Listener, ready: Ready, acknowledger: Acknowledger
) -> Delivery:
    if context.options.orderly:
        return OrderlyWorkers(context, listener, ready, acknowledger)
    workers = TaskWorkers if listener.is_async else ThreadWorkers
    return workers(context, listener, ready, acknowledger)


def _to_iterators(
    context: ConsumerContext, ready: Ready, acknowledger: Acknowledger
) -> IteratorDelivery:
    if context.options.orderly:
        return OrderlyIteratorDelivery(context, ready, acknowledger)
    return IteratorDelivery(ready, acknowledger)
