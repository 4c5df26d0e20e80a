"""Findings of the watchdog: which queue or group makes no progress, since when, and what to do."""

import enum
from typing import Final

import msgspec

WHOLE_GROUP: Final = -1
"""Queue id of a finding about all queues of a group."""
TEXT_CHARS_MAX: Final = 256
"""Length of texts that clients choose, such as ids and keys, so that one of them cannot fill a page
or the log."""


class Kind(enum.Enum):
    UNOWNED = "unowned"
    """The group has members, and none of them reads the queue."""
    NOT_PULLED = "not_pulled"
    """The owner of the queue is connected and does not pull."""
    BLOCKED = "blocked"
    """The queue is consumed in order, and one message is not completed."""
    FROZEN = "frozen"
    """The owner pulls and commits nothing, while messages arrive."""
    SUBSCRIPTIONS_DIFFER = "subscriptions_differ"
    """Members have different subscriptions, so that each gets messages meant for others."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A queue or group without progress, until `ended_ms` if that is set."""

    kind: Kind
    group: str
    topic: str = ""
    queue_id: int = WHOLE_GROUP
    offset: int = 0
    """The committed offset: that of the first waiting message."""
    waiting: int = 0
    """Waiting messages at the last check."""
    client_id: str = ""
    """The owner of the queue; empty if there is none."""
    message_id: str = ""
    keys: str = ""
    """Of the first waiting message."""
    since_ms: int
    """When the group last made progress, as far as the broker knows."""
    seen_ms: int
    """The last check that found it without progress."""
    ended_ms: int = 0

    @property
    def stuck_s(self) -> int:
        """How long there has been no progress."""
        return max(0, (self.ended_ms or self.seen_ms) - self.since_ms) // 1000

    @property
    def text(self) -> str:
        """The finding as one sentence."""
        return _TEXTS[self.kind].format(it=self)

    @property
    def remedy(self) -> str:
        """What to do about it, with the command."""
        return _REMEDIES[self.kind].format(it=self, behind=self.offset + 1)


_WHERE: Final = "queue {it.queue_id} of {it.topic}"
_TEXTS: Final = {
    Kind.UNOWNED: "group {it.group} has members, but for {it.stuck_s} s no member has read "
    + _WHERE
    + ", where {it.waiting} messages wait",
    Kind.NOT_PULLED: "{it.client_id} of group {it.group} has "
    + _WHERE
    + " and for {it.stuck_s} s has neither committed nor pulled; {it.waiting} messages wait",
    Kind.BLOCKED: "group {it.group} reads "
    + _WHERE
    + " in order, and for {it.stuck_s} s has not got beyond message {it.message_id} at offset "
    "{it.offset}; {it.waiting} messages wait",
    Kind.FROZEN: "{it.client_id} of group {it.group} reads "
    + _WHERE
    + ", but for {it.stuck_s} s has committed nothing beyond offset {it.offset}, while its lag "
    "grew to {it.waiting}",
    Kind.SUBSCRIPTIONS_DIFFER: "for {it.stuck_s} s members of group {it.group} have had different "
    "subscriptions, so that messages get lost",
}
_SKIP: Final = "tianzhou group reset {it.group} {it.topic} --queue {it.queue_id} --to-offset "
_REMEDIES: Final = {
    Kind.UNOWNED: "restart its consumers; to list its members: tianzhou group show {it.group}",
    Kind.NOT_PULLED: "its listener may hang; check the client, or restart it: "
    "tianzhou group show {it.group}",
    Kind.BLOCKED: "inspect the message: tianzhou message show {it.topic} {it.message_id}; "
    "to skip it: " + _SKIP + "{behind}",
    Kind.FROZEN: "inspect the first waiting message: "
    "tianzhou message show {it.topic} {it.message_id}; to skip it: " + _SKIP + "{behind}",
    Kind.SUBSCRIPTIONS_DIFFER: "use the same subscription in all members, or another group for "
    "some: tianzhou group show {it.group}",
}
