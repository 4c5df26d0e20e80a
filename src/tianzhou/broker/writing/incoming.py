"""A received message before it becomes a record, and the topic that it is stored in.

Delayed, timed and transactional messages are first stored in an internal topic of the broker, with
their destination in the properties. Pure.
"""

from typing import Final, NamedTuple

from tianzhou.base.kinds import Bytes, queue_key
from tianzhou.broker import names
from tianzhou.record import flags, properties
from tianzhou.record import names as keys
from tianzhou.record.chunk import Entry
from tianzhou.wire.names import SCHEDULE_TOPIC

TIMER_PRECISION_MS: Final = 1000
NUMBER_DIGITS_MAX: Final = 18


class Incoming(NamedTuple):
    topic: str
    queue_id: int
    body: Bytes
    properties: bytes
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: bytes = bytes(8)
    reconsume_times: int = 0
    prepared_offset: int = 0

    def to_entry(self) -> Entry:
        return Entry(
            queue_key(self.topic, self.queue_id),
            self.body,
            self.properties,
            self.flag,
            self.sys_flag,
            self.born_timestamp,
            self.born_host,
            self.reconsume_times,
            self.prepared_offset,
        )

    def get(self, name: bytes) -> bytes | None:
        return properties.find(self.properties, name)

    def with_properties(self, added: dict[bytes, bytes]) -> "Incoming":
        """The message with these properties set, replacing previous values."""
        text = self.properties
        for name in added:
            if name + b"\x01" in text:
                text = properties.without(text, name)
        text = properties.with_trailing_separator(text)
        pieces = [name + b"\x01" + value + b"\x02" for name, value in added.items() if value]
        return self._replace(properties=text + b"".join(pieces))


def _towards(message: Incoming, topic: str, queue_id: int, **more: bytes) -> Incoming:
    """The message for an internal topic, with its destination in the properties."""
    added = {keys.REAL_TOPIC: message.topic.encode(), keys.REAL_QUEUE_ID: b"%d" % message.queue_id}
    added |= {name.encode(): value for name, value in more.items()}
    return message.with_properties(added)._replace(topic=topic, queue_id=queue_id)


def delayed(message: Incoming, level: int, levels: int) -> Incoming:
    """To the queue of its delay level, counted from 1."""
    return _towards(message, SCHEDULE_TOPIC, min(level, levels) - 1)


def timed(message: Incoming, deliver_ms: int) -> Incoming:
    """To the timer's topic. Java rounds down, by a whole step when there is nothing to round."""
    out_ms = deliver_ms // TIMER_PRECISION_MS * TIMER_PRECISION_MS
    if out_ms == deliver_ms:
        out_ms -= TIMER_PRECISION_MS
    # Only a recall may name a message to be cancelled.
    return _towards(
        message,
        names.TIMER_TOPIC,
        0,
        TIMER_OUT_MS=b"%d" % out_ms,
        TIMER_DELIVER_MS=b"%d" % deliver_ms,
        TIMER_DEL_UNIQKEY=b"",
        TIMER_ROLL_TIMES=b"",
    )


def half(message: Incoming) -> Incoming:
    """To the half topic, which no consumer reads."""
    unique = message.get(keys.UNIQ_KEY) or b""
    # Only a copy that the broker makes may name another half message as its root.
    sent = _towards(
        message,
        names.HALF_TOPIC,
        0,
        __transactionId__=unique,
        TRAN_PREPARED_QUEUE_OFFSET=b"",
        TRANSACTION_CHECK_TIMES=b"",
        TRAN_PARKED_OFFSET=b"",
    )
    return sent._replace(sys_flag=sent.sys_flag & ~flags.TRANSACTION_MASK)


def client_flag(sys_flag: int) -> int:
    """The flag of a message that a client sends, without the bits that are not the client's.

    The bits for long hosts describe the record, which the client does not write. A send may begin a
    transaction but not end one: after a crash, recovery would trust a flag that claims an end and
    drop another half message. Unknown bits are stored, as RocketMQ does.
    """
    sys_flag &= ~flags.LAYOUT_MASK
    if sys_flag & flags.TRANSACTION_MASK == flags.TRANSACTION_COMMIT:
        return sys_flag & ~flags.TRANSACTION_MASK
    return sys_flag


def delay_level(message: Incoming) -> int:
    return number_of(message.get(keys.DELAY), 0)


def delivery_time(message: Incoming, now_ms: int) -> int | None:
    """When to deliver a timed message; None if it is not timed."""
    for name, unit in (
        (keys.TIMER_DELAY_SEC, 1000),
        (keys.TIMER_DELAY_MS, 1),
        (keys.TIMER_DELIVER_MS, 0),
    ):
        number = number_of(message.get(name), -1)
        if number >= 0:
            return number if unit == 0 else now_ms + number * unit
    return None


def is_true(text: bytes | None) -> bool:
    """A boolean property, as Java reads it."""
    return text is not None and text.lower() == b"true"


def number_of(text: bytes | None, otherwise: int) -> int:
    """A number in a property. A longer one cannot be a level, offset or time, and Python rejects
    very long ones."""
    if not text or len(text) > NUMBER_DIGITS_MAX or not text.isdigit():
        return otherwise
    return int(text)
