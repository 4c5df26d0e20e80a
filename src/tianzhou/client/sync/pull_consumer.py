"""The blocking pull consumer: one pull at a time, from any queue at any offset.

with PullConsumer("audit", nameserver="10.0.0.1:9876") as consumer:
    for queue in consumer.queues("orders"):
        found = consumer.pull(queue, consumer.first(queue))
"""

from datetime import datetime
from types import TracebackType
from typing import Final, Self

from tianzhou.client.aio import pull_consumer as aio
from tianzhou.client.aio.pull_consumer import PullResult
from tianzhou.client.core.subscription import Sql92
from tianzhou.client.options import ClientOptions
from tianzhou.client.sync.runner import ChangesNameServers, runner
from tianzhou.wire.queues import MessageQueue

_CLIENT: Final = ClientOptions()


class PullConsumer(ChangesNameServers[aio.PullConsumer]):
    """Pull messages from a queue at an offset of your choice, from any thread.

    Arguments and errors are those of `tianzhou.client.PullConsumer`.

        with PullConsumer("audit", nameserver="10.0.0.1:9876") as consumer:
            for queue in consumer.queues("orders"):
                found = consumer.pull(queue, consumer.first(queue))
    """

    def __init__(
        self, group: str, *, nameserver: str | None = None, client: ClientOptions = _CLIENT
    ) -> None:
        """Create a consumer; it connects at the first request.

        `nameserver` is `host:port;host:port`; None reads it from the environment. Raises UsageError
        for an invalid group.
        """
        self._inner = aio.PullConsumer(group, nameserver=nameserver, client=client)
        self._run = runner().run

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def group(self) -> str:
        """The name of the consumer group."""
        return self._inner.group

    def start(self) -> Self:
        """Start the consumer; a `with` block does this.

        Raises UsageError if it is running, or the name servers are invalid.
        """
        self._run(self._inner.start())
        return self

    def stop(self) -> None:
        """Disconnect. A second call has no effect."""
        self._run(self._inner.stop())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues of a topic from a fresh route. Raises TopicNotFound."""
        return self._run(self._inner.queues(topic))

    def pull(
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
        pull = self._inner.pull(
            queue, offset, count_max=count_max, expression=expression, wait_s=wait_s
        )
        return self._run(pull)

    def first(self, queue: MessageQueue) -> int:
        """Return the offset of the first stored message. Raises UsageError and NoRoute."""
        return self._run(self._inner.first(queue))

    def end(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get. Raises UsageError and NoRoute."""
        return self._run(self._inner.end(queue))

    def offset_at(self, queue: MessageQueue, time: datetime | str | int) -> int:
        """Return the offset of the first message stored at a time or later.

        The time is a datetime, `yyyyMMddHHmmss` in local time, or milliseconds since 1970. Raises
        UsageError for an invalid time.
        """
        return self._run(self._inner.offset_at(queue, time))

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the committed offset of the group; None if there is none. Raises UsageError."""
        return self._run(self._inner.committed(queue))

    def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit the offset of the group in a queue, and wait until it is stored.

        Raises UsageError, and RemoteError if the broker rejects it.
        """
        self._run(self._inner.commit(queue, offset))
