"""A simple reference model of a store: one list of messages, and what follows from it."""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tianzhou.base.java import string_hash
from tianzhou.base.kinds import QueueKey, queue_key
from tianzhou.record.chunk import Entry
from tianzhou.record.light_queues import with_room

TOPICS: Final = ("orders", "payments")
QUEUES: Final = tuple(queue_key(topic, number) for topic in TOPICS for number in range(2))
LIGHT: Final = (queue_key("%LMQ%a", 0), queue_key("%LMQ%b", 0))
TAGS: Final = ("", "beijing", "shanghai")
KEYS: Final = ("K0", "K1", "K2", "K3")
FILE_BYTES: Final = 8192
HOUR_MS: Final = 3_600_000


@dataclass(slots=True)
class Sent:
    """A message in one queue; a message in light queues is several of these."""

    queue: QueueKey
    queue_offset: int
    physical_offset: int
    size: int
    stored_ms: int
    body: bytes
    tag: str
    key: str

    @property
    def end(self) -> int:
        return self.physical_offset + self.size


class Shape(NamedTuple):
    """The values that a rule draws for one message."""

    queue: int
    tag: int
    key: int
    padding: int
    light: int = 0
    """Which light queues contain it too: one bit for each."""

    @property
    def light_queues(self) -> list[QueueKey]:
        return [queue for rank, queue in enumerate(LIGHT) if self.light >> rank & 1]


def entry_of(shape: Shape, serial: int) -> Entry:
    tag, key = TAGS[shape.tag], KEYS[shape.key]
    properties = f"KEYS\x01{key}\x02UNIQ_KEY\x01U{serial:06d}\x02"
    if tag:
        properties += f"TAGS\x01{tag}\x02"
    body = b"%06d" % serial + b"." * shape.padding
    text, light = properties.encode(), [queue.topic.encode() for queue in shape.light_queues]
    return Entry(QUEUES[shape.queue], body, with_room(text, light) if light else text)


@dataclass(slots=True)
class Row:
    """One queue: the messages from offset `first` on, None where one is missing."""

    first: int
    messages: list[Sent | None] = field(default_factory=list["Sent | None"])

    @property
    def end(self) -> int:
        return self.first + len(self.messages)

    def put(self, sent: Sent) -> None:
        """Add a message as the log has it: a repeated offset means that the topic is a new one."""
        rank = sent.queue_offset
        if rank < self.end:
            del self.messages[max(0, rank - self.first) :]
        if not self.messages:
            self.first = rank
        self.messages += [None] * (rank - self.end)
        self.messages.append(sent)

    def minimum(self, log_min: int) -> int:
        for rank, sent in enumerate(self.messages, self.first):
            if sent is not None and sent.physical_offset >= log_min:
                return rank
        return self.end


class Expected(NamedTuple):
    bodies: list[bytes]
    next_offset: int


def read(row: Row, start: int, count: int, size: int, tags: set[str] | None) -> Expected:
    """Compute what a read must return, unit by unit."""
    units = row.messages[start - row.first :][:800]
    bodies: list[bytes] = []
    total = taken = 0
    for scanned, sent in enumerate(units):
        if tags is None and scanned == count:
            return Expected(bodies, start + scanned)
        if sent is None or (tags is not None and sent.tag not in tags):
            continue
        total += sent.size
        if total > size and taken:
            # Without a filter the read stops here; with one it stops after the last match.
            return Expected(bodies, start + (scanned if tags is None else taken))
        bodies.append(sent.body)
        taken = scanned + 1
        if tags is not None and len(bodies) == count:
            return Expected(bodies, start + taken)
    return Expected(bodies, start + len(units))


def tags_codes(tags: set[str]) -> set[int]:
    return {string_hash(tag) for tag in tags}


@dataclass(slots=True)
class Model:
    log: list[Sent] = field(default_factory=list[Sent])
    rows: dict[QueueKey, Row] = field(default_factory=dict[QueueKey, Row])
    pending: list[Sent] = field(default_factory=list[Sent])
    """Appended, but not visible yet."""
    next_offsets: dict[QueueKey, int] = field(default_factory=dict[QueueKey, int])
    deleted: dict[str, int] = field(default_factory=dict[str, int])
    """The end of the log when a topic was last deleted: its earlier messages are deleted."""
    log_min: int = 0
    end: int = 0

    def append(self, sent: list[Sent]) -> None:
        self.log += sent
        self.pending += sent
        self.end = sent[-1].end
        for message in sent:
            self.next_offsets[message.queue] = message.queue_offset + 1

    def show(self, limit: int) -> None:
        """Make messages visible that end at or below the limit."""
        while self.pending and self.pending[0].end <= limit:
            sent = self.pending.pop(0)
            self.rows.setdefault(sent.queue, Row(sent.queue_offset)).put(sent)

    def delete_topic(self, topic: str) -> None:
        self.deleted[topic] = self.end
        self.pending = [sent for sent in self.pending if sent.queue.topic != topic]
        for table in (self.rows, self.next_offsets):
            for key in [key for key in table if key.topic == topic]:
                del table[key]

    def is_deleted(self, sent: Sent) -> bool:
        return sent.physical_offset < self.deleted.get(sent.queue.topic, 0)

    def expire(self, now_ms: int, settled: int) -> None:
        """Delete whole files, oldest first, when the first message after them is an hour old."""
        while True:
            next_file = self.log_min + FILE_BYTES
            behind = [sent for sent in self.log if sent.physical_offset >= next_file]
            if not behind or now_ms - behind[0].stored_ms < HOUR_MS or next_file > settled:
                return
            self.log_min = next_file
            self.log = behind

    def rebuild(self) -> None:
        """Derive every row from the log again. Rows without records in the log keep their end."""
        ends = {key: row.end for key, row in self.rows.items()}
        self.rows.clear()
        self.pending = [sent for sent in self.log if not self.is_deleted(sent)]
        self.show(self.end)
        for key, end in ends.items():
            self.rows.setdefault(key, Row(end))
        self.next_offsets = {key: row.end for key, row in self.rows.items()}
