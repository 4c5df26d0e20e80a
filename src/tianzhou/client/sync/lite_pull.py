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
from tianzhou.client.sync.runner import runner
from tianzhou.wire.queues import MessageQueue

_DEFAULTS: Final = ConsumerOptions()
_CLIENT: Final = ClientOptions()

T = TypeVar("T")


class LitePullConsumer:
    """Poll messages that are prefetched in the background, from any thread.

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
        """Create a consumer. Without `subscribe`, choose queues with `assign`."""
        self._inner = aio.LitePullConsumer(
            group, nameserver=nameserver, subscribe=subscribe, options=options, client=client
        )
        self._run = runner().run

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def group(self) -> str:
        return self._inner.group

    def start(self) -> Self:
        self._run(self._inner.start())
        return self

    def stop(self) -> None:
        """Commit offsets and leave the group. Re-raises the error that stopped it, if any."""
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
        """Assign exactly these queues, filtered by `expression`."""
        self._run(self._inner.assign(queues, expression))

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        return self._do(lambda: self._inner.assignment)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Return no messages of these queues; prefetched ones are pulled again after `resume`."""
        self._do(lambda: self._inner.pause(queues))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        self._do(lambda: self._inner.resume(queues))

    # Messages

    def poll(
        self, timeout_s: float = aio.POLL_S, *, count_max: int | None = None
    ) -> list[ReceivedMessage]:
        """Return the next messages, of one or several queues; empty after `timeout_s` seconds."""
        return self._run(self._inner.poll(timeout_s, count_max=count_max))

    # Offsets

    def position(self, queue: MessageQueue) -> int:
        """Return the offset at which the next poll of this queue starts."""
        return self._do(lambda: self._inner.position(queue))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at an offset; prefetched messages are dropped. Commits nothing."""
        self._run(self._inner.seek(queue, offset))

    def seek_to_first(self, queue: MessageQueue) -> None:
        self._run(self._inner.seek_to_first(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        self._run(self._inner.seek_to_end(queue))

    def offset_at(self, queue: MessageQueue, moment: datetime | str | int) -> int:
        """Return the offset of the first message stored at a time or later."""
        return self._run(self._inner.offset_at(queue, moment))

    def committed(self, queue: MessageQueue) -> int | None:
        return self._run(self._inner.committed(queue))

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit these offsets, or those of all returned messages; wait until they are stored."""
        self._run(self._inner.commit(offsets))

    def _do(self, work: Callable[[], T]) -> T:
        """Run a function in the thread that owns the consumer."""

        async def do() -> T:
            return work()

        return self._run(do())
