"""The pull consumer: one pull at a time, from any queue at any offset, without background work.

async with PullConsumer("audit", nameserver=...) as consumer:
    for queue in await consumer.queues("orders"):
        found = await consumer.pull(queue, await consumer.first(queue))
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from time import monotonic
from types import TracebackType
from typing import Final, Self

from tianzhou.base.errors import UsageError
from tianzhou.client.consume.offsets import QueueOffsets
from tianzhou.client.core.arguments import (
    check_seconds,
    checked_count,
    checked_offset,
    checked_queue,
)
from tianzhou.client.core.namespace import Namespace
from tianzhou.client.core.offsets import epoch_ms
from tianzhou.client.core.pulling import (
    PullAnswer,
    PullFrom,
    PullPlan,
    PullStatus,
    Records,
    is_usable,
    read_answer,
    records_of,
    untrusted,
)
from tianzhou.client.core.received import NamespacedMessage, ReceivedMessage
from tianzhou.client.core.routing import MASTER
from tianzhou.client.core.subscription import Sql92, subscribe
from tianzhou.client.errors import ClientClosed, ClientError, NoRoute, Retry, remote_error
from tianzhou.client.options import ClientOptions, checked_group, client_repr
from tianzhou.client.session.joining import ChangesNameServers
from tianzhou.client.session.shared_client import SharedClient
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.queues import MessageQueue

_CLIENT: Final = ClientOptions()
BYTES_MAX: Final = 256 * 1024
GRACE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class PullResult:
    """The messages of one pull, and where to continue.

        found = await consumer.pull(queue, offset)
        offset = found.next_offset

    `first` and `end` are the bounds of the queue.
    """

    status: PullStatus
    messages: Sequence[ReceivedMessage]
    next_offset: int
    """The offset for the next pull."""
    first: int
    end: int
    """The bounds of the queue: those of the master, as far as they are known."""
    broker_id: int = MASTER
    """The replica that responded: 0 is the master, others are slaves."""


class PullConsumer(ChangesNameServers):
    """Pull messages from a queue at an offset of your choice.

    Methods raise ClientClosed if the consumer is not running, and UsageError for invalid arguments.

        async with PullConsumer("audit", nameserver="10.0.0.1:9876") as consumer:
            for queue in await consumer.queues("orders"):
                found = await consumer.pull(queue, await consumer.first(queue))

    Owner: the event loop in which it was started.
    """

    def __init__(
        self, group: str, *, nameserver: str | None = None, client: ClientOptions = _CLIENT
    ) -> None:
        """Create a consumer; it connects at the first request.

        `nameserver` is `host:port;host:port`; None reads it from the environment. Raises UsageError
        for an invalid group.
        """
        self.group = checked_group(group)
        self._nameserver = nameserver
        self._client = client
        self._names = Namespace(client.namespace)
        self._full_group = checked_group(self._names.full(group))
        self._shared: SharedClient | None = None
        self._sources: dict[MessageQueue, PullFrom] = {}
        """Where each queue is read next."""
        self._bounds: dict[MessageQueue, tuple[int, int]] = {}
        """What the master last responded, because a slave may lag behind it."""

    def __repr__(self) -> str:
        state = "not running" if self._shared is None else "running"
        return client_repr(self, state, group=self.group, nameserver=self._nameserver)

    async def start(self) -> Self:
        """Start the consumer; an `async with` block does this.

        Raises UsageError if it is running, or the name servers are invalid.
        """
        if self._shared is not None:
            raise UsageError(f"consumer of {self.group} was started before")
        self._shared = self._joined = SharedClient.join(self._nameserver, self._client)
        return self

    async def stop(self) -> None:
        """Disconnect. A second call has no effect."""
        shared, self._shared, self._joined = self._shared, None, None
        if shared is not None:
            await shared.leave()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues of a topic from a fresh route. Raises TopicNotFound."""
        route = await self._running().refresh(self._names.full(topic))
        return self._names.plain_queues(route.read_queues)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        count_max: int = 32,
        expression: str | Sql92 = "*",
        wait_s: float = 0.0,
    ) -> PullResult:
        """Pull up to `count_max` messages, starting at an offset.

        If there are none, the broker waits up to `wait_s` seconds for new ones. `expression`
        filters as in a subscription. Old messages come from a slave if the master advises that.
        Raises UsageError, NoRoute, RemoteError and BadPullAnswer.
        """
        queue, offset = self._full(queue), checked_offset(offset)
        count_max = checked_count("count_max", count_max)
        check_seconds("wait_s", wait_s)
        shared = self._running()
        wanted = subscribe(queue.topic, expression, version=0)
        plan = PullPlan(
            group=self._full_group,
            queue=queue,
            subscription=wanted,
            count_max=count_max,
            bytes_max=BYTES_MAX,
            suspend_ms=round(wait_s * 1000),
        )
        answer, records, at = await self._answer(shared, plan, offset)
        first, end = self._bounds.get(queue, (answer.min_offset, 0))
        if at == MASTER:
            first, end = self._bounds[queue] = answer.min_offset, answer.max_offset
        kind = NamespacedMessage if self._names else ReceivedMessage
        shown = self._names.plain_queue(queue)
        messages = [kind(records.buffer, start, shown) for start in records.starts]
        end = max(end, answer.max_offset)
        return PullResult(answer.status, messages, answer.next_offset, first, end, at)

    async def _answer(
        self, shared: SharedClient, plan: PullPlan, offset: int
    ) -> tuple[PullAnswer, Records, int]:
        """Return a usable response, its records, and the replica that sent it: the one to read
        from, else the master."""
        queue = plan.queue
        source = self._sources.get(queue, PullFrom())
        while True:
            route = await shared.route(queue.topic)
            replica = route.any_replica(queue.broker_name, source.broker_id)
            if replica is None:
                raise NoRoute(f"broker {queue.broker_name!r} of topic {queue.topic!r} is away")
            at, address = replica
            is_last = at == MASTER or not route.has_master(queue.broker_name)
            known = route.brokers[queue.broker_name]
            try:
                answer, records = await _request(
                    shared, address, plan, offset=offset, suspend=is_last
                )
            except ClientError as error:
                if not is_last or error.retry is Retry.OTHER_BROKER:
                    source = source.after_failure(known, now_s=monotonic())
                    self._sources[queue] = source
                if is_last:
                    raise
                continue
            count = len(records.starts) if plan.takes_all else None
            is_final = is_usable(answer, at=at, asked=offset, count=count)
            now_s = monotonic()
            if is_final:
                source = source.after_answer(answer, at=at, now_s=now_s)
            else:
                source = source.after_failure(known, now_s=now_s)
            self._sources[queue] = source
            if is_final or is_last:
                return answer, records, at

    # Offsets

    async def first(self, queue: MessageQueue) -> int:
        """Return the offset of the first stored message. Raises UsageError and NoRoute."""
        return await self._offsets().first(self._full(queue))

    async def end(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get. Raises UsageError and NoRoute."""
        return await self._offsets().end(self._full(queue))

    async def offset_at(self, queue: MessageQueue, time: datetime | str | int) -> int:
        """Return the offset of the first message stored at a time or later.

        The time is a datetime, `yyyyMMddHHmmss` in local time, or milliseconds since 1970. Raises
        UsageError for an invalid time.
        """
        return await self._offsets().at_time(self._full(queue), epoch_ms(time))

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the committed offset of the group; None if there is none. Raises UsageError."""
        return await self._offsets().committed(self._full(queue))

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit the offset of the group in a queue, and wait until it is stored.

        Raises UsageError, and RemoteError if the broker rejects it.
        """
        await self._offsets().commit(self._full(queue), checked_offset(offset))

    def _full(self, queue: MessageQueue) -> MessageQueue:
        return self._names.full_queue(checked_queue(queue))

    def _offsets(self) -> QueueOffsets:
        return QueueOffsets(self._full_group, self._running())

    def _running(self) -> SharedClient:
        if self._shared is None:
            raise ClientClosed(f"consumer of {self.group} is not running")
        return self._shared


async def _request(
    shared: SharedClient, address: str, plan: PullPlan, *, offset: int, suspend: bool
) -> tuple[PullAnswer, Records]:
    """Pull from the replica at an address."""
    header, body = await shared.call(
        address,
        RequestCode.PULL_MESSAGE,
        plan.ext(offset, suspend=suspend),
        timeout_s=GRACE_S + (plan.suspend_ms / 1000 if suspend else 0.0),
    )
    with untrusted(plan.queue, offset):
        answer = read_answer(header, body)
    if answer is None:
        raise remote_error(address, header.code, header.remark)
    with untrusted(plan.queue, offset):
        topic, accepts_tag = plan.queue.topic, plan.subscription.accepts_tag
        return answer, records_of(answer.body, asked=offset, topic=topic, accepts_tag=accepts_tag)
