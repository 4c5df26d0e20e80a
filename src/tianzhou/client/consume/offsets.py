"""Offsets of a group: at the brokers in clustering groups, in a file for broadcasting consumers
(`offset_files`), or in a store of the user.

All keep a table in memory and save changes: every few seconds, when a queue is released, and at
the end. A failed save is logged and repeated with the next one.
"""

import asyncio
import contextlib
import inspect
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

from tianzhou.client.consume.context import ConsumerContext
from tianzhou.client.consume.offset_files import DIRECTORY, FileOffsets, remove_unused
from tianzhou.client.core.arguments import checked_offset
from tianzhou.client.core.assigned_queue import queue_text
from tianzhou.client.core.namespace import Namespace
from tianzhou.client.core.offsets import OffsetStore, OffsetTable, RepeatedFailures
from tianzhou.client.errors import ClientError, QueryNotFound
from tianzhou.client.session.shared_client import SharedClient
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers_pull import (
    GetMaxOffsetRequest,
    OffsetResponse,
    QueryConsumerOffsetRequest,
    QueueRequest,
    SearchOffsetRequest,
    UpdateConsumerOffsetRequest,
)
from tianzhou.wire.codec import ExtFields
from tianzhou.wire.queues import MessageQueue

log: Final = logging.getLogger("tianzhou.client")

LOWER: Final = "LOWER"
DAY_S: Final = 24 * 60 * 60


class GroupOffsets(Protocol):
    """The offsets of a group at its brokers."""

    group: str

    async def committed(self, queue: MessageQueue) -> int | None: ...
    async def commit(self, queue: MessageQueue, offset: int, *, oneway: bool = False) -> None: ...


class SavedOffsets(Protocol):
    """Where the offsets of one consumer are stored."""

    async def read(self, queue: MessageQueue) -> int | None:
        """Return the offset of the group in a queue. Raises ClientError if it is not available."""
        ...

    def put(self, queue: MessageQueue, offset: int) -> None: ...
    async def save(self) -> None:
        """Save changed offsets. Failures are logged, and retried with the next call."""
        ...

    async def save_surely(self, queues: Iterable[MessageQueue]) -> None:
        """Save these offsets, and wait until they are stored. Failures are logged."""
        ...

    def forget(self, queue: MessageQueue) -> None: ...
    def close(self) -> None:
        """Release what the offsets hold, after the last save."""
        ...


class BrokerOffsets:
    """Offsets stored by the brokers.

    Owner: the event loop.
    """

    def __init__(self, offsets: GroupOffsets) -> None:
        self._offsets = offsets
        self._table = OffsetTable()
        self._failures = RepeatedFailures()

    async def read(self, queue: MessageQueue) -> int | None:
        return await self._offsets.committed(queue)

    def put(self, queue: MessageQueue, offset: int) -> None:
        self._table.put(queue, offset)

    async def save(self) -> None:
        for queue, offset in self._table.changed().items():
            await self._send(queue, offset, oneway=True)

    async def save_surely(self, queues: Iterable[MessageQueue]) -> None:
        offsets = self._table.of(queues)
        await asyncio.gather(
            *(self._send(queue, offset, oneway=False) for queue, offset in offsets.items())
        )

    async def _send(self, queue: MessageQueue, offset: int, *, oneway: bool) -> None:
        try:
            await self._offsets.commit(queue, offset, oneway=oneway)
        except ClientError as error:
            if self._failures.is_new(queue, error):
                log.warning(
                    "group %s could not commit offset %d of %s: %s; it is retried with every "
                    "commit, and logged again when it succeeds",
                    self._offsets.group,
                    offset,
                    queue_text(queue),
                    error,
                )
        else:
            self._table.saved({queue: offset})
            if self._failures.end(queue):
                log.info(
                    "group %s resumed committing offsets of %s, now %d",
                    self._offsets.group,
                    queue_text(queue),
                    offset,
                )

    def forget(self, queue: MessageQueue) -> None:
        self._table.remove(queue)
        self._failures.end(queue)

    def close(self) -> None:
        """Nothing to release."""


class CustomOffsets:
    """Offsets in a store of the user, which is never called twice at the same time.

    Owner: the event loop.
    """

    def __init__(
        self, store: OffsetStore, group: str, names: Namespace, otherwise: BrokerOffsets | None
    ) -> None:
        """`otherwise` has the offsets of queues for which the store has none. The store sees the
        names that its user sees."""
        self._store = store
        self._group = names.plain(group)
        self._names = names
        self._otherwise = otherwise
        self._table = OffsetTable()
        self._failures = RepeatedFailures()
        self._calling = asyncio.Lock()

    async def read(self, queue: MessageQueue) -> int | None:
        plain = self._names.plain_queue(queue)
        found = await self._call(self._store.load, plain)
        if found is not None:
            return checked_offset(found)
        return None if self._otherwise is None else await self._otherwise.read(queue)

    async def _call(self, method: Callable[..., object], argument: object) -> object:
        """Call a method of the store: a coroutine function in the event loop, a function in a
        thread, because it may block. Raises ClientError instead of the exception of the store."""
        name = f"{type(self._store).__name__}.{getattr(method, '__name__', method)}"
        try:
            async with self._calling:
                if inspect.iscoroutinefunction(method):
                    result = await method(self._group, argument)
                else:
                    result = await asyncio.to_thread(method, self._group, argument)
        except Exception as error:
            if self._failures.is_new(name, error):
                log.warning(
                    "group %s: the offset store failed in %s: %r; it is called again in some "
                    "seconds, and the log says when it succeeds",
                    self._group,
                    name,
                    error,
                    exc_info=error,
                    extra={"group": self._group},
                )
            raise ClientError(f"the offset store failed in {name}: {error!r}") from error
        if self._failures.end(name):
            log.info("group %s: the offset store succeeded in %s again", self._group, name)
        return result

    def put(self, queue: MessageQueue, offset: int) -> None:
        self._table.put(queue, offset)

    async def save(self) -> None:
        await self._save(self._table.changed())

    async def save_surely(self, queues: Iterable[MessageQueue]) -> None:
        await self._save(self._table.of(queues))

    async def _save(self, offsets: Mapping[MessageQueue, int]) -> None:
        plain = {self._names.plain_queue(queue): offset for queue, offset in offsets.items()}
        if plain:
            with contextlib.suppress(ClientError):  # logged, and repeated with the next save
                await self._call(self._store.save, plain)
                self._table.saved(offsets)

    def forget(self, queue: MessageQueue) -> None:
        self._table.remove(queue)

    def close(self) -> None:
        """Nothing to release: the store belongs to the user."""


class QueueOffsets:
    """Offsets of a group and of queues, from a broker that has the queue."""

    def __init__(self, group: str, shared: SharedClient) -> None:
        self.group = group
        self._shared = shared

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the committed offset of the group; None if the broker has none."""
        fields = QueryConsumerOffsetRequest(
            consumer_group=self.group, topic=queue.topic, queue_id=queue.queue_id
        )
        try:
            return await self._request(queue, RequestCode.QUERY_CONSUMER_OFFSET, fields)
        except QueryNotFound:
            return None

    async def first(self, queue: MessageQueue) -> int:
        """Return the offset of the first message that is still stored."""
        fields = QueueRequest(topic=queue.topic, queue_id=queue.queue_id)
        return await self._request(queue, RequestCode.GET_MIN_OFFSET, fields)

    async def end(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get."""
        fields = GetMaxOffsetRequest(topic=queue.topic, queue_id=queue.queue_id)
        return await self._request(queue, RequestCode.GET_MAX_OFFSET, fields)

    async def at_time(self, queue: MessageQueue, time_ms: int) -> int:
        """Return the offset of the first message stored at a time or later; else the end."""
        fields = SearchOffsetRequest(
            topic=queue.topic,
            queue_id=queue.queue_id,
            timestamp_ms=time_ms,
            boundary_type=LOWER,
        )
        return await self._request(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)

    async def commit(self, queue: MessageQueue, offset: int, *, oneway: bool = False) -> None:
        """Commit an offset with a one-way request, without knowing whether it arrives."""
        ext = UpdateConsumerOffsetRequest(
            consumer_group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
        ).to_ext()
        address = await self._address_of(queue)
        if oneway:
            await self._shared.send_oneway(address, RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        else:
            await self._shared.call_ok(address, RequestCode.UPDATE_CONSUMER_OFFSET, ext)

    async def _request(self, queue: MessageQueue, code: int, fields: ExtFields) -> int:
        address = await self._address_of(queue)
        header, _ = await self._shared.call_ok(address, code, fields.to_ext())
        return OffsetResponse.from_ext(header.ext).offset

    async def _address_of(self, queue: MessageQueue) -> str:
        """Return the address of the queue's master, or of another replica if it has none."""
        route = await self._shared.route(queue.topic)
        found = route.any_address(queue.broker_name)
        return found or await self._shared.broker_address(queue.broker_name)


def saved_offsets(context: ConsumerContext, offsets: QueueOffsets) -> SavedOffsets:
    """Return where the offsets of a consumer are stored, according to its options. Raises
    UsageError."""
    options = context.options
    if options.offset_store is not None:
        brokers = None if options.broadcasting else BrokerOffsets(offsets)
        return CustomOffsets(options.offset_store, context.group, context.names, brokers)
    if not options.broadcasting:
        return BrokerOffsets(offsets)
    directory = options.offsets_directory or Path.home() / DIRECTORY
    files = FileOffsets(directory, context.shared.client_id, context.group)
    if options.offsets_keep_days:
        before_s = time.time() - options.offsets_keep_days * DAY_S
        context.tasks.run(asyncio.to_thread(remove_unused, directory, before_s))
    return files
