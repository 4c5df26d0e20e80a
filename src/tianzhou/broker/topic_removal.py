"""What a deleted topic leaves behind: its queues, the offsets of its groups, its statistics.

A broker without a Raft group removes them at once. In a Raft group the record that deletes the
topic stands in the log, and every member, the leader included, removes what is older than that
record when the record is committed: a leader that is deposed before that has removed nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.broker.consumer_offsets import ConsumerOffsets
from tianzhou.broker.stats import Stats
from tianzhou.store.store import MessageStore


@dataclass(slots=True)
class TopicRemoval:
    """Owner: the broker loop."""

    store: MessageStore
    offsets: ConsumerOffsets
    stats: Stats
    settle: Callable[[], None]
    """Makes everything visible that was written, and tells who waits for it."""
    is_replicated: bool = False
    """Whether a Raft group says when a topic is removed."""
    pending: set[str] = field(default_factory=set[str])
    """Topics whose deletion is not committed yet. They can't be created again before that."""

    def request(self, topic: str) -> None:
        """Remove what is left of a topic: now, or once its deletion is committed."""
        if self.is_replicated:
            self.pending.add(topic)
        else:
            self.remove(topic)

    def remove(self, topic: str, *, before: PhysicalOffset | None = None) -> None:
        """Remove queues whose messages all stand before this place of the log, or all of them."""
        self.pending.discard(topic)
        # Others wait for what was sent meanwhile; they must hear of it before the store forgets.
        self.store.flush()
        self.settle()
        self.store.delete_topic(topic, before=before)
        self.offsets.remove_topic(topic)
        self.offsets.save()
        self.stats.topic_deleted(topic)
