"""Messages that are in the store already and go on from there: delayed, retried, committed."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from tianzhou.base.kinds import QueueKey, QueueOffset
from tianzhou.broker.writing.incoming import Incoming, number_of
from tianzhou.record import flags, properties
from tianzhou.record import names as keys
from tianzhou.record.errors import RecordDamaged
from tianzhou.record.layout import AT_BORN_HOST, HOST_BYTES_V4, HOST_BYTES_V6, INT32
from tianzhou.record.message import MessageView
from tianzhou.store.read import ReadLimit, ReadResult
from tianzhou.store.store import MessageStore

_ONE: Final = ReadLimit(count=1)


class Stored(NamedTuple):
    """One record. Valid until: the read it came from is released."""

    data: memoryview
    view: MessageView
    properties: bytes
    """Looked at several times, so they are copied once."""

    def get(self, name: bytes) -> bytes | None:
        return properties.find(self.properties, name)

    def number(self, name: bytes, otherwise: int) -> int:
        """A property that should be a number."""
        return number_of(self.get(name), otherwise)

    def to_incoming(self) -> Incoming:
        """The same message, ready to be stored once more. Its checksum was of its first life."""
        view = self.view
        host_size = HOST_BYTES_V6 if view.sys_flag & flags.BORN_HOST_V6 else HOST_BYTES_V4
        return Incoming(
            view.topic, view.queue_id, view.stored_body,
            properties.without(self.properties, keys.RECORD_CRC), view.flag,
            view.sys_flag & ~flags.LAYOUT_MASK, view.born_timestamp,
            bytes(self.data[AT_BORN_HOST : AT_BORN_HOST + host_size]),
            view.reconsume_times, view.prepared_offset,
        )  # fmt: skip

    def meant(self) -> Incoming | None:
        """The message at the place it is meant for; None when its properties name none.

        The properties stay as they are, REAL_TOPIC and DELAY included, as in RocketMQ.
        """
        topic, queue_id = self.get(keys.REAL_TOPIC), self.number(keys.REAL_QUEUE_ID, -1)
        if topic is None or not 0 <= queue_id < 1 << 31:
            return None
        return self.to_incoming()._replace(
            topic=topic.decode("utf-8", "replace"), queue_id=queue_id
        )


def records(found: ReadResult) -> Iterator[Stored]:
    """What was read, one by one. A damaged record is passed over: the others must not wait."""
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


def at_offset(store: MessageStore, key: QueueKey, offset: int) -> tuple[ReadResult, Stored | None]:
    """One message of a queue; None when it expired or is damaged. Release the result."""
    found = store.read(key, QueueOffset(offset), _ONE)
    return found, next(records(found), None) if found.count else None
