"""Many messages to their queues in gathered batches, over plain blocking connections.

For programs that have rows by the thousand and no event loop, such as the tasks of a Spark job.
A queue has one batch on its way at most, so messages of one queue are stored in the order in which
they were added; other queues go on meanwhile.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tianzhou.base.java import string_hash
from tianzhou.base.kinds import Bytes
from tianzhou.client.core.routing import TopicRoute
from tianzhou.client.errors import ClientError, NoRoute, Retry, remote_error
from tianzhou.client.sync.brokers import Brokers
from tianzhou.client.sync.connection import BlockingConnection, Request
from tianzhou.record.batch import HEAD
from tianzhou.record.layout import INT16
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.names import DEFAULT_TOPIC
from tianzhou.wire.queues import MessageQueue

BATCH_BYTES: Final = 1024 * 1024
"""A quarter of what a broker takes: large enough that a request costs nothing per message."""
BATCH_MESSAGES: Final = 4_096
IN_FLIGHT_MAX: Final = 4

_STORED: Final = (
    ResponseCode.SUCCESS,
    # Stored all the same; what was not reached is a second disk or machine.
    ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)  # fmt: skip


class Entry(NamedTuple):
    """One message: its body, and its property string."""

    body: Bytes
    properties: bytes


@dataclass(slots=True)
class _Gathered:
    """Messages that will go together. `queue` is None while any queue will do."""

    topic: str
    queue: MessageQueue | None
    is_alone: bool = False
    """A delayed message, which brokers take only by itself."""
    entries: list[Entry] = field(default_factory=list[Entry])
    keys: list[str] = field(default_factory=list[str])
    """The sharding key of each entry, if the batch has a queue."""
    size: int = 0

    def keep(self, entries: Sequence[Entry]) -> None:
        """Keep only these entries; the others are stored."""
        kept = set(map(id, entries))
        if self.keys:
            pairs = zip(self.entries, self.keys, strict=True)
            self.keys = [key for entry, key in pairs if id(entry) in kept]
        self.entries = [entry for entry in self.entries if id(entry) in kept]


class _Sent(NamedTuple):
    connection: BlockingConnection
    number: int
    gathered: _Gathered


Unsure = Callable[[MessageQueue, Sequence[Entry]], Sequence[Entry]]
"""Told of messages that may or may not have been stored, which of them must be sent again."""


class BatchSender:
    """Owner: one thread. What was added is stored when `flush` has returned."""

    def __init__(
        self, brokers: Brokers, group: str, *, first_turn: int = 0, unsure: Unsure | None = None
    ) -> None:
        """`first_turn` differs between programs that begin together, so that they begin with
        different queues."""
        self._brokers = brokers
        self._group = group
        self._unsure = unsure
        self._open: dict[tuple[str, MessageQueue | None], _Gathered] = {}
        self._sent: dict[MessageQueue, _Sent] = {}
        self._first_turn = first_turn
        self._turns: dict[str, int] = {}
        self._queues: dict[str, Sequence[MessageQueue]] = {}
        """For each topic, the queues among which keys were last distributed."""

    def add(self, topic: str, entry: Entry, sharding_key: str | None = None) -> None:
        """One message to a queue that its key decides, or to any."""
        queue = None if sharding_key is None else self._queue_of_next(topic, sharding_key)
        gathered = self._open.get((topic, queue))
        if gathered is None:
            gathered = self._open[topic, queue] = _Gathered(topic, queue)
        size = HEAD.size + len(entry.body) + INT16.size + len(entry.properties)
        full = gathered.size + size > BATCH_BYTES or len(gathered.entries) >= BATCH_MESSAGES
        if full and gathered.entries:
            self._dispatch(gathered)
            gathered = self._open[topic, queue] = _Gathered(topic, queue)
        gathered.entries.append(entry)
        if sharding_key is not None:
            gathered.keys.append(sharding_key)
        gathered.size += size

    def add_alone(self, topic: str, entry: Entry, sharding_key: str | None = None) -> None:
        """A message that is to be delivered later."""
        queue = None if sharding_key is None else self._queue_of_next(topic, sharding_key)
        keys = [] if sharding_key is None else [sharding_key]
        self._dispatch(_Gathered(topic, queue, is_alone=True, entries=[entry], keys=keys))

    def flush(self) -> None:
        """Send what is gathered, and wait until everything is stored."""
        for gathered in list(self._open.values()):
            self._dispatch(gathered)
        self._open.clear()
        while self._sent:
            self._await(next(iter(self._sent)))

    # Queues

    def _route(self, topic: str) -> TopicRoute:
        route = self._brokers.publish_route(topic)
        if not route.write_queues:
            raise NoRoute(f"topic {topic} has no queue that can be written to")
        return route

    def _queue_of_next(self, topic: str, key: str) -> MessageQueue:
        """The queue of a message that is being added. If keys map to other queues than before, all
        earlier messages are stored first, so that messages of one key stay in order."""
        queues = self._route(topic).write_queues
        while queues != self._queues.setdefault(topic, queues):
            self._queues[topic] = queues
            self.flush()
            queues = self._route(topic).write_queues  # may have changed during the flush
        return queues[abs(string_hash(key)) % len(queues)]

    def _queue_by_key(self, topic: str, key: str) -> MessageQueue:
        queues = self._route(topic).write_queues
        return queues[abs(string_hash(key)) % len(queues)]

    def _next_queue(self, topic: str) -> MessageQueue:
        """In turn, and first one that nothing is on its way to."""
        queues = self._route(topic).write_queues
        turn = self._turns.get(topic, self._first_turn - 1) + 1
        self._turns[topic] = turn
        rotated = [queues[(turn + n) % len(queues)] for n in range(len(queues))]
        return next((queue for queue in rotated if queue not in self._sent), rotated[0])

    # Sending

    def _dispatch(self, gathered: _Gathered) -> None:
        queue = gathered.queue or self._next_queue(gathered.topic)
        if queue in self._sent:
            self._await(queue)
        while len(self._sent) >= IN_FLIGHT_MAX:
            self._await(next(iter(self._sent)))
        try:
            connection = self._brokers.connection(self._address(queue))
            number = connection.send(self._request(queue, gathered))
        except ClientError as error:
            if error.retry is Retry.NEVER:
                raise
            self._store(queue, gathered, in_doubt=True)
        else:
            self._sent[queue] = _Sent(connection, number, gathered)

    def _address(self, queue: MessageQueue) -> str:
        address = self._route(queue.topic).address(queue.broker_name)
        if address is None:
            raise NoRoute(f"broker {queue.broker_name} of topic {queue.topic} has no master")
        return address

    def _request(self, queue: MessageQueue, gathered: _Gathered) -> Request:
        first = gathered.entries[0]
        ext = {
            "a": self._group, "b": queue.topic, "c": DEFAULT_TOPIC, "d": "4",
            "e": str(queue.queue_id), "f": "0", "g": str(time.time_ns() // 1_000_000), "h": "0",
            "i": first.properties.decode() if gathered.is_alone else "",
            "j": "0", "k": "false", "m": "false" if gathered.is_alone else "true",
        }  # fmt: skip
        if gathered.is_alone:
            return Request(RequestCode.SEND_MESSAGE_V2, ext, first.body)
        return Request(RequestCode.SEND_BATCH_MESSAGE, ext, _batch_body(gathered.entries))

    def _await(self, queue: MessageQueue) -> None:
        """Wait for the response of the request in flight to this queue; resend it if there is
        none."""
        sent = self._sent[queue]
        try:
            header, _ = sent.connection.receive(sent.number)
        except ClientError:
            self._recover(sent.connection)
            return
        del self._sent[queue]
        if header.code not in _STORED:
            error = remote_error(sent.connection.address, header.code, header.remark)
            if error.retry is Retry.NEVER:
                raise error
            self._store(queue, sent.gathered, in_doubt=False)

    def _recover(self, connection: BlockingConnection) -> None:
        """Handle a lost connection: its requests in flight may or may not have been stored."""
        self._brokers.drop(connection.address)
        lost = [queue for queue, sent in self._sent.items() if sent.connection is connection]
        for queue, gathered in [(queue, self._sent.pop(queue).gathered) for queue in lost]:
            self._store(queue, gathered, in_doubt=True)

    def _store(self, queue: MessageQueue, gathered: _Gathered, *, in_doubt: bool) -> None:
        """Send and wait, with patience: elsewhere, unless the messages belong to this queue."""
        target = queue

        def attempt() -> None:
            nonlocal in_doubt
            if in_doubt and self._unsure is not None:
                gathered.keep(self._unsure(target, gathered.entries))
            in_doubt = False
            if self._is_moved(gathered):
                self._store_by_key(gathered)
            if not gathered.entries:
                return
            connection = self._brokers.connection(self._address(target))
            in_doubt = True
            header, _ = connection.call(self._request(target, gathered))
            in_doubt = False
            if header.code not in _STORED:
                raise remote_error(connection.address, header.code, header.remark)

        def failed() -> None:
            nonlocal target
            address = self._route(target.topic).address(target.broker_name)
            if address is not None:
                self._brokers.drop(address)
            self._brokers.forget(target.topic)
            # What must not be doubled has to be looked for where it may be.
            if gathered.queue is None and not (in_doubt and self._unsure is not None):
                target = self._next_queue(target.topic)

        self._brokers.persist(attempt, on_failure=failed)

    def _is_moved(self, gathered: _Gathered) -> bool:
        """Whether the queue of these keys no longer accepts messages while others do, because its
        broker is being drained. Messages in doubt have already been searched for there."""
        return (
            gathered.queue is not None
            and gathered.queue not in self._route(gathered.topic).write_queues
        )

    def _store_by_key(self, gathered: _Gathered) -> None:
        """Store each message in the current queue of its key, in order; stored messages leave the
        batch."""
        while gathered.entries:
            queue = self._queue_by_key(gathered.topic, gathered.keys[0])
            count = next(
                (n for n, key in enumerate(gathered.keys)
                 if self._queue_by_key(gathered.topic, key) != queue),
                len(gathered.keys),
            )  # fmt: skip
            part = _Gathered(
                gathered.topic, queue, gathered.is_alone, gathered.entries[:count],
                gathered.keys[:count],
            )  # fmt: skip
            self._store(queue, part, in_doubt=False)
            del gathered.entries[:count], gathered.keys[:count]


def _batch_body(entries: Sequence[Entry]) -> bytes:
    parts: list[Bytes] = []
    pack_head, pack_size, fixed = HEAD.pack, INT16.pack, HEAD.size + INT16.size
    for body, properties in entries:
        body_size, size = len(body), len(properties)
        parts += (
            pack_head(fixed + body_size + size, 0, 0, 0, body_size), body, pack_size(size),
            properties,
        )  # fmt: skip
    return b"".join(parts)
