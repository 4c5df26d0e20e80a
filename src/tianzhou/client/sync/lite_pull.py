"""The blocking lite pull consumer: the same methods as `tianzhou.client.LitePullConsumer`.

with LitePullConsumer("audit", nameserver="10.0.0.1:9876", subscribe={"orders": "*"}) as mine:
    for message in mine.poll():
        ...
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Final, Self, TypeVar

from tianzhou.client.aio import lite_pull as aio
from tianzhou.client.consumer_options import ConsumerOptions
from tianzhou.client.core.received import ReceivedMessage
from tianzhou.client.core.subscription import Sql92
from tianzhou.client.options import ClientOptions
from tianzhou.client.sync.runner import ChangesNameServers, runner
from tianzhou.wire.queues import MessageQueue

_DEFAULTS: Final = ConsumerOptions()
_CLIENT: Final = ClientOptions()

T = TypeVar("T")


class LitePullConsumer(ChangesNameServers[aio.LitePullConsumer]):
    """Poll messages that are prefetched in the background, from any thread.

    Arguments and errors are those of `tianzhou.client.LitePullConsumer`.

        with LitePullConsumer("audit", subscribe={"orders": "*"}) as consumer:
            for message in consumer.poll():
                print(message.body)
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

        Without `subscribe`, choose queues with `assign`. Raises UsageError for invalid arguments.
        """
        self._inner = aio.LitePullConsumer(
            group, nameserver=nameserver, subscribe=subscribe, options=options, client=client
        )
        self._run = runner().run

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def group(self) -> str:
        """The name of the consumer group."""
        return self._inner.group

    def start(self) -> Self:
        """Join the group and start prefetching; a `with` block does this.

        Raises UsageError if the consumer was started before, and ClientError.
        """
        self._run(self._inner.start())
        return self

    def stop(self) -> None:
        """Commit offsets and leave the group.

        Re-raises the error that stopped the consumer, if any.
        """
        self._run(self._inner.stop())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._run(self._inner.__aexit__(kind, error, trace))

    # Queues

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues of a topic from a fresh route. Raises TopicNotFound."""
        return self._run(self._inner.queues(topic))

    def assign(self, queues: Iterable[MessageQueue], expression: str | Sql92 = "*") -> None:
        """Assign exactly these queues to this consumer, filtered by `expression`.

        Each queue starts at the committed offset of the group; `seek` changes that. Raises
        UsageError if the consumer has subscriptions.

            consumer.assign(consumer.queues("orders"))
        """
        self._run(self._inner.assign(queues, expression))

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues assigned to this consumer now."""
        return self._do(lambda: self._inner.assignment)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Return no messages of these queues until `resume`, which pulls prefetched ones again.

        Raises UsageError if a queue is not assigned to this consumer.
        """
        self._do(lambda: self._inner.pause(queues))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Return messages of these queues again, after `pause`. Raises UsageError."""
        self._do(lambda: self._inner.resume(queues))

    # Messages

    def poll(
        self, timeout_s: float = aio.POLL_S, *, count_max: int | None = None
    ) -> list[ReceivedMessage]:
        """Return the next messages, of one or several queues; empty after `timeout_s` seconds.

        `count_max` defaults to the option `pull_count`. With `auto_ack`, a poll allows the offsets
        of messages that earlier polls returned to be committed. Raises UsageError, ClientClosed,
        and the error that stopped the consumer.
        """
        return self._run(self._inner.poll(timeout_s, count_max=count_max))

    # Offsets

    def position(self, queue: MessageQueue) -> int:
        """Return the offset at which the next poll of this queue starts.

        Raises UsageError if the queue is not assigned to this consumer.
        """
        return self._do(lambda: self._inner.position(queue))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at an offset, without committing it; prefetched messages are dropped.

        Raises UsageError for a negative offset, or if the queue is not assigned to this consumer.
        """
        self._run(self._inner.seek(queue, offset))

    def seek_to_first(self, queue: MessageQueue) -> None:
        """Continue at the first message that is still stored.

        Raises UsageError if the queue is not assigned to this consumer.
        """
        self._run(self._inner.seek_to_first(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Skip all stored messages: continue with the next new one.

        Raises UsageError if the queue is not assigned to this consumer.
        """
        self._run(self._inner.seek_to_end(queue))

    def offset_at(self, queue: MessageQueue, time: datetime | str | int) -> int:
        """Return the offset of the first message stored at a time or later.

        The time is a datetime, `yyyyMMddHHmmss` in local time, or milliseconds since 1970. Raises
        UsageError for an invalid time.
        """
        return self._run(self._inner.offset_at(queue, time))

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the committed offset of the group; None if there is none. Raises UsageError."""
        return self._run(self._inner.committed(queue))

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit offsets and wait for the responses of the brokers.

        By default these are the offsets after all messages that polls have returned. A failed
        commit is logged and retried in the background. Raises UsageError for invalid offsets.

            consumer.commit({queue: message.queue_offset + 1})
        """
        self._run(self._inner.commit(offsets))

    def _do(self, work: Callable[[], T]) -> T:
        """Run a function in the thread that owns the consumer."""

        async def do() -> T:
            return work()

        return self._run(do())
