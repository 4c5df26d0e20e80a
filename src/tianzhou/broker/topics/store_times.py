"""When single messages of a queue were stored: what reports about topics and groups show."""

from tianzhou.base.kinds import QueueKey, QueueOffset
from tianzhou.record.message import MessageView
from tianzhou.store.read import ReadLimit
from tianzhou.store.store import MessageStore

_ONE = ReadLimit(count=1)


def store_time(store: MessageStore, key: QueueKey, offset: int) -> int | None:
    """Store time of the message at this rank; None if it is not, or no longer, there."""
    if offset < 0:
        return None
    with store.read(key, QueueOffset(offset), _ONE) as found:
        for span in found.spans:
            return MessageView(span).store_timestamp
    return None


def last_store_time(store: MessageStore, key: QueueKey) -> int | None:
    return store_time(store, key, store.max_offset(key) - 1)
