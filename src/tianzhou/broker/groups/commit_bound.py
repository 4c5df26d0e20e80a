"""The bound of offsets that clients commit: no group can have read behind the end of a queue.

A value from elsewhere would make the group skip every message up to it, and the next start would
report a loss. Only a broker that writes its log knows the end: a slave may have offsets of messages
that it has yet to get, so it accepts them; see `accepted_offsets`. The end is that of assigned
offsets, because a commit may arrive before the message it is about is visible here again.
"""

from tianzhou.base.kinds import queue_key
from tianzhou.store.store import MessageStore


def end_if_beyond(store: MessageStore, topic: str, queue_id: int, offset: int) -> int | None:
    """Return the end of the queue if the offset lies behind it; None if it may be committed."""
    if not store.is_writing:
        return None
    end = store.assigned_end(queue_key(topic, queue_id))
    return end if offset > end else None
