"""Dead letters: what groups have given up, to be looked at and sent again."""

import asyncio
from collections.abc import Iterable
from typing import Final

from tianzhou.base.errors import UsageError
from tianzhou.client.aio.admin_calls import AdminCalls
from tianzhou.client.aio.admin_offsets import Offsets
from tianzhou.client.core.admin_results import DeadLetters, Replay
from tianzhou.client.core.subscription import dead_letter_topic, retry_topic
from tianzhou.client.errors import ClientError, TopicNotFound
from tianzhou.record import flags, names, properties
from tianzhou.record.message import MessageView
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers_admin import TopicRequest
from tianzhou.wire._generated_headers_pull import UpdateConsumerOffsetRequest
from tianzhou.wire._generated_headers_send import SendMessageV2Request
from tianzhou.wire.names import DEAD_LETTER_PREFIX, DEFAULT_TOPIC, TOOLS_GROUP
from tianzhou.wire.queues import MessageQueue, decode_topic_stats

COUNT: Final = 32
REPLAYER: Final = TOOLS_GROUP
"""The producer group of what is sent again."""
_BODY_FLAGS: Final = flags.COMPRESSED | flags.COMPRESSION_MASK
"""What the new life takes over: how the body is stored, and not that it was in a transaction."""
_GONE: Final = (
    names.RECORD_CRC, names.DELAY, names.WAIT, names.TRANSACTION_PREPARED, names.TIMER_DELAY_SEC,
    names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS,
)  # fmt: skip
"""Properties of the life before: they would delay it, or begin a transaction, or belong to other
bytes."""


class DeadLetterBox:
    """Owner: the event loop.

    How far dead letters were replayed is kept as the offset of the group in the topic of its dead
    letters, which no consumer of the group ever uses: so nothing is sent twice by a second replay,
    and a replay that was interrupted goes on where it was.
    """

    def __init__(self, calls: AdminCalls, offsets: Offsets) -> None:
        self._calls = calls
        self._offsets = offsets

    async def all(self) -> list[DeadLetters]:
        """Groups that have dead letters, by name."""
        topics = [t for t in await self._calls.topics() if t.startswith(DEAD_LETTER_PREFIX)]
        found = await asyncio.gather(
            *(self.show(topic.removeprefix(DEAD_LETTER_PREFIX)) for topic in sorted(topics))
        )
        return [box for box in found if box.count]

    async def show(self, group: str) -> DeadLetters:
        """How many dead letters the group has. Raises GroupNotExist."""
        topic = dead_letter_topic(group)
        masters = await self._masters(topic)
        if not masters:
            await self._check_known(group)
        code, fields = RequestCode.GET_TOPIC_STATS_INFO, TopicRequest(topic=topic)
        bodies = await self._calls.ask_each(masters, code, fields)
        rows = [r for b in bodies.values() for r in decode_topic_stats(b).offset_table.items()]
        left = 0
        for queue, row in rows:
            replayed = await self._offsets.committed(group, queue) or 0
            left += row.max_offset - max(replayed, row.min_offset)
        count = sum(row.max_offset - row.min_offset for _, row in rows)
        last_ms = max((row.last_update_timestamp for _, row in rows), default=0)
        return DeadLetters(group, count, left, last_ms)

    async def peek(self, group: str, *, count: int = COUNT) -> list[MessageView]:
        """The newest dead letters of each broker; the oldest of them first. Raises
        GroupNotExist."""
        _check_count(count)
        found: list[MessageView] = []
        for queue, address in await self._queues(group):
            low, high = await self._offsets.bounds(queue)
            start = max(low, high - count)
            found += await self._calls.read(address, queue, start=start, end=high, count=count)
        return sorted(found, key=lambda m: (m.store_timestamp, m.physical_offset))

    async def replay(self, group: str, *, count: int = 1 << 62, to_topic: bool = False) -> Replay:
        """Send dead letters again that were not replayed yet, the oldest first: to the group
        alone, or with `to_topic` to the topic they came from, for every group that reads it.

        Raises GroupNotExist, or the broker's error for a dead letter that it rejects; those before
        it are replayed.
        """
        _check_count(count)
        sent, left = 0, 0
        for queue, address in await self._queues(group):
            low, high = await self._offsets.bounds(queue)
            start = max(low, await self._offsets.committed(group, queue) or 0)
            while start < high and sent < count:
                wanted = min(COUNT, count - sent)
                letters = await self._calls.read(
                    address, queue, start=start, end=high, count=wanted
                )
                for letter in letters:
                    await self._send(address, group, letter, to_topic=to_topic)
                    sent += 1
                    await self._commit(address, group, queue, letter.queue_offset + 1)
                if not letters:
                    break
                start = letters[-1].queue_offset + 1
            left += high - start
        where = "the topics they came from" if to_topic else retry_topic(group)
        return Replay(group, where, sent, left)

    async def send_again(
        self, group: str, letters: Iterable[MessageView], *, to_topic: bool = False
    ) -> Replay:
        """Send these dead letters again, whichever they are. `replay` passes over those that come
        next after what it has replayed; others it sends once more."""
        topic, count = dead_letter_topic(group), 0
        places = await self._queues(group)
        for letter in sorted(letters, key=lambda one: (one.queue_id, one.queue_offset)):
            if letter.topic != topic:
                raise UsageError(f"{letter!r} is no dead letter of group {group}")
            queue, address = _place_of(letter, places)
            await self._send(address, group, letter, to_topic=to_topic)
            count += 1
            low, _ = await self._offsets.bounds(queue)
            if letter.queue_offset == max(low, await self._offsets.committed(group, queue) or 0):
                await self._commit(address, group, queue, letter.queue_offset + 1)
        where = "the topics they came from" if to_topic else retry_topic(group)
        return Replay(group, where, count, (await self.show(group)).not_replayed)

    async def _send(self, address: str, group: str, letter: MessageView, *, to_topic: bool) -> None:
        text = letter.stored_properties
        for name in _GONE:
            text = properties.without(text, name)
        topic = retry_topic(group)
        if to_topic:
            topic = letter.properties.get(names.RETRY_TOPIC.decode(), "")
            if not topic:
                raise ClientError(f"dead letter {letter.message_id} does not say where it is from")
            for name in (names.RETRY_TOPIC, names.DLQ_ORIGIN_TOPIC, names.DLQ_ORIGIN_MESSAGE_ID):
                text = properties.without(text, name)
        fields = SendMessageV2Request(
            producer_group=REPLAYER, topic=topic, default_topic=DEFAULT_TOPIC,
            # Any queue the broker likes; the order was lost when the message failed.
            queue_id=-1, sys_flag=letter.sys_flag & _BODY_FLAGS,
            born_timestamp_ms=letter.born_timestamp, flag=letter.flag,
            properties=text.decode("utf-8", "replace"),
        )  # fmt: skip
        await self._calls.ask(address, RequestCode.SEND_MESSAGE_V2, fields, letter.stored_body)

    async def _commit(self, address: str, group: str, queue: MessageQueue, offset: int) -> None:
        fields = UpdateConsumerOffsetRequest(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        await self._calls.ask(address, RequestCode.UPDATE_CONSUMER_OFFSET, fields)

    async def _queues(self, group: str) -> list[tuple[MessageQueue, str]]:
        """With the address of the master; none, if the group has no dead letters. Raises
        GroupNotExist."""
        try:
            route = await self._calls.route(dead_letter_topic(group))
        except TopicNotFound:
            await self._check_known(group)
            return []
        found = [(queue, route.address(queue.broker_name)) for queue in route.read_queues]
        return [(queue, address) for queue, address in found if address is not None]

    async def _check_known(self, group: str) -> None:
        await self._calls.group_configs(group, await self._calls.masters())

    async def _masters(self, topic: str) -> dict[str, str]:
        try:
            return await self._calls.masters_of(topic)
        except TopicNotFound:
            return {}


def _check_count(count: int) -> None:
    if count < 0:
        raise UsageError(f"count is {count}; it must be at least 0")


def _place_of(
    letter: MessageView, places: list[tuple[MessageQueue, str]]
) -> tuple[MessageQueue, str]:
    """Queues of several brokers have the same numbers; then it is the broker that stored it."""
    found = [place for place in places if place[0].queue_id == letter.queue_id]
    if len(found) > 1:
        host = letter.store_host
        found = [place for place in found if place[1] == f"{host.address}:{host.port}"]
    if not found:
        raise UsageError(f"no broker of the route has {letter!r}")
    return found[0]
