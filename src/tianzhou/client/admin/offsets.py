"""Offsets of groups: read their progress, and reset it to a time, an offset or another group's."""

import asyncio
from collections.abc import Iterable

from tianzhou.base.errors import UsageError
from tianzhou.client.admin.calls import AdminCalls
from tianzhou.client.core.admin_results import LATEST, GroupProgress, OffsetMove, QueueProgress
from tianzhou.client.core.routing import TopicRoute, queue_order
from tianzhou.client.errors import QueryNotFound
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers_admin import (
    CloneGroupOffsetRequest,
    GetConsumeStatsRequest,
    GroupTopicRequest,
    ResetOffsetRequest,
)
from tianzhou.wire._generated_headers_client import GetConsumerStatusRequest
from tianzhou.wire._generated_headers_pull import (
    GetMaxOffsetRequest,
    QueryConsumerOffsetRequest,
    QueueRequest,
    SearchOffsetRequest,
)
from tianzhou.wire.admin_bodies import decode_group_status, decode_time_spans
from tianzhou.wire.names import DEAD_LETTER_PREFIX
from tianzhou.wire.queues import (
    MessageQueue,
    OffsetWrapper,
    decode_consume_stats,
    decode_queue_offsets,
)


class Offsets:
    """Offsets of consumer groups: read their progress, and reset or copy it (`admin.offsets`).

        progress = await admin.offsets.progress("billing")
        print(progress.lag, progress.behind_s)

    Methods that take a queue raise TopicNotFound if its topic does not exist, and UsageError if its
    broker does not have the topic.

    Owner: the event loop.
    """

    def __init__(self, calls: AdminCalls) -> None:
        self._calls = calls

    # Progress

    async def progress(self, group: str, topic: str | None = None) -> GroupProgress:
        """Return the lag of a group in messages and seconds, in one topic or all it has consumed.

        Dead letters count only if `topic` is their topic: a replay advances that offset, not a
        consumer. Raises GroupNotExist and TopicNotFound.
        """
        masters = await self._calls.masters()
        fields = GetConsumeStatsRequest(consumer_group=group, topic=topic)
        bodies = await self._calls.ask_each(masters, RequestCode.GET_CONSUME_STATS, fields)
        stats = [decode_consume_stats(body) for body in bodies.values()]
        rows = {
            queue: row
            for one in stats
            for queue, row in one.offset_table.items()
            if topic or not queue.topic.startswith(DEAD_LETTER_PREFIX)
        }
        if not rows:  # nothing was consumed, or a name is wrong
            await self._calls.group_configs(group, masters)
            if topic is not None:
                await self._calls.route(topic)
        late = {q for q, row in rows.items() if row.broker_offset > row.consumer_offset}
        behind = await self._behind(group, masters, late)
        found = [
            _progress(queue, rows[queue], behind.get(queue, 0))
            for queue in sorted(rows, key=queue_order)
        ]
        return GroupProgress(group, tuple(found), sum(one.consume_tps for one in stats))

    async def _behind(
        self, group: str, masters: dict[str, str], late: Iterable[MessageQueue]
    ) -> dict[MessageQueue, int]:
        """Return the delay in milliseconds of queues with unread messages."""
        wanted = sorted({(queue.broker_name, queue.topic) for queue in late})
        answers = await asyncio.gather(
            *(
                self._calls.ask(
                    masters[broker],
                    RequestCode.QUERY_CONSUME_TIME_SPAN,
                    GroupTopicRequest(group=group, topic=topic),
                )
                for broker, topic in wanted
            )
        )
        return {
            span.message_queue: span.delay_time
            for _, body in answers
            for span in decode_time_spans(body).consume_time_span_set
        }

    async def owners(self, group: str, topic: str) -> dict[MessageQueue, str]:
        """Return the id of the client that each queue is assigned to, as the clients report.

        Raises TopicNotFound.
        """
        masters = await self._calls.masters_of(topic)
        fields = GetConsumerStatusRequest(topic=topic, group=group)
        code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        found: dict[MessageQueue, str] = {}
        for body in (await self._calls.ask_each(masters, code, fields)).values():
            for client, held in decode_group_status(body).items():
                found |= dict.fromkeys(held, client)
        return found

    # Resetting

    async def reset_to_time(
        self, group: str, topic: str, *, time_ms: int, dry_run: bool = False
    ) -> list[OffsetMove]:
        """Move a group to the first message stored at `time_ms` or later.

        The time is in milliseconds since 1970; `LATEST` skips all messages. With `dry_run` nothing
        changes. Connected consumers continue at the new offsets at once. Raises UsageError for an
        invalid time, and TopicNotFound.

            moves = await admin.offsets.reset_to_time("billing", "orders", time_ms=LATEST)
        """
        if time_ms < LATEST:
            raise UsageError(f"invalid time_ms {time_ms}; use milliseconds since 1970, or LATEST")
        route = await self._calls.route(topic)
        moves = await asyncio.gather(
            *(self._planned(route, group, queue, time_ms) for queue in route.read_queues)
        )
        if dry_run:
            return list(moves)
        fields = ResetOffsetRequest(topic=topic, group=group, timestamp_ms=time_ms, is_force=True)
        return await self._reset(route, fields, moves)

    async def reset_to_offset(
        self, group: str, queue: MessageQueue, *, offset: int, dry_run: bool = False
    ) -> OffsetMove:
        """Move a group to an offset in one queue. With `dry_run` nothing changes.

        Raises UsageError unless the offset is in the queue or at its end, and TopicNotFound.
        """
        route = await self._calls.route(queue.topic)
        address = _address(route, queue)
        low, high = await self._bounds(address, queue)
        if not low <= offset <= high:
            raise UsageError(
                f"offset {offset} is not in queue {queue.queue_id} of {queue.topic} on "
                f"{queue.broker_name}, which has {low} to {high}"
            )
        move = OffsetMove(queue, await self.committed(group, queue), offset)
        if dry_run:
            return move
        fields = ResetOffsetRequest(
            topic=queue.topic,
            group=group,
            timestamp_ms=LATEST,
            is_force=True,
            queue_id=queue.queue_id,
            offset=offset,
        )
        await self._calls.ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
        return move

    async def _reset(
        self, route: TopicRoute, fields: ResetOffsetRequest, planned: Iterable[OffsetMove]
    ) -> list[OffsetMove]:
        """Reset the group and return the offsets that brokers report, which may differ from the
        plan if messages arrived in between.
        """
        before = {move.queue: move.committed for move in planned}
        masters = await self._calls.masters_of(fields.topic)
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        bodies = await self._calls.ask_each(masters, code, fields)
        targets = {
            q: at for body in bodies.values() for q, at in decode_queue_offsets(body).items()
        }
        return [
            OffsetMove(queue, before.get(queue), targets[queue])
            for queue in sorted(targets, key=queue_order)
        ]

    async def _planned(
        self, route: TopicRoute, group: str, queue: MessageQueue, time_ms: int
    ) -> OffsetMove:
        target = (
            (await self._bounds(_address(route, queue), queue))[1]
            if time_ms == LATEST
            else await self.by_time(queue, time_ms=time_ms)
        )
        return OffsetMove(queue, await self.committed(group, queue), target)

    async def clone(self, source: str, target: str, topic: str | None = None) -> None:
        """Copy the offsets of one group to another.

        `topic` limits the copy to one topic; None copies all that `source` has consumed. Raises
        UsageError if both are the same group, and GroupNotExist if there is no group `source`.
        """
        if source == target:
            raise UsageError(f"source and target are both group {source!r}; give two groups")
        masters = await self._calls.masters()
        await self._calls.group_configs(source, masters)
        fields = CloneGroupOffsetRequest(
            src_group=source, dest_group=target, topic=topic, offline=True
        )
        await self._calls.ask_each(masters, RequestCode.CLONE_GROUP_OFFSET, fields)

    # Single offsets

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        """Return the committed offset of a group in a queue; None if it never committed one.

        Raises TopicNotFound.
        """
        address = _address(await self._calls.route(queue.topic), queue)
        fields = QueryConsumerOffsetRequest(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=False,
        )
        try:
            return await self._calls.offset(address, RequestCode.QUERY_CONSUMER_OFFSET, fields)
        except QueryNotFound:
            return None

    async def by_time(self, queue: MessageQueue, *, time_ms: int) -> int:
        """Return the offset of the first message stored at this time or later.

        For a time after the last message, it is the offset of the last message. Raises
        TopicNotFound.
        """
        address = _address(await self._calls.route(queue.topic), queue)
        fields = SearchOffsetRequest(
            topic=queue.topic, queue_id=queue.queue_id, timestamp_ms=time_ms
        )
        return await self._calls.offset(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)

    async def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """Return the offset of the first stored message, and the offset of the next new one.

        Raises TopicNotFound.
        """
        return await self._bounds(_address(await self._calls.route(queue.topic), queue), queue)

    async def _bounds(self, address: str, queue: MessageQueue) -> tuple[int, int]:
        topic, queue_id = queue.topic, queue.queue_id
        low, high = await asyncio.gather(
            self._calls.offset(
                address, RequestCode.GET_MIN_OFFSET, QueueRequest(topic=topic, queue_id=queue_id)
            ),
            self._calls.offset(
                address,
                RequestCode.GET_MAX_OFFSET,
                GetMaxOffsetRequest(topic=topic, queue_id=queue_id),
            ),
        )
        return low, high


def _progress(queue: MessageQueue, row: OffsetWrapper, behind_ms: int) -> QueueProgress:
    return QueueProgress(
        queue, row.consumer_offset, row.broker_offset, row.last_timestamp, max(behind_ms, 0) / 1000
    )


def _address(route: TopicRoute, queue: MessageQueue) -> str:
    found = route.address(queue.broker_name)
    if found is None:
        known = ", ".join(sorted(route.brokers)) or "none"
        raise UsageError(
            f"broker {queue.broker_name} has no queue of {queue.topic}; these do: {known}"
        )
    return found
