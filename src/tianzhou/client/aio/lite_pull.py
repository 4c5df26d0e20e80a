"""The lite pull consumer: messages are prefetched, and `poll` returns them.

    async with LitePullConsumer("audit", nameserver=..., subscribe={"orders": "*"}) as consumer:
        while True:
            for message in await consumer.poll():
                ...

With `subscribe` the group shares the queues as push consumers do; with `assign` this consumer gets
exactly the queues it names. Offsets of messages that earlier polls returned are committed: in the
background with `auto_ack`, or with `commit`.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Final, Self

from tianzhou.base.errors import UsageError
from tianzhou.client.consume.context import ConsumerContext
from tianzhou.client.consume.deliveries import Acknowledger, PollDelivery
from tianzhou.client.consume.running_consumer import RunningConsumer
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
from tianzhou.client.core.subscription import Sql92, checked_wishes
from tianzhou.client.errors import ClientClosed
from tianzhou.client.options import ClientOptions, checked_group, client_repr
from tianzhou.client.session.joining import ChangesNameServers
from tianzhou.wire.queues import MessageQueue

_DEFAULTS: Final = ConsumerOptions()
_CLIENT: Final = ClientOptions()
POLL_S: Final = 5.0


class LitePullConsumer(ChangesNameServers):
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
        self._polls = PollDelivery()
        self._parts: RunningConsumer | None = None
        self._failure: BaseException | None = None
        self._was_started = self._is_running = False
        self._stopping: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "running" if self._is_running else "stopped" if self._was_started else "not started"
        return client_repr(
            self, state, group=self.group, topics=list(self._wanted), nameserver=self._nameserver
        )

    async def start(self) -> Self:
        """Join the group and start prefetching; an `async with` block does this.

        Raises UsageError if the consumer was started before, and ClientError.
        """
        if self._was_started:
            raise UsageError(f"consumer of {self.group} was started before; create a new one")
        self._was_started, polls = True, self._polls
        context = ConsumerContext.join(
            self.group, self.options, self._client, self._fail, nameserver=self._nameserver
        )
        self._joined = context.shared
        async with contextlib.AsyncExitStack() as failing:
            failing.push_async_callback(context.leave)
            acknowledger = Acknowledger(context, polls.ready)
            self._parts = RunningConsumer(
                context, polls, acknowledger, committable=polls.offsets.committable, lite=True
            )
            failing.pop_all()
            failing.push_async_callback(self._parts.stop)  # which leaves the shared client, too
            await self._parts.start(self._wanted)
            failing.pop_all()
        self._is_running = True
        return self

    async def stop(self) -> None:
        """Commit offsets and leave the group.

        Re-raises the error that stopped the consumer, if any.
        """
        if self._is_running and self._parts is not None:
            self._parts.context.shared.check_loop()
            self._is_running = False
            self._polls.arrived.set()
            self._stopping = asyncio.get_running_loop().create_task(self._parts.stop())
        if self._stopping is not None:
            await asyncio.shield(self._stopping)
        if self._failure is not None:
            raise self._failure

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
                self._polls.offsets.allow()
            await self.stop()
            return
        failure, self._failure = self._failure, None  # the exception of the block is raised instead
        await self.stop()
        self._failure = failure

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._polls.arrived.set()

    def _running(self) -> RunningConsumer:
        if self._failure is not None:
            raise self._failure
        if self._parts is None or not self._is_running:
            raise ClientClosed(f"consumer of {self.group} is not running")
        self._parts.context.shared.check_loop()
        return self._parts

    # Queues

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues of a topic from a fresh route. Raises TopicNotFound."""
        return await self._running().queues(topic)

    async def assign(self, queues: Iterable[MessageQueue], expression: str | Sql92 = "*") -> None:
        """Assign exactly these queues to this consumer, filtered by `expression`.

        Each queue starts at the committed offset of the group; `seek` changes that. Raises
        UsageError if the consumer has subscriptions.

            await consumer.assign(await consumer.queues("orders"))
        """
        parts = self._running()
        if self._wanted:
            raise UsageError(
                f"consumer of {self.group} has subscriptions; queues cannot be assigned as well"
            )
        wanted = list(map(self._full, checked_queues(queues)))
        await parts.declare(dict.fromkeys((queue.topic for queue in wanted), expression))
        await parts.member.assignments.assign(wanted)

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues assigned to this consumer now."""
        return self._parts.assignment if self._parts and self._is_running else frozenset()

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Return no messages of these queues until `resume`, which pulls prefetched ones again.

        Raises UsageError if a queue is not assigned to this consumer.
        """
        held = [self._assigned(queue) for queue in checked_queues(queues)]
        parts = self._running()
        parts.puller.pause([assigned.queue for assigned in held])
        for assigned in held:
            self._polls.discard(assigned)
        back = {assigned.queue: assigned.window.committable for assigned in held}
        parts.context.tasks.run(parts.member.assignments.move(back, save=False))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Return messages of these queues again, after `pause`. Raises UsageError."""
        self._running().puller.resume(map(self._full, checked_queues(queues)))

    # Messages

    async def poll(
        self, timeout_s: float = POLL_S, *, count_max: int | None = None
    ) -> list[ReceivedMessage]:
        """Return the next messages, of one or several queues; empty after `timeout_s` seconds.

        `count_max` defaults to the option `pull_count`. With `auto_ack`, a poll allows the offsets
        of messages that earlier polls returned to be committed. Raises UsageError, ClientClosed,
        and the error that stopped the consumer.
        """
        self._running()
        check_seconds("timeout_s", timeout_s)
        if count_max is not None:
            checked_count("count_max", count_max)
        polls = self._polls
        if self.options.auto_ack:
            polls.offsets.allow()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not polls.ready.count:
                    polls.arrived.clear()
                    await polls.arrived.wait()
                    self._running()
        return polls.take(count_max or self.options.pull_count)

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
        offset, queue = checked_offset(offset), self._assigned(queue).queue
        self._polls.offsets.put(queue, offset)
        await self._running().member.assignments.move({queue: offset}, save=False)

    async def seek_to_first(self, queue: MessageQueue) -> None:
        """Continue at the first message that is still stored.

        Raises UsageError if the queue is not assigned to this consumer.
        """
        offsets = self._running().member.assignments.offsets
        await self.seek(queue, await offsets.first(self._full(queue)))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Skip all stored messages: continue with the next new one.

        Raises UsageError if the queue is not assigned to this consumer.
        """
        offsets = self._running().member.assignments.offsets
        await self.seek(queue, await offsets.end(self._full(queue)))

    async def offset_at(self, queue: MessageQueue, time: datetime | str | int) -> int:
        """Return the offset of the first message stored at a time or later.

        The time is a datetime, `yyyyMMddHHmmss` in local time, or milliseconds since 1970. Raises
        UsageError for an invalid time.
        """
        offsets = self._running().member.assignments.offsets
        return await offsets.at_time(self._full(queue), epoch_ms(time))

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the committed offset of the group; None if there is none. Raises UsageError."""
        return await self._running().member.assignments.saved.read(self._full(queue))

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit offsets and wait for the responses of the brokers.

        By default these are the offsets after all messages that polls have returned. A failed
        commit is logged and retried in the background. Raises UsageError for invalid offsets.

            await consumer.commit({queue: message.queue_offset + 1})
        """
        parts = self._running()
        given = None if offsets is None else checked_offsets(offsets)
        self._polls.offsets.allow(parts.context.names.full_offsets(given))
        await parts.member.assignments.save_surely()

    def _full(self, queue: MessageQueue) -> MessageQueue:
        return self._running().context.names.full_queue(checked_queue(queue))

    def _assigned(self, queue: MessageQueue) -> AssignedQueue:
        assigned = self._running().member.assignments.queues.get(self._full(queue))
        if assigned is None:
            raise UsageError(f"{queue} is not assigned to this consumer of {self.group}")
        return assigned
