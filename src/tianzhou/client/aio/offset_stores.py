"""Where offsets are kept: on the brokers for a group that shares, in a file for one that does not.

Both keep a table in memory and save what changed: every few seconds, when a queue is given up, and
at the end. What a broker did not get is tried again next time.
"""

import asyncio
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Protocol

from tianzhou.client.core.offsets import FILE_NAME, OffsetTable, decode_file, encode_file
from tianzhou.client.errors import ClientError, UsageError
from tianzhou.wire.errors import BodyError
from tianzhou.wire.queues import MessageQueue

log: Final = logging.getLogger("tianzhou.client")

DIRECTORY: Final = ".rocketmq_offsets"


class GroupOffsets(Protocol):
    """The offsets of a group at its brokers."""

    group: str

    async def committed(self, queue: MessageQueue) -> int | None: ...
    async def commit(self, queue: MessageQueue, offset: int, *, oneway: bool = False) -> None: ...


class OffsetStore(Protocol):
    async def read(self, queue: MessageQueue) -> int | None:
        """Where the group is in this queue. Raises ClientError when that can't be known now."""
        ...

    def put(self, queue: MessageQueue, offset: int) -> None: ...
    async def save(self) -> None:
        """What changed. Failures are logged, and tried again the next time."""
        ...

    async def save_surely(self, queues: Iterable[MessageQueue]) -> None:
        """These, and wait until they are kept. Failures are logged."""
        ...

    def forget(self, queue: MessageQueue) -> None: ...
    def table(self) -> dict[MessageQueue, int]: ...


class BrokerOffsets:
    """Owner: the event loop."""

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
                    "group %s resumed committing offsets of queue %s:%d of topic %s, now %d",
                    self._offsets.group, queue.broker_name, queue.queue_id, queue.topic, offset,
                )  # fmt: skip

    def _failed(self, queue: MessageQueue, offset: int, cause: str) -> None:
        """Log a failed commit once per cause: it is retried with every round of commits."""
        if self._failing.get(queue) == cause:
            return
        self._failing[queue] = cause
        log.warning(
            "group %s could not commit offset %d of queue %s:%d of topic %s: %s; it is retried "
            "with every commit, and logged again when it succeeds",
            self._offsets.group, offset, queue.broker_name, queue.queue_id, queue.topic, cause,
        )  # fmt: skip

    def forget(self, queue: MessageQueue) -> None:
        self._table.remove(queue)
        self._failing.pop(queue, None)

    def table(self) -> dict[MessageQueue, int]:
        return self._table.all()


class FileOffsets:
    """Owner: the event loop. The file is small, and replaced as a whole."""

    def __init__(self, directory: Path | None, client_id: str, group: str) -> None:
        self._path = (directory or Path.home() / DIRECTORY) / client_id / group / FILE_NAME
        self._table = OffsetTable(self._load())
        self._writing = asyncio.Lock()

    def _load(self) -> dict[MessageQueue, int]:
        try:
            return decode_file(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, BodyError) as error:
            raise UsageError(
                f"broadcast offsets in {self._path} can't be read: {error}; move the file away to "
                "begin anew"
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
            file.write(encode_file(offsets))
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)

    def forget(self, queue: MessageQueue) -> None:
        """Keep the offset: the queue may come back, and no broker stores broadcast offsets."""

    def table(self) -> dict[MessageQueue, int]:
        return self._table.all()
