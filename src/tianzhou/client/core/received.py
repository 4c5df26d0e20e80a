"""The message that a consumer delivers to the user."""

from typing import Final, Protocol

from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import Bytes
from tianzhou.client.core.outcome import checked_delay_level
from tianzhou.client.core.pulling import Records
from tianzhou.client.core.subscription import RETRY_PREFIX
from tianzhou.record import names
from tianzhou.record.message import MessageView
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
    """A stored message, read on demand, and what its reader makes of it.

    A message that comes again after a failure shows the topic it was sent to.
    """

    __slots__ = ("_ack_handle", "local_times", "queue", "verdict")

    def __init__(
        self, buffer: Bytes, start: int, queue: MessageQueue, ack_handle: AckHandle | None = None
    ) -> None:
        super().__init__(buffer, start)
        self.queue = queue
        """Where it was read: broker, topic and queue id. The topic may be the retry topic."""
        self.local_times = 0
        """How often it was tried again in place, without going back to the broker."""
        self.verdict: int | None = None
        """The delay level that a listener asked for with `retry`."""
        self._ack_handle = ack_handle

    @property
    def topic(self) -> str:
        if self.queue.topic.startswith(RETRY_PREFIX):
            return self._text(names.RETRY_TOPIC) or super().topic
        return super().topic

    @property
    def broker_name(self) -> str:
        return self.queue.broker_name

    @property
    def reconsume_times(self) -> int:
        """How often it was delivered before."""
        return super().reconsume_times + self.local_times

    @property
    def origin_id(self) -> str:
        """The id of its first delivery; the same however often it went back."""
        return self._text(names.ORIGIN_MESSAGE_ID) or self.offset_id

    def ack(self) -> None:
        """It is done. The group's offset moves on when everything before it is done too."""
        self._require_ack_handle().ack(self)

    def retry(self, delay_level: int = 0) -> None:
        """It failed: send it back, to be delivered again later; in ordered consumption try it
        again in place.

        Level 0 lets the delay grow with each time, 1 to 18 are the broker's delays (1 s to 2 h),
        and -1 makes it a dead letter now.
        """
        self._require_ack_handle().retry(self, checked_delay_level(delay_level))

    @property
    def ack_handle(self) -> AckHandle:
        """Who is told what is said of it; may be changed, for users in other threads."""
        return self._require_ack_handle()

    @ack_handle.setter
    def ack_handle(self, ack_handle: AckHandle) -> None:
        self._ack_handle = ack_handle

    def as_records(self) -> Records:
        """It alone, as an answer to a pull would bring it."""
        return Records(
            bytes(self._buffer), [self._start], [int(self.queue_offset)], [self.total_size]
        )

    def _require_ack_handle(self) -> AckHandle:
        if self._ack_handle is None:
            raise UsageError(
                "messages of a pull consumer are not acknowledged one by one; commit offsets"
            )
        return self._ack_handle
