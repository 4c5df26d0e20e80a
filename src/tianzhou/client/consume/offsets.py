"""Offsets of a group: on the brokers in clustering groups, in a file for broadcasting consumers.

Both keep a table in memory and save changes: every few seconds, when a queue is released, and at
the end. A failed commit is retried with the next one. The file is

    <directory>/<client id>/<group>/offsets.json

written as the Java client writes it, with queues as keys; one with strings as keys can be read too:

    {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:12}}
"""

import asyncio
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

from tianzhou.client.core.assigned_queue import queue_text
from tianzhou.client.errors import ClientError, QueryNotFound, UsageError
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
from tianzhou.wire.errors import BodyError
from tianzhou.wire.queues import MessageQueue, decode_queue_offsets, encode_queue_offsets

log: Final = logging.getLogger("tianzhou.client")

DIRECTORY: Final = ".rocketmq_offsets"
FILE_NAME: Final = "offsets.json"
LOWER: Final = "LOWER"


class GroupOffsets(Protocol):
    """The offsets of a group at its brokers."""

    group: str

    async def committed(self, queue: MessageQueue) -> int | None: ...
    async def commit(self, queue: MessageQueue, offset: int, *, oneway: bool = False) -> None: ...


class OffsetStore(Protocol):
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
    def table(self) -> dict[MessageQueue, int]: ...


class OffsetTable:
    """Offsets by queue, and which of them changed since they were saved.

    Owner: the event loop of the consumer.
    """

    def __init__(self, saved: Mapping[MessageQueue, int] | None = None) -> None:
        self._saved = dict(saved or {})
        self._current = dict(self._saved)

    def get(self, queue: MessageQueue) -> int | None:
        return self._current.get(queue)

    def put(self, queue: MessageQueue, offset: int) -> None:
        """Set the offset of a queue; a reset may move it back."""
        self._current[queue] = offset

    def remove(self, queue: MessageQueue) -> None:
        self._current.pop(queue, None)
        self._saved.pop(queue, None)

    def changed(self) -> dict[MessageQueue, int]:
        """Return the offsets to save; pass those that were saved to `saved`."""
        saved = self._saved
        return {
            queue: offset for queue, offset in self._current.items() if saved.get(queue) != offset
        }

    def saved(self, offsets: Mapping[MessageQueue, int]) -> None:
        self._saved.update(offsets)

    def all(self) -> dict[MessageQueue, int]:
        return dict(self._current)

    def of(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        current = self._current
        return {queue: current[queue] for queue in queues if queue in current}


class BrokerOffsets:
    """Offsets stored by the brokers.

    Owner: the event loop.
    """

    def __init__(self, offsets: GroupOffsets) -> None:
        self._offsets = offsets
        self._table = OffsetTable()
        self._failing: dict[MessageQueue, str] = {}
        """Queues whose last commit failed, and the cause that was logged."""

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
            self._failed(queue, offset, str(error))
        else:
            self._table.saved({queue: offset})
            if self._failing.pop(queue, None) is not None:
                log.info(
                    "group %s resumed committing offsets of %s, now %d",
                    self._offsets.group,
                    queue_text(queue),
                    offset,
                )

    def _failed(self, queue: MessageQueue, offset: int, cause: str) -> None:
        """Log a failed commit once per cause: it is retried with every round of commits."""
        if self._failing.get(queue) == cause:
            return
        self._failing[queue] = cause
        log.warning(
            "group %s could not commit offset %d of %s: %s; it is retried with every commit, and "
            "logged again when it succeeds",
            self._offsets.group,
            offset,
            queue_text(queue),
            cause,
        )

    def forget(self, queue: MessageQueue) -> None:
        self._table.remove(queue)
        self._failing.pop(queue, None)

    def table(self) -> dict[MessageQueue, int]:
        return self._table.all()


class FileOffsets:
    """Offsets in a file, which is small and replaced as a whole.

    Owner: the event loop.
    """

    def __init__(self, directory: Path | None, client_id: str, group: str) -> None:
        self._path = (directory or Path.home() / DIRECTORY) / client_id / group / FILE_NAME
        self._table = OffsetTable(self._load())
        self._writing = asyncio.Lock()

    def _load(self) -> dict[MessageQueue, int]:
        try:
            return decode_queue_offsets(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, BodyError) as error:
            raise UsageError(
                f"broadcast offsets in {self._path} can't be read: {error}; move the file away to "
                "start over"
            ) from error

    async def read(self, queue: MessageQueue) -> int | None:
        return self._table.get(queue)

    def put(self, queue: MessageQueue, offset: int) -> None:
        self._table.put(queue, offset)

    async def save(self) -> None:
        async with self._writing:
            changed = self._table.changed()
            if changed:
                await asyncio.to_thread(self._write, self._table.all())
                self._table.saved(changed)

    async def save_surely(self, queues: Iterable[MessageQueue]) -> None:
        await self.save()

    def _write(self, offsets: dict[MessageQueue, int]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_suffix(".new")
        with new.open("wb") as file:
            file.write(encode_queue_offsets(offsets))
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)

    def forget(self, queue: MessageQueue) -> None:
        """Keep the offset: the queue may come back, and no broker stores broadcast offsets."""

    def table(self) -> dict[MessageQueue, int]:
        return self._table.all()


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
