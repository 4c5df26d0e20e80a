"""Store times of single messages, for reports about topics and groups."""

from tianzhou.base.kinds import QueueKey, QueueOffset
from tianzhou.record.message import MessageView
from tianzhou.store.protocols import QueueReader
from tianzhou.store.read import ReadLimit

_ONE = ReadLimit(count=1)


def store_time(store: QueueReader, key: QueueKey, offset: int) -> int | None:
    """Store time of the message at this offset; None if it does not exist, or no longer, or cannot
    be read yet: a report must not wait for it."""
    if offset < 0:
        return None
    with store.read(key, QueueOffset(offset), _ONE) as found:
        for span in found.spans:
            return MessageView(span).store_timestamp
    return None


def last_store_time(store: QueueReader, key: QueueKey) -> int | None:
    return store_time(store, key, store.max_offset(key) - 1)
