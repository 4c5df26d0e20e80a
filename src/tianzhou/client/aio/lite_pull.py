"""The lite pull consumer: messages are prefetched, and `poll` returns them.

    async with LitePullConsumer("audit", nameserver=..., subscribe={"orders": "*"}) as consumer:
        while True:
            for message in await consumer.poll():
                ...

With `subscribe` the group shares the queues as push consumers do; with `assign` this consumer gets
exactly the queues it names. Offsets of messages returned by earlier polls are committed: in the
background with `auto_ack`, or with `commit`. `seek` moves to any offset.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from datetime import datetime
from time import monotonic
from types import TracebackType
from typing import Final, Self

from tianzhou.base.errors import UsageError
from tianzhou.client.consume.acknowledger import Acknowledger
from tianzhou.client.consume.consumer_requests import ConsumerRequests
from tianzhou.client.consume.context import ConsumerContext, Tasks
from tianzhou.client.consume.group_member import GroupMember, check_expressions
from tianzhou.client.consume.puller import Puller
from tianzhou.client.consume.ready import PulledRecords, Ready
from tianzhou.client.consumer_options import ConsumerOptions, refuse_spans
from tianzhou.client.core.arguments import (
    check_seconds,
    checked_count,
    checked_offset,
    checked_offsets,
    checked_queue,
    checked_queues,
)
from tianzhou.client.core.assigned_queue import AssignedQueue
from tianzhou.client.core.offsets import epoch_ms
from tianzhou.client.core.received import ReceivedMessage
from tianzhou.client.core.subscription import Sql92, Subscription, checked_wishes, subscribe
from tianzhou.client.errors import ClientClosed
from tianzhou.client.options import ClientOptions, checked_group, client_repr
from tianzhou.client.session.shared_client import SharedClient
from tianzhou.wire.queues import MessageQueue

_DEFAULTS: Final = ConsumerOptions()
_CLIENT: Final = ClientOptions()
POLL_S: Final = 5.0


class LitePullConsumer:
    """Poll messages that are prefetched in the background.

    Methods raise UsageError for invalid arguments, ClientClosed if the consumer is not running, and
    the error that stopped the consumer, if any.

        async with LitePullConsumer("audit", subscribe={"orders": "*"}) as consumer:
            for message in await consumer.poll():
                print(message.body)

    Owner: the event loop in which it was started.
    """

    def __init__(
        self,
        group: str,
        *,
        nameserver: str | None = None,
        subscribe: Mapping[str, str | Sql92] | None = None,
        options: ConsumerOptions = _DEFAULTS,
        client: ClientOptions = _CLIENT,
    ) -> None:
        """Create a consumer; it connects in `start`.

        `nameserver` is `host:port;host:port`; None reads it from the environment. Without
        `subscribe`, choose queues with `assign`. Raises UsageError for invalid arguments.
        """
        self.group = checked_group(group)
        refuse_spans(options, self.group)
        self.options = options
        self._nameserver = nameserver
        self._client = client
        self._wanted = checked_wishes(subscribe)
        self._failure: BaseException | None = None
        self._was_started = self._is_running = False
        self._stopping: asyncio.Task[None] | None = None
        self._arrived = asyncio.Event()
        self._handed: dict[MessageQueue, int] = {}
        """For each queue, the offset after the messages that polls returned."""
        self._done: dict[MessageQueue, int] = {}
        """The same, as far as it may be committed."""

    def __repr__(self) -> str:
        state = "running" if self._is_running else "stopped" if self._was_started else "not started"
        return client_repr(
            self, state, group=self.group, topics=list(self._wanted), nameserver=self._nameserver
        )

    # Life

    async def start(self) -> Self:
        """Join the group and start prefetching; an `async with` block does this.

        Raises UsageError if the consumer was started before, and ClientError.
        """
        if self._was_started:
            raise UsageError(f"consumer of {self.group} was started before; create a new one")
        self._was_started = True
        self._shared = SharedClient.join(self._nameserver, self._client, consumer_group=self.group)
        async with contextlib.AsyncExitStack() as failing:
            failing.push_async_callback(self._shared.leave, consumer_group=self.group)
            self._make()
            failing.pop_all()
            failing.push_async_callback(self._end)  # which leaves the shared client, too
            await check_expressions(self._member, self._wanted)
            if self._wanted:
                self._requests.start()
                await self._member.join()
            failing.pop_all()
        self._is_running = True
        return self

    def _make(self) -> None:
        context = ConsumerContext(self.group, self._shared, self.options, Tasks(self._fail))
        self._ready = Ready()
        self._member = GroupMember(context, self, lite=True)
        acknowledger = Acknowledger(context, self._ready)
        self._puller = Puller(context, self._member.assignments, self._deliver, acknowledger.rates)
        self._requests = ConsumerRequests(self._member, self._puller, acknowledger, None)
        for topic, expression in self._wanted.items():
            self._member.subscriptions[topic] = self._subscription(topic, expression)

    def _subscription(self, topic: str, expression: str | Sql92) -> Subscription:
        return subscribe(topic, expression, version=self._shared.now_ms())

    async def stop(self) -> None:
        """Commit offsets and leave the group.

        Re-raises the error that stopped the consumer, if any.
        """
        if self._is_running:
            self._shared.check_loop()
            self._is_running = False
            self._arrived.set()
            self._stopping = asyncio.get_running_loop().create_task(self._end())
        if self._stopping is not None:
            await asyncio.shield(self._stopping)
        self._raise_failure()

    async def _end(self) -> None:
        try:
            await self._member.leave()
        finally:
            self._requests.stop()
            await self._member.context.tasks.cancel()
            await self._shared.leave(consumer_group=self.group)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            if self.options.auto_ack:
                self._done.update(self._handed)
            await self.stop()
            return
        failure, self._failure = self._failure, None  # the exception of the block is raised instead
        await self.stop()
        self._failure = failure

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._arrived.set()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _check(self) -> None:
        self._raise_failure()
        if not self._is_running:
            raise ClientClosed(f"consumer of {self.group} is not running")
        self._shared.check_loop()

    # Queues

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues of a topic from a fresh route. Raises TopicNotFound."""
        self._check()
        return (await self._shared.refresh(topic)).read_queues

    async def assign(self, queues: Iterable[MessageQueue], expression: str | Sql92 = "*") -> None:
        """Assign exactly these queues to this consumer, filtered by `expression`.

        Each queue starts at the committed offset of the group; `seek` changes that. Raises
        UsageError if the consumer has subscriptions.

            await consumer.assign(await consumer.queues("orders"))
        """
        self._check()
        if self._wanted:
            raise UsageError(
                f"consumer of {self.group} has subscriptions; queues cannot be assigned as well"
            )
        wanted = checked_queues(queues)
        for topic in {queue.topic for queue in wanted}:
            self._member.subscriptions[topic] = self._subscription(topic, expression)
        await check_expressions(self._member, {queue.topic for queue in wanted})
        await self._member.assignments.assign(wanted)

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues assigned to this consumer now."""
        return frozenset(self._member.assignments.queues) if self._is_running else frozenset()

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Return no messages of these queues until `resume`, which pulls prefetched ones again.

        Raises UsageError if a queue is not assigned to this consumer.
        """
        held = [self._assigned(queue) for queue in checked_queues(queues)]
        self._puller.pause([assigned.queue for assigned in held])
        for assigned in held:
            self._ready.discard(assigned)
        back = {assigned.queue: assigned.window.committable for assigned in held}
        self._member.context.tasks.run(self._member.assignments.move(back, save=False))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Return messages of these queues again, after `pause`. Raises UsageError."""
        self._check()
        self._puller.resume(checked_queues(queues))

    # Messages

    async def poll(
        self, timeout_s: float = POLL_S, *, count_max: int | None = None
    ) -> list[ReceivedMessage]:
        """Return the next messages, of one or several queues; empty after `timeout_s` seconds.

        `count_max` defaults to the option `pull_count`. With `auto_ack`, a poll allows the offsets
        of messages that earlier polls returned to be committed. Raises UsageError, ClientClosed,
        and the error that stopped the consumer.
        """
        self._check()
        check_seconds("timeout_s", timeout_s)
        if count_max is not None:
            checked_count("count_max", count_max)
        if self.options.auto_ack:
            self._done.update(self._handed)
        count_max = count_max or self.options.pull_count
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self._ready.count:
                    self._arrived.clear()
                    await self._arrived.wait()
                    self._check()
        return self._take(count_max)

    def _take(self, count_max: int) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        while len(found) < count_max:
            part = self._ready.take(count_max - len(found))
            if part is None:
                break
            found += part.messages()
            assigned = part.assigned
            assigned.finish(part.records.offsets[part.first : part.end], monotonic())
            self._ready.settle(assigned, part.end - part.first)
            self._handed[assigned.queue] = assigned.window.committable
        return found

    def _deliver(self, pulled: PulledRecords) -> None:
        self._ready.put(pulled)
        self._arrived.set()

    # Offsets

    def position(self, queue: MessageQueue) -> int:
        """Return the offset at which the next poll of this queue starts.

        Raises UsageError if the queue is not assigned to this consumer.
        """
        return self._assigned(queue).window.committable

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at an offset, without committing it; prefetched messages are dropped.

        Raises UsageError for a negative offset, or if the queue is not assigned to this consumer.
        """
        offset = checked_offset(offset)
        self._assigned(queue)
        self._handed[queue] = offset
        await self._member.assignments.move({queue: offset}, save=False)

    async def seek_to_first(self, queue: MessageQueue) -> None:
        """Continue at the first message that is still stored.

        Raises UsageError if the queue is not assigned to this consumer.
        """
        await self.seek(queue, await self._member.assignments.offsets.first(checked_queue(queue)))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Skip all stored messages: continue with the next new one.

        Raises UsageError if the queue is not assigned to this consumer.
        """
        await self.seek(queue, await self._member.assignments.offsets.end(checked_queue(queue)))

    async def offset_at(self, queue: MessageQueue, time: datetime | str | int) -> int:
        """Return the offset of the first message stored at a time or later.

        The time is a datetime, `yyyyMMddHHmmss` in local time, or milliseconds since 1970. Raises
        UsageError for an invalid time.
        """
        self._check()
        return await self._member.assignments.offsets.at_time(checked_queue(queue), epoch_ms(time))

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the committed offset of the group; None if there is none. Raises UsageError."""
        self._check()
        return await self._member.assignments.offsets.committed(checked_queue(queue))

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit offsets and wait for the responses of the brokers.

        By default these are the offsets after all messages that polls have returned. A failed
        commit is logged and retried in the background. Raises UsageError for invalid offsets.

            await consumer.commit({queue: message.queue_offset + 1})
        """
        self._check()
        self._done.update(self._handed if offsets is None else checked_offsets(offsets))
        await self._member.assignments.save_surely()

    def _assigned(self, queue: MessageQueue) -> AssignedQueue:
        self._check()
        assigned = self._member.assignments.queues.get(checked_queue(queue))
        if assigned is None:
            raise UsageError(f"{queue} is not assigned to this consumer of {self.group}")
        return assigned

    # AssignmentListener

    def on_assigned(self, assigned: AssignedQueue) -> None:
        """Start pulling a queue that the group assigned to this consumer; not for applications."""
        self._puller.start(assigned)

    async def on_revoked(self, assigned: AssignedQueue) -> None:
        """Stop pulling a revoked queue and drop its messages; not for applications."""
        self._puller.stop(assigned)
        self._ready.discard(assigned)

    def committable(self, assigned: AssignedQueue) -> int | None:
        """Return the offset to commit for a queue, if any; not for applications."""
        if assigned.is_released:  # final: if the queue comes back, it starts at the group's offset
            self._handed.pop(assigned.queue, None)
            return self._done.pop(assigned.queue, None)
        return self._done.get(assigned.queue)
