"""Send many messages in batches, over blocking connections.

For programs with thousands of rows and no event loop, such as the tasks of a Spark job. Each queue
has at most one batch in flight, so messages of one queue are stored in the order in which they were
added; several queues are written at the same time.

Which queue a key belongs to, the header fields, the batch encoding and which responses mean
"stored" come from `client.core`, as for the other producers.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tianzhou.client.bulk.brokers import Brokers
from tianzhou.client.core.routing import DEFAULT_TOPIC_QUEUES, TopicRoute, queue_for_key
from tianzhou.client.core.send_request import (
    Entry,
    SendFields,
    SendRequest,
    encode_entries,
    is_stored,
)
from tianzhou.client.errors import ClientError, NoRoute, Retry, remote_error
from tianzhou.client.transport.blocking import BlockingConnection, Request
from tianzhou.record.batch import HEAD
from tianzhou.record.layout import INT16
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.names import DEFAULT_TOPIC
from tianzhou.wire.queues import MessageQueue

__all__ = ["BatchSender", "Entry"]

BATCH_BYTES: Final = 1024 * 1024
"""A quarter of a broker's limit: large enough that the cost of a request hardly counts."""
BATCH_MESSAGES: Final = 4_096
IN_FLIGHT_MAX: Final = 4


@dataclass(slots=True)
class _Batch:
    """Messages of one request. `queue` is None if any queue may store them."""

    topic: str
    queue: MessageQueue | None
    is_alone: bool = False
    """Whether it is a delayed message, which brokers do not accept in a batch."""
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
    batch: _Batch


Unsure = Callable[[MessageQueue, Sequence[Entry]], Sequence[Entry]]
"""Gets messages that may or may not be stored; returns those that must be sent again."""


class BatchSender:
    """Send messages in batches. Messages are stored when `flush` has returned.

    Owner: one thread.
    """

    def __init__(
        self, brokers: Brokers, group: str, *, first_turn: int = 0, unsure: Unsure | None = None
    ) -> None:
        """`first_turn` is the index of the first queue; let it differ between programs that start
        together. `unsure` finds out which messages of a lost request were stored."""
        self._brokers = brokers
        self._fields = SendFields(group, DEFAULT_TOPIC, DEFAULT_TOPIC_QUEUES)
        self._unsure = unsure
        self._open: dict[tuple[str, MessageQueue | None], _Batch] = {}
        self._sent: dict[MessageQueue, _Sent] = {}
        self._first_turn = first_turn
        self._turns: dict[str, int] = {}
        self._queues: dict[str, Sequence[MessageQueue]] = {}
        """For each topic, the queues among which keys were last distributed."""

    def add(self, topic: str, entry: Entry, sharding_key: str | None = None) -> None:
        """Add a message for the queue of its key, or for any queue."""
        queue = None if sharding_key is None else self._queue_of_next(topic, sharding_key)
        batch = self._open.get((topic, queue))
        if batch is None:
            batch = self._open[topic, queue] = _Batch(topic, queue)
        size = HEAD.size + len(entry.body) + INT16.size + len(entry.properties)
        full = batch.size + size > BATCH_BYTES or len(batch.entries) >= BATCH_MESSAGES
        if full and batch.entries:
            self._dispatch(batch)
            batch = self._open[topic, queue] = _Batch(topic, queue)
        batch.entries.append(entry)
        if sharding_key is not None:
            batch.keys.append(sharding_key)
        batch.size += size

    def add_alone(self, topic: str, entry: Entry, sharding_key: str | None = None) -> None:
        """Add a delayed message."""
        queue = None if sharding_key is None else self._queue_of_next(topic, sharding_key)
        keys = [] if sharding_key is None else [sharding_key]
        self._dispatch(_Batch(topic, queue, is_alone=True, entries=[entry], keys=keys))

    def flush(self) -> None:
        """Send all open batches, and wait until everything is stored."""
        for batch in list(self._open.values()):
            self._dispatch(batch)
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
        return queue_for_key(queues, key)

    def _queue_by_key(self, topic: str, key: str) -> MessageQueue:
        queues = self._route(topic).write_queues
        return queue_for_key(queues, key)

    def _next_queue(self, topic: str) -> MessageQueue:
        """Return the next queue in turn, preferably one without a request in flight."""
        queues = self._route(topic).write_queues
        turn = self._turns.get(topic, self._first_turn - 1) + 1
        self._turns[topic] = turn
        rotated = [queues[(turn + n) % len(queues)] for n in range(len(queues))]
        return next((queue for queue in rotated if queue not in self._sent), rotated[0])

    # Sending

    def _dispatch(self, batch: _Batch) -> None:
        queue = batch.queue or self._next_queue(batch.topic)
        if queue in self._sent:
            self._await(queue)
        while len(self._sent) >= IN_FLIGHT_MAX:
            self._await(next(iter(self._sent)))
        try:
            connection = self._brokers.connection(self._address(queue))
            number = connection.send(self._request(queue, batch))
        except ClientError as error:
            if error.retry is Retry.NEVER:
                raise
            self._store(queue, batch, in_doubt=True)
        else:
            self._sent[queue] = _Sent(connection, number, batch)

    def _address(self, queue: MessageQueue) -> str:
        address = self._route(queue.topic).address(queue.broker_name)
        if address is None:
            raise NoRoute(f"broker {queue.broker_name} of topic {queue.topic} has no master")
        return address

    def _request(self, queue: MessageQueue, batch: _Batch) -> Request:
        if batch.is_alone:
            body, properties = batch.entries[0]
            request = SendRequest(
                topic=queue.topic, body=body, properties=properties.decode(), message_ids=()
            )
        else:
            request = SendRequest(
                topic=queue.topic,
                code=RequestCode.SEND_BATCH_MESSAGE,
                body=encode_entries(batch.entries),
                properties="",
                message_ids=(),
            )
        ext = self._fields.ext(request, queue, time.time_ns() // 1_000_000)
        return Request(request.code, ext, request.body)

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
        if not is_stored(header.code):
            error = remote_error(sent.connection.address, header.code, header.remark)
            if error.retry is Retry.NEVER:
                raise error
            self._store(queue, sent.batch, in_doubt=False)

    def _recover(self, connection: BlockingConnection) -> None:
        """Handle a lost connection: its requests in flight may or may not have been stored."""
        self._brokers.drop(connection.address)
        lost = [queue for queue, sent in self._sent.items() if sent.connection is connection]
        for queue, batch in [(queue, self._sent.pop(queue).batch) for queue in lost]:
            self._store(queue, batch, in_doubt=True)

    def _store(self, queue: MessageQueue, batch: _Batch, *, in_doubt: bool) -> None:
        """Send a batch and wait, with retries: to other queues, unless its keys need this one."""
        target = queue

        def attempt() -> None:
            nonlocal in_doubt
            if in_doubt and self._unsure is not None:
                batch.keep(self._unsure(target, batch.entries))
            in_doubt = False
            if self._is_moved(batch):
                self._store_by_key(batch)
            if not batch.entries:
                return
            connection = self._brokers.connection(self._address(target))
            in_doubt = True
            header, _ = connection.call(self._request(target, batch))
            in_doubt = False
            if not is_stored(header.code):
                raise remote_error(connection.address, header.code, header.remark)

        def failed() -> None:
            nonlocal target
            address = self._route(target.topic).address(target.broker_name)
            if address is not None:
                self._brokers.drop(address)
            self._brokers.forget(target.topic)
            # Messages in doubt must be searched for in the queue that may have stored them.
            if batch.queue is None and not (in_doubt and self._unsure is not None):
                target = self._next_queue(target.topic)

        self._brokers.persist(attempt, on_failure=failed)

    def _is_moved(self, batch: _Batch) -> bool:
        """Whether the queue of these keys no longer accepts messages while others do, because its
        broker is being drained. Messages in doubt have already been searched for there."""
        return batch.queue is not None and batch.queue not in self._route(batch.topic).write_queues

    def _store_by_key(self, batch: _Batch) -> None:
        """Store each message in the current queue of its key, in order; stored messages leave the
        batch."""
        while batch.entries:
            queue = self._queue_by_key(batch.topic, batch.keys[0])
            count = next(
                (
                    n
                    for n, key in enumerate(batch.keys)
                    if self._queue_by_key(batch.topic, key) != queue
                ),
                len(batch.keys),
            )
            part = _Batch(
                batch.topic,
                queue,
                batch.is_alone,
                batch.entries[:count],
                batch.keys[:count],
            )
            self._store(queue, part, in_doubt=False)
            del batch.entries[:count], batch.keys[:count]
