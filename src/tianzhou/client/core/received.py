"""The message that a consumer delivers to the user."""

import enum
from typing import Final, Protocol

from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import Bytes
from tianzhou.client.core.pulling import Records
from tianzhou.record import names
from tianzhou.record.message import MessageView
from tianzhou.wire.names import RETRY_PREFIX
from tianzhou.wire.queues import MessageQueue


class AckHandle(Protocol):
    """Where `ack` and `retry` of a message are reported."""

    def ack(self, message: "ReceivedMessage") -> None: ...
    def retry(self, message: "ReceivedMessage", delay_level: int) -> None: ...


class _AfterTheCall:
    """During a listener call, `ack` and `retry` take effect when the listener returns."""

    def ack(self, message: "ReceivedMessage") -> None:
        message.verdict = None

    def retry(self, message: "ReceivedMessage", delay_level: int) -> None:
        message.verdict = delay_level


AFTER_THE_CALL: Final[AckHandle] = _AfterTheCall()


class ReceivedMessage(MessageView):
    """A delivered message. Its fields are decoded on demand.

    `topic` of a redelivered message is the topic it was sent to, not the retry topic. Call `ack` or
    `retry` if the consumer has `auto_ack=False`:

        async for message in consumer:
            if not await handle(message):
                message.retry(delay_level=3)
    """

    __slots__ = ("_ack_handle", "local_times", "queue", "verdict")

    def __init__(
        self, buffer: Bytes, start: int, queue: MessageQueue, ack_handle: AckHandle | None = None
    ) -> None:
        super().__init__(buffer, start)
        self.queue = queue
        """The queue it was read from: broker, topic and queue id. The topic may be the retry
        topic."""
        self.local_times = 0
        """How often it was retried in place, without returning it to the broker."""
        self.verdict: int | None = None
        """The delay level that a listener passed to `retry`."""
        self._ack_handle = ack_handle

    @property
    def topic(self) -> str:
        """The topic that the message was sent to, also after a retry."""
        if self.queue.topic.startswith(RETRY_PREFIX):
            return self._text(names.RETRY_TOPIC) or super().topic
        return super().topic

    @property
    def broker_name(self) -> str:
        """The name of the broker that delivered the message."""
        return self.queue.broker_name

    @property
    def reconsume_times(self) -> int:
        """How often it was delivered before."""
        return super().reconsume_times + self.local_times

    @property
    def origin_id(self) -> str:
        """The id of its first delivery; it stays the same across redeliveries."""
        return self._text(names.ORIGIN_MESSAGE_ID) or self.offset_id

    def ack(self) -> None:
        """Acknowledge the message; the group's offset advances when all earlier ones are done.

        Raises UsageError for a message of a pull consumer.
        """
        self._require_ack_handle().ack(self)

    def retry(self, delay_level: int = 0) -> None:
        """Reject the message: the broker redelivers it later.

        In ordered consumption the message is retried in place instead. With level 0 the delay grows
        with each redelivery, 1 to 18 are the broker's delays (1 s to 2 h), and -1 makes it a dead
        letter now. Raises UsageError for another level, or for a message of a pull consumer.
        """
        self._require_ack_handle().retry(self, checked_delay_level(delay_level))

    @property
    def ack_handle(self) -> AckHandle:
        """Where `ack` and `retry` are reported. Raises UsageError for a pull consumer's message."""
        return self._require_ack_handle()

    @ack_handle.setter
    def ack_handle(self, ack_handle: AckHandle) -> None:
        self._ack_handle = ack_handle

    def as_records(self) -> Records:
        """Return the message alone, as the records of a pull."""
        return Records(
            bytes(self._buffer), [self._start], [int(self.queue_offset)], [self.total_size]
        )

    def _require_ack_handle(self) -> AckHandle:
        if self._ack_handle is None:
            raise UsageError(
                "messages of a pull consumer are not acknowledged one by one; commit offsets"
            )
        return self._ack_handle


class ConsumeResult(enum.Enum):
    """The result of a listener call. Returning None is a success, an exception is a failure.

    In a batch listener the result applies to all messages of the call.

        @consumer.listen
        async def on_message(message):
            return ConsumeResult.SUCCESS if await handle(message) else ConsumeResult.LATER
    """

    SUCCESS = enum.auto()
    LATER = enum.auto()
    """Redeliver all messages of this call later."""


GROWING: Final = 0
"""The delay level with which the broker chooses a delay that grows each time."""

DEAD: Final = -1
"""The delay level that makes the message a dead letter now."""

DELAY_LEVEL_MAX: Final = 18
"""Two hours, by default."""


def checked_delay_level(level: int) -> int:
    if not DEAD <= level <= DELAY_LEVEL_MAX:
        raise UsageError(
            f"invalid delay level {level}; use 1 to {DELAY_LEVEL_MAX}, {GROWING} for a growing one,"
            f" or {DEAD} for a dead letter"
        )
    return level
