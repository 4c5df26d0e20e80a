"""Stored messages that wait in a queue of the broker: timed, delayed, undecided, parked. They are
listed, and stored again in another queue: delivered, retried, committed."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from tianzhou.base.kinds import QueueKey, QueueOffset
from tianzhou.broker.writing.incoming import Incoming, number_of
from tianzhou.net.rpc import RequestRejected
from tianzhou.record import flags, properties
from tianzhou.record import names as keys
from tianzhou.record.errors import RecordDamaged
from tianzhou.record.layout import AT_BORN_HOST, HOST_BYTES_V4, HOST_BYTES_V6, INT32
from tianzhou.record.message import MessageView
from tianzhou.store.protocols import QueueReader
from tianzhou.store.read import ReadLimit, ReadResult, ReadStatus
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire._generated_headers_admin import ListWaitingRequest

_ONE: Final = ReadLimit(count=1)
LISTED_MAX: Final = 1_000
"""Waiting messages in one response; each is read from the log."""
READS_MAX: Final = 4_096
"""Waiting messages that are read for one response, if few belong to the requested topic."""


class Stored(NamedTuple):
    """One record. Valid until: the read it came from is released."""

    data: memoryview
    view: MessageView
    properties: bytes
    """A copy, because they are searched several times."""

    def get(self, name: bytes) -> bytes | None:
        return properties.find(self.properties, name)

    def number(self, name: bytes, otherwise: int) -> int:
        """A property that should be a number."""
        return number_of(self.get(name), otherwise)

    @property
    def real_topic(self) -> str:
        """The topic that its sender named; empty if the message waits in no other topic."""
        return (self.get(keys.REAL_TOPIC) or b"").decode("utf-8", "replace")

    def to_incoming(self) -> Incoming:
        """The message to be stored again, without the checksum of this record."""
        view = self.view
        host_size = HOST_BYTES_V6 if view.sys_flag & flags.BORN_HOST_V6 else HOST_BYTES_V4
        return Incoming(
            view.topic,
            view.queue_id,
            view.stored_body,
            properties.without(self.properties, keys.RECORD_CRC),
            view.flag,
            view.sys_flag & ~flags.LAYOUT_MASK,
            view.born_timestamp,
            bytes(self.data[AT_BORN_HOST : AT_BORN_HOST + host_size]),
            view.reconsume_times,
            view.prepared_offset,
        )

    def destination(self) -> Incoming | None:
        """The message for its real topic and queue; None if its properties do not name them.

        The properties stay as they are, REAL_TOPIC and DELAY included, as in RocketMQ.
        """
        topic, queue_id = self.get(keys.REAL_TOPIC), self.number(keys.REAL_QUEUE_ID, -1)
        if topic is None or not 0 <= queue_id < 1 << 31:
            return None
        return self.to_incoming()._replace(
            topic=topic.decode("utf-8", "replace"), queue_id=queue_id
        )


def records(found: ReadResult) -> Iterator[Stored]:
    """The records of a result. Damaged ones are skipped, so that they do not block the others."""
    for span in found.spans:
        at = 0
        while at < len(span):
            size: int = INT32.unpack_from(span, at)[0]
            data = span[at : at + size]
            at += size
            try:
                view = MessageView(data)
            except RecordDamaged:
                continue
            yield Stored(data, view, view.stored_properties)


def require_ready(found: ReadResult) -> ReadResult:
    """Return the result of a read for a request. Raises RequestRejected if it is not ready: unlike
    a pull, such a request does not wait, and its client may repeat it."""
    if found.status is ReadStatus.NOT_READY:
        raise RequestRejected(
            ResponseCode.SYSTEM_BUSY, "the message is being fetched from storage; retry in a second"
        )
    return found


def at_offset(store: QueueReader, key: QueueKey, offset: int) -> tuple[ReadResult, Stored | None]:
    """Read one message of a queue. It is None if it has expired, is damaged, or is not ready (see
    the status of the result). The caller releases the result."""
    found = store.read(key, QueueOffset(offset), _ONE)
    return found, next(records(found), None) if found.count else None


def read_waiting(store: QueueReader, queue: QueueKey, offsets: Iterable[int]) -> Iterator[Stored]:
    """The messages at these offsets, for a list; those that cannot be found are left out."""
    for offset in islice(offsets, READS_MAX):
        found, stored = at_offset(store, queue, offset)
        with require_ready(found):
            if stored is not None:
                yield stored


def listed_count(asked: ListWaitingRequest) -> int:
    """How many waiting messages to list. Raises RequestRejected."""
    if asked.count < 1:
        raise RequestRejected(
            ResponseCode.INVALID_PARAMETER, f"count must be at least 1, got {asked.count}"
        )
    return min(asked.count, LISTED_MAX)
