"""Dead letters: messages that a group could not consume, to be inspected and replayed."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from tianzhou.base.errors import UsageError
from tianzhou.client.admin.calls import AdminCalls
from tianzhou.client.admin.offsets import Offsets
from tianzhou.client.admin.topics import Topics
from tianzhou.client.core.admin_results import DeadLetters, Replay
from tianzhou.client.core.replays import (
    REPLAY_TOPIC,
    ReplayedLetters,
    ReplayEntry,
    ReplayRecord,
    decode_entry,
    encode_entry,
)
from tianzhou.client.core.subscription import dead_letter_topic, retry_topic
from tianzhou.client.errors import ClientError, TopicNotFound
from tianzhou.record import flags, names, properties
from tianzhou.record.message import MessageView
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers_pull import (
    GetMaxOffsetRequest,
    QueueRequest,
    UpdateConsumerOffsetRequest,
)
from tianzhou.wire._generated_headers_send import SendMessageV2Request
from tianzhou.wire.names import DEAD_LETTER_PREFIX, DEFAULT_TOPIC, TOOLS_GROUP
from tianzhou.wire.queues import MessageQueue

COUNT: Final = 32
REPLAYER: Final = TOOLS_GROUP
"""The producer group of replayed messages."""
_BODY_FLAGS: Final = flags.COMPRESSED | flags.COMPRESSION_MASK
"""Flags that a replayed message keeps: how its body is stored, but not its transaction."""
_REMOVED: Final = (
    names.RECORD_CRC,
    names.DELAY,
    names.WAIT,
    names.TRANSACTION_PREPARED,
    names.TIMER_DELAY_SEC,
    names.TIMER_DELAY_MS,
    names.TIMER_DELIVER_MS,
)
"""Properties that would delay the message again, start a transaction, or fail its checksum."""


Queues = list[tuple[MessageQueue, str]]
"""With the address of the master."""


class Entries(NamedTuple):
    """What the brokers have recorded."""

    items: list[tuple[ReplayEntry, int]]
    """With the time in ms at which the broker stored it."""
    incomplete: frozenset[str]
    """Brokers that have already deleted old entries."""


class ReplayLog:
    """Reads and writes the topic, which has one queue on each broker. Owner: the event loop."""

    def __init__(self, calls: AdminCalls, topics: Topics) -> None:
        self._calls = calls
        self._topics = topics

    async def read(self) -> Entries:
        """Return the entries of all brokers; those of one broker are in order."""
        items: list[tuple[ReplayEntry, int]] = []
        incomplete: set[str] = set()
        for broker, address in (await self._masters()).items():
            queue = MessageQueue(broker_name=broker, queue_id=0, topic=REPLAY_TOPIC)
            fields = QueueRequest(topic=REPLAY_TOPIC, queue_id=0)
            low = await self._calls.offset(address, RequestCode.GET_MIN_OFFSET, fields)
            end_fields = GetMaxOffsetRequest(topic=REPLAY_TOPIC, queue_id=0)
            high = await self._calls.offset(address, RequestCode.GET_MAX_OFFSET, end_fields)
            if low > 0:
                incomplete.add(broker)
            for message in await self._calls.read(
                address, queue, start=low, end=high, count=high - low
            ):
                entry = decode_entry(message.body)
                if entry is not None:
                    items.append((entry, message.store_timestamp))
        return Entries(items, frozenset(incomplete))

    async def write(self, entry: ReplayEntry, masters: Mapping[str, str]) -> None:
        """Store an entry on the broker of its dead letters, or on another one if that broker is
        gone or the entry is about a whole replay. `masters` are those that have dead letters."""
        masters = masters or await self._calls.masters()
        wanted = entry.broker if isinstance(entry, ReplayedLetters) else ""
        broker = wanted if wanted in masters else min(masters)
        if broker not in await self._masters():
            await self._topics.create(REPLAY_TOPIC, queues=1, brokers=[broker])
        found = {names.KEYS.decode(): entry.group, names.WAIT.decode(): "true"}
        fields = SendMessageV2Request(
            producer_group=TOOLS_GROUP,
            topic=REPLAY_TOPIC,
            default_topic=DEFAULT_TOPIC,
            queue_id=0,
            sys_flag=0,
            born_timestamp_ms=time.time_ns() // 1_000_000,
            flag=0,
            properties=properties.encode(found).decode(),
        )
        body = encode_entry(entry)
        await self._calls.ask(masters[broker], RequestCode.SEND_MESSAGE_V2, fields, body)

    async def _masters(self) -> dict[str, str]:
        try:
            return await self._calls.masters_of(REPLAY_TOPIC)
        except TopicNotFound:
            return {}  # nothing was replayed out of order yet


class Dlq:
    """Dead letters: list, inspect and replay them, by group (`admin.dlq`).

    Which dead letters were replayed is recorded on the brokers, for all clients: see
    `tianzhou.client.core.replays`. No dead letter is replayed twice unless the caller requests it.
    Methods that take a group raise GroupNotExist if no broker has it.

        for letter in await admin.dlq.peek("billing"):
            print(letter.message_id, letter.body)
        await admin.dlq.replay("billing")

    Owner: the event loop.
    """

    def __init__(self, calls: AdminCalls, offsets: Offsets, topics: Topics) -> None:
        self._calls = calls
        self._offsets = offsets
        self._log = ReplayLog(calls, topics)

    async def all(self) -> list[DeadLetters]:
        """Return the groups that have dead letters, by name."""
        topics = [t for t in await self._calls.topics() if t.startswith(DEAD_LETTER_PREFIX)]
        if not topics:
            return []
        entries = await self._log.read()
        found = await asyncio.gather(
            *(self._count(t.removeprefix(DEAD_LETTER_PREFIX), entries) for t in sorted(topics))
        )
        return [letters for letters in found if letters.count]

    async def show(self, group: str) -> DeadLetters:
        """Count the dead letters of a group. Raises GroupNotExist."""
        return await self._count(group, await self._log.read())

    async def peek(self, group: str, *, count: int = COUNT) -> list[MessageView]:
        """Return the newest `count` dead letters of each broker, oldest first.

        Raises UsageError for a negative count, and GroupNotExist.
        """
        _check_count(count)
        found: list[MessageView] = []
        for queue, address in await self._queues(group):
            low, high = await self._offsets.bounds(queue)
            start = max(low, high - count)
            found += await self._calls.read(address, queue, start=start, end=high, count=count)
        return sorted(found, key=lambda m: (m.store_timestamp, m.physical_offset))

    async def record(self, group: str) -> ReplayRecord:
        """Return which dead letters of a group any client has replayed. Raises GroupNotExist."""
        return await self._record(group, await self._queues(group), await self._log.read())

    async def replayed(self, group: str, letters: Iterable[MessageView]) -> set[str]:
        """Return the offset ids of those dead letters that were replayed.

        Raises GroupNotExist, and UsageError for a message that no broker of the group has.
        """
        queues = await self._queues(group)
        record = await self._record(group, queues, await self._log.read())
        return {
            letter.offset_id
            for letter in letters
            if record.has(_queue_of(letter, queues)[0].broker_name, letter)
        }

    async def recorded_groups(self) -> set[str]:
        """Return the groups with dead letters that were replayed out of order."""
        return {entry.group for entry, _ in (await self._log.read()).items}

    async def add_to_record(self, group: str, entries: Iterable[ReplayEntry]) -> None:
        """Record dead letters that the caller has replayed. Raises GroupNotExist."""
        queues = await self._queues(group)
        for entry in entries:
            await self._log.write(entry, {q.broker_name: address for q, address in queues})
        record = await self._record(group, queues, await self._log.read())
        for queue, address in queues:
            await self._raise_floor(record, queue, address)

    async def replay(
        self,
        group: str,
        *,
        count: int = 1 << 62,
        to_topic: bool = False,
        on_sent: Callable[[int], None] = lambda _: None,
    ) -> Replay:
        """Send dead letters that were not replayed yet to their group again, oldest first.

        At most `count` are sent. With `to_topic` they go to their original topic instead, to every
        group that consumes it. `on_sent` is called in the event loop with the number sent so far.

        Raises UsageError for a negative count, GroupNotExist, and the broker's error for a dead
        letter that it rejects; those before it are replayed.
        """
        _check_count(count)
        queues = await self._queues(group)
        record = await self._record(group, queues, await self._log.read())
        sent = 0
        for queue, address in queues:
            low, high = await self._offsets.bounds(queue)
            start = max(low, record.floors[queue.broker_name, queue.queue_id])
            while start < high and sent < count:
                letters = await self._calls.read(
                    address, queue, start=start, end=high, count=min(COUNT, count - sent)
                )
                for letter in letters:
                    if not record.has(queue.broker_name, letter):
                        await self._send(address, group, letter, to_topic=to_topic)
                        sent += 1
                        on_sent(sent)
                    await self._commit(address, group, queue, letter.queue_offset + 1)
                if not letters:
                    break
                start = letters[-1].queue_offset + 1
        left = (await self.show(group)).not_replayed
        return Replay(group, _target(group, to_topic=to_topic), sent, left)

    async def replay_messages(
        self,
        group: str,
        letters: Iterable[MessageView],
        *,
        to_topic: bool = False,
        again: bool = False,
    ) -> Replay:
        """Send these dead letters to their group, or with `to_topic` to their original topic.

        Those that were replayed before are skipped, unless `again` is set. Raises UsageError for a
        message that is not a dead letter of the group, and GroupNotExist.
        """
        queues = await self._queues(group)
        record = await self._record(group, queues, await self._log.read())
        sent = skipped = 0
        for letter in sorted(letters, key=lambda one: (one.queue_id, one.queue_offset)):
            if letter.topic != dead_letter_topic(group):
                raise UsageError(f"{letter!r} is not a dead letter of group {group}")
            queue, address = _queue_of(letter, queues)
            if not again and record.has(queue.broker_name, letter):
                skipped += 1
                continue
            await self._send(address, group, letter, to_topic=to_topic)
            sent += 1
            if not record.has(queue.broker_name, letter):
                entry = ReplayedLetters(
                    group, queue.broker_name, queue.queue_id, (letter.queue_offset,)
                )
                await self._log.write(entry, {queue.broker_name: address})
        await self.add_to_record(group, ())
        left = (await self.show(group)).not_replayed
        return Replay(group, _target(group, to_topic=to_topic), sent, left, skipped)

    async def _count(self, group: str, entries: Entries) -> DeadLetters:
        queues = await self._queues(group)
        record = await self._record(group, queues, entries)
        count = left = last_ms = 0
        for queue, address in queues:
            place = (queue.broker_name, queue.queue_id)
            low, high = await self._offsets.bounds(queue)
            ends = [low, high - 1] if low < high else []
            found = [
                letter.store_timestamp
                for at in ends
                for letter in await self._calls.read(address, queue, start=at, end=high, count=1)
            ]
            count += high - low
            left += high - max(record.floors[place], low)
            left -= record.beyond_floor(*place, since_ms=found[0] if found else 0)
            last_ms = max(last_ms, *found, 0)
        return DeadLetters(group, count, left, last_ms)

    async def _record(self, group: str, queues: Queues, entries: Entries) -> ReplayRecord:
        record = ReplayRecord(group)
        for entry, recorded_ms in entries.items:
            record.add(entry, recorded_ms)
        for queue, _ in queues:
            place = (queue.broker_name, queue.queue_id)
            record.floors[place] = await self._offsets.committed(group, queue) or 0
            if queue.broker_name in entries.incomplete:
                # Entries about dead letters that the broker has deleted are gone too. An archive
                # may still have these dead letters; they count as replayed.
                low, _ = await self._offsets.bounds(queue)
                record.floors[place] = max(record.floors[place], low)
        return record

    async def _raise_floor(self, record: ReplayRecord, queue: MessageQueue, address: str) -> None:
        """Commit the offset behind dead letters that were replayed out of order."""
        low, high = await self._offsets.bounds(queue)
        place = (queue.broker_name, queue.queue_id)
        floor = start = max(low, record.floors[place])
        while floor in record.letters.get(place, {}):
            letters = await self._calls.read(address, queue, start=floor, end=high, count=COUNT)
            for letter in letters:
                if not record.has(queue.broker_name, letter):
                    break
                floor = letter.queue_offset + 1
            else:
                if letters:
                    continue
            break
        if floor > start:
            await self._commit(address, record.group, queue, floor)

    async def _send(self, address: str, group: str, letter: MessageView, *, to_topic: bool) -> None:
        text = letter.stored_properties
        for name in _REMOVED:
            text = properties.without(text, name)
        topic = retry_topic(group)
        if to_topic:
            topic = letter.properties.get(names.RETRY_TOPIC.decode(), "")
            if not topic:
                raise ClientError(f"dead letter {letter.message_id} has no original topic")
            for name in (names.RETRY_TOPIC, names.DLQ_ORIGIN_TOPIC, names.DLQ_ORIGIN_MESSAGE_ID):
                text = properties.without(text, name)
        fields = SendMessageV2Request(
            producer_group=REPLAYER,
            topic=topic,
            default_topic=DEFAULT_TOPIC,
            # The broker chooses the queue: the order was lost when the message failed.
            queue_id=-1,
            sys_flag=letter.sys_flag & _BODY_FLAGS,
            born_timestamp_ms=letter.born_timestamp,
            flag=letter.flag,
            properties=text.decode("utf-8", "replace"),
        )
        await self._calls.ask(address, RequestCode.SEND_MESSAGE_V2, fields, letter.stored_body)

    async def _commit(self, address: str, group: str, queue: MessageQueue, offset: int) -> None:
        fields = UpdateConsumerOffsetRequest(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        await self._calls.ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, fields)

    async def _queues(self, group: str) -> Queues:
        """Return the queues of the dead-letter topic with the address of their master; none if the
        group has no dead letters. Raises GroupNotExist."""
        try:
            route = await self._calls.route(dead_letter_topic(group))
        except TopicNotFound:
            await self._check_known(group)
            return []
        found = [(queue, route.address(queue.broker_name)) for queue in route.read_queues]
        return [(queue, address) for queue, address in found if address is not None]

    async def _check_known(self, group: str) -> None:
        await self._calls.group_configs(group, await self._calls.masters())


def _check_count(count: int) -> None:
    if count < 0:
        raise UsageError(f"count must be at least 0, got {count}")


def _target(group: str, *, to_topic: bool) -> str:
    return "the original topics" if to_topic else retry_topic(group)


def _queue_of(letter: MessageView, queues: Queues) -> tuple[MessageQueue, str]:
    """Find the queue of a dead letter. Queue ids repeat across brokers: then the broker that stored
    the dead letter decides."""
    found = [place for place in queues if place[0].queue_id == letter.queue_id]
    if len(found) > 1:
        host = letter.store_host
        found = [place for place in found if place[1] == f"{host.address}:{host.port}"]
    if not found:
        raise UsageError(f"no broker of the route has {letter!r}")
    return found[0]
