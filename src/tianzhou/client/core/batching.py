"""Batching: put messages that are sent one by one together into batches.

One batch is open for each kind of message: topic, queue if the message has one, and whether the
response waits for the disk. `OpenBatches` decides which batches are full; `aio.sender` sends them
and keeps the time.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from tianzhou.client.options import Batching
from tianzhou.record.batch import ENTRY_BYTES_MIN
from tianzhou.record.message import Message
from tianzhou.wire.queues import MessageQueue

Token = TypeVar("Token")

PROPERTIES_ADDED_BYTES = 48
"""Size of the unique id as a property."""


class Kind(NamedTuple):
    topic: str
    queue: MessageQueue | None
    wait_store_ok: bool


@dataclass(slots=True)
class Batch(Generic[Token]):
    kind: Kind
    messages: list[Message] = field(default_factory=list[Message])
    tokens: list[Token] = field(default_factory=list[Token])
    size: int = 0


def size_in_batch(message: Message) -> int:
    """Return an upper bound of the bytes that a message takes in a batch."""
    encoded = len(message.encode_properties())
    return ENTRY_BYTES_MIN + len(message.body) + encoded + PROPERTIES_ADDED_BYTES


class OpenBatches(Generic[Token]):
    """The batch of each kind that still accepts messages.

    Owner: the event loop of the producer.
    Invariant: no open batch is empty, has more messages than `count_max`, or is larger than
    `bytes_max` unless it has a single message.
    """

    def __init__(self, rules: Batching) -> None:
        self._rules = rules
        self._open: dict[Kind, Batch[Token]] = {}

    def accepts(self, message: Message) -> bool:
        """Whether a message may be in a batch at all."""
        return not message.is_delayed and size_in_batch(message) <= self._rules.bytes_max

    def add(self, kind: Kind, message: Message, token: Token) -> list[Batch[Token]]:
        """Add a message to the batch of its kind; return the batches that must be sent now."""
        size = size_in_batch(message)
        leaving: list[Batch[Token]] = []
        batch = self._open.get(kind)
        if batch is not None and batch.size + size > self._rules.bytes_max:
            leaving.append(batch)
            batch = None
        if batch is None:
            batch = self._open[kind] = Batch(kind)
        batch.messages.append(message)
        batch.tokens.append(token)
        batch.size += size
        if len(batch.messages) >= self._rules.count_max:
            leaving.append(self._open.pop(kind))
        return leaving

    def open_batch(self, kind: Kind) -> Batch[Token] | None:
        return self._open.get(kind)

    def take(self, kind: Kind) -> Batch[Token] | None:
        """Close and return the open batch of a kind."""
        return self._open.pop(kind, None)

    def take_all(self) -> Iterator[Batch[Token]]:
        while self._open:
            yield self._open.popitem()[1]
