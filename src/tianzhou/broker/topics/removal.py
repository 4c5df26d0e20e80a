"""Removal of the state of a deleted topic: its queues, its groups' offsets, its statistics.

A broker without a Raft group removes them at once, and responds when the flush thread has recorded
the deletion: until then a crash could bring the topic back. In a Raft group the log contains the
record that deletes the topic, and every member, the leader included, removes what is older than
that record when the record is committed: a leader that is deposed before that has removed nothing.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.broker.groups.consumer_offsets import ConsumerOffsets
from tianzhou.broker.stats import Stats
from tianzhou.store.store import MessageStore

OnDurable = Callable[[str], None]
"""Called with the reason why a restart may undo the deletion; empty if it is durable."""


@dataclass(slots=True)
class TopicRemoval:
    """Owner: the broker loop."""

    store: MessageStore
    offsets: ConsumerOffsets
    stats: Stats
    settle: Callable[[], None]
    """Makes everything that was written visible and notifies its waiters."""
    is_replicated: bool = False
    """Whether a Raft group decides when a topic is removed."""
    pending: set[str] = field(default_factory=set[str])
    """Topics whose deletion is not committed yet. They can't be created again before that."""

    _waiting: deque[tuple[int, OnDurable]] = field(default_factory=deque[tuple[int, OnDurable]])

    def request(self, topic: str) -> None:
        """Remove the state of a topic: now, or once its deletion is committed."""
        if self.is_replicated:
            self.pending.add(topic)
        else:
            self.remove(topic)

    def remove(self, topic: str, *, before: PhysicalOffset | None = None) -> None:
        """Remove queues whose messages all precede this log offset, or all queues."""
        self.pending.discard(topic)
        # Other clients wait for messages sent meanwhile; notify them before the store drops the
        # queues.
        self.settle()
        self.offsets.remove_topic(topic)
        if self.is_replicated:
            self.offsets.save()
        else:
            self.offsets.save_later()  # queued before the deletion, so that it is on disk first
        self.store.delete_topic(topic, before=before)
        self.stats.topic_deleted(topic)

    def holds(self, on_durable: OnDurable) -> bool:
        """Whether `on_durable` is called later, once every deletion so far is durable."""
        removals = self.store.removals
        if removals.durable == removals.begun:
            return False
        self._waiting.append((removals.begun, on_durable))
        return True

    def release(self) -> None:
        """Call the callbacks of durable deletions, or all of them if the store failed."""
        removals, waiting = self.store.removals, self._waiting
        while waiting and waiting[0][0] <= removals.durable:
            waiting.popleft()[1]("")
        while waiting and self.store.is_broken:
            waiting.popleft()[1](self.store.broken_reason)
