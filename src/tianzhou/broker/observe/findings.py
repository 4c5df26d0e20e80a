"""What the watchdog finds, in words: what stands still, since when, and what to do about it."""

import enum
from typing import Final

import msgspec

WHOLE_GROUP: Final = -1
"""Instead of a queue, where a finding is about all of them."""
TEXT_CHARS_MAX: Final = 256
"""Of what clients chose: ids and keys. A page or a log must not be filled by one of them."""


class Kind(enum.Enum):
    UNOWNED = "unowned"
    """The group has members, and none of them reads the queue."""
    NOT_PULLED = "not_pulled"
    """Its owner lives, and does not ask for more."""
    BLOCKED = "blocked"
    """The queue is read in order, and one message does not get done."""
    FROZEN = "frozen"
    """Its owner asks for more and confirms nothing, while messages come in."""
    SUBSCRIPTIONS_DIFFER = "subscriptions_differ"
    """Members want different things, so that each gets parts of what others want."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that stands still, or did until `ended_ms`."""

    kind: Kind
    group: str
    topic: str = ""
    queue_id: int = WHOLE_GROUP
    offset: int = 0
    """What the group has confirmed: the rank of the first message that waits."""
    waiting: int = 0
    """Messages, at the last look."""
    client_id: str = ""
    """Who has the queue, where anybody does."""
    message_id: str = ""
    keys: str = ""
    """Of the first message that waits."""
    since_ms: int
    """When it last moved, as far as the broker saw."""
    seen_ms: int
    """The last look at which it still stood."""
    ended_ms: int = 0

    @property
    def stood_s(self) -> int:
        return max(0, (self.ended_ms or self.seen_ms) - self.since_ms) // 1000

    @property
    def said(self) -> str:
        """One sentence."""
        return _SAID[self.kind].format(one=self)

    @property
    def mend(self) -> str:
        """What to do, with the command for it."""
        return _MEND[self.kind].format(one=self, behind=self.offset + 1)


_WHERE: Final = "queue {one.queue_id} of {one.topic}"
_SAID: Final = {
    Kind.UNOWNED: "group {one.group} has members, but for {one.stood_s} s nobody has read "
    + _WHERE
    + ", where {one.waiting} messages wait",
    Kind.NOT_PULLED: "{one.client_id} of group {one.group} has "
    + _WHERE
    + " and for {one.stood_s} s has neither confirmed nor asked for a message; {one.waiting} wait",
    Kind.BLOCKED: "group {one.group} reads "
    + _WHERE
    + " in order, and for {one.stood_s} s has not got beyond message {one.message_id} at offset "
    "{one.offset}; {one.waiting} wait",
    Kind.FROZEN: "{one.client_id} of group {one.group} reads "
    + _WHERE
    + ", but for {one.stood_s} s has confirmed nothing beyond offset {one.offset}, while its lag "
    "grew to {one.waiting}",
    Kind.SUBSCRIPTIONS_DIFFER: "for {one.stood_s} s members of group {one.group} have subscribed "
    "to different things, so that messages get lost",
}
_SKIP: Final = "tianzhou group reset {one.group} {one.topic} --queue {one.queue_id} --to-offset "
_MEND: Final = {
    Kind.UNOWNED: "start its consumers again; see who has what: tianzhou group show {one.group}",
    Kind.NOT_PULLED: "its listener may hang; look at it, or start it again: "
    "tianzhou group show {one.group}",
    Kind.BLOCKED: "look at the message: tianzhou message show {one.topic} {one.message_id}; "
    "to leave it out: " + _SKIP + "{behind}",
    Kind.FROZEN: "look at the message it stays at: "
    "tianzhou message show {one.topic} {one.message_id}; to leave it out: " + _SKIP + "{behind}",
    Kind.SUBSCRIPTIONS_DIFFER: "the same subscription for all members, or another group for some: "
    "tianzhou group show {one.group}",
}
