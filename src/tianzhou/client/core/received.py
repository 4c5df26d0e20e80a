"""Pulled messages, and the form in which a consumer delivers them to the user.

The records of a pull stay together as `PulledRecords` until they are taken. A `RecordSlice` is what
a call or an iterator takes at once; its messages are in flight. A `ReceivedMessage` is one of them.
"""

import enum
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import Bytes
from tianzhou.client.core.assigned_queue import AssignedQueue
from tianzhou.client.core.namespace import without_namespace
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


class NamespacedMessage(ReceivedMessage):
    """A delivered message of a consumer with a namespace, which its topic does not show."""

    __slots__ = ()

    @property
    def topic(self) -> str:
        """The topic that the message was sent to, without the namespace."""
        return without_namespace(super().topic)


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


Failure: TypeAlias = tuple[ReceivedMessage, int]
"""A message to redeliver, and its delay level."""


def has_failed_for_good(message: ReceivedMessage, delay_level: int, limit: int) -> bool:
    """Whether a message that failed in ordered consumption becomes a dead letter: because the user
    chose that, or because it was delivered too often. A negative limit means no limit."""
    return delay_level == DEAD or 0 <= limit <= message.reconsume_times


def described(messages: Sequence[ReceivedMessage]) -> str:
    """Describe this delivery for human readers of a log."""
    first = messages[0]
    others = f" and {len(messages) - 1} more of its batch" if len(messages) > 1 else ""
    text = (
        f"message {first.message_id}{others} (topic {first.topic}, queue {first.queue.broker_name}:"
        f"{first.queue_id}, offset {first.queue_offset}, attempt {first.reconsume_times + 1})"
    )
    # Its producer chose the id; it must not inject terminal control sequences or extra log lines.
    return text if text.isprintable() else ascii(text)[1:-1]


def message_facts(group: str, message: ReceivedMessage) -> dict[str, object]:
    """The same as fields, for programs that parse a log."""
    return {
        "group": group,
        "topic": message.topic,
        "message_id": message.message_id,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "attempt": message.reconsume_times + 1,
    }


# Records on their way to the user


class PulledRecords:
    """The records of one pull; those from `first` on have not been started."""

    __slots__ = ("assigned", "count", "first", "records", "times")

    def __init__(self, assigned: AssignedQueue, records: Records, times: int = 0) -> None:
        self.assigned = assigned
        self.records = records
        self.first = 0
        self.count = len(records.starts)
        self.times = times
        """How often they were retried in place."""

    @property
    def left(self) -> int:
        return self.count - self.first

    def take(self, count_max: int) -> "RecordSlice":
        """Take the next records; they are in flight from now on."""
        first = self.first
        end = min(first + count_max, self.count)
        self.first = end
        self.assigned.in_flight += end - first
        return RecordSlice(self.assigned, self.records, first, end, self.times)


class RecordSlice(NamedTuple):
    """Records in flight: those of one pull from `first` to `end`."""

    assigned: AssignedQueue
    records: Records
    first: int
    end: int
    times: int

    def messages(self, ack_handle: AckHandle | None = None) -> list[ReceivedMessage]:
        buffer, queue, kind = self.records.buffer, self.assigned.queue, ReceivedMessage
        names = self.assigned.plan.names
        if names.name:
            queue, kind = names.plain_queue(queue), NamespacedMessage
        made = [
            kind(buffer, start, queue, ack_handle)
            for start in self.records.starts[self.first : self.end]
        ]
        if self.times:
            for message in made:
                message.local_times = self.times
        return made

    def as_pulled(self) -> PulledRecords:
        """Return the records as a pull of their own, of which none has been started."""
        buffer, starts, offsets, sizes = self.records
        part = slice(self.first, self.end)
        rest = Records(buffer, starts[part], offsets[part], sizes[part])
        return PulledRecords(self.assigned, rest, self.times)


def again(assigned: AssignedQueue, message: ReceivedMessage, *, failed: bool) -> PulledRecords:
    """Wrap a message as pulled records, to deliver it again."""
    return PulledRecords(assigned, message.as_records(), message.local_times + failed)


def take_waiting(assigned: AssignedQueue, count_max: int) -> RecordSlice:
    """Take the next messages of a queue in ordered consumption; they are in flight from now on."""
    pulled: PulledRecords = assigned.waiting[0]
    part = pulled.take(count_max)
    if pulled.first == pulled.count:
        assigned.waiting.popleft()
    return part


class FreeQueues:
    """In ordered consumption: queues that have a waiting message and none in flight, by turns.

    Owner: the event loop of the consumer.
    """

    def __init__(self) -> None:
        self._queues: deque[AssignedQueue] = deque()

    def __len__(self) -> int:
        return len(self._queues)

    def add(self, assigned: AssignedQueue) -> bool:
        """Add a queue if its next message may be started; return whether it was added."""
        is_free = assigned.waiting and not assigned.in_flight and not assigned.is_revoked
        if not is_free or assigned in self._queues:
            return False
        self._queues.append(assigned)
        return True

    def discard(self, assigned: AssignedQueue) -> None:
        if assigned in self._queues:
            self._queues.remove(assigned)

    def take(self, count_max: int, now_s: float) -> RecordSlice | None:
        """Take the next messages of a queue; None if there is none, or its lock has expired."""
        for _ in range(len(self._queues)):
            assigned = self._queues.popleft()
            if assigned.locked_until <= now_s:
                self._queues.append(assigned)
                continue
            pulled: PulledRecords = assigned.waiting[0]
            part = pulled.take(count_max)
            if pulled.first == pulled.count:
                assigned.waiting.popleft()
            return part
        return None
