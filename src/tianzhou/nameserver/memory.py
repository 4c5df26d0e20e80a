"""The state that a NameServer keeps across restarts: registered and missing brokers, and epochs.

A small file, `remembered.json` in the directory of the setting `data_dir`, rewritten shortly after
every change, in a separate thread because the write waits for the disk. It contains no routes:
brokers register again, and those that do not are missing. Without a directory everything is in
memory only.

An unreadable file is renamed to `remembered.json.damaged`, and the NameServer starts without it.
"""

import asyncio
import logging
from collections.abc import Iterator
from itertools import islice
from typing import Final

import msgspec

from tianzhou.base.errors import TianzhouError
from tianzhou.nameserver.brokers import BrokerGroup, Lost, Member
from tianzhou.nameserver.epochs import Epochs, Latest
from tianzhou.nameserver.missing import BROKERS_MAX, MissingBrokers
from tianzhou.nameserver.routes import RouteTable
from tianzhou.store.files import Files
from tianzhou.store.tables import Table
from tianzhou.wire.fastjson import BodyReader
from tianzhou.wire.nameserver_bodies import MissingBroker
from tianzhou.wire.tables import DataVersion

log: Final = logging.getLogger("tianzhou.nameserver")

NAME: Final = "remembered.json"
NOT_BACK: Final = "not_back"
"""The reason of brokers that a restarted NameServer misses."""


class Remembered(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    epochs: dict[str, Latest] = {}
    missing: tuple[MissingBroker, ...] = ()
    present: tuple[MissingBroker, ...] = ()
    """Brokers that are registered; missing if they are not after a restart."""


class Memory:
    """Owner: the event loop of the NameServer."""

    def __init__(
        self,
        files: Files,
        directory: str,
        *,
        missing: MissingBrokers,
        epochs: Epochs,
        routes: RouteTable | None = None,
    ) -> None:
        self._files = files
        self._table = Table(files, f"{directory}/{NAME}", BodyReader(Remembered).read, Remembered())
        self._missing = missing
        self._epochs = epochs
        self._routes = routes if routes is not None else RouteTable()
        self._present: dict[tuple[str, str], tuple[DataVersion, MissingBroker]] = {}
        """Processes that are registered, with the version of the topics that are described."""
        self._saved = self._changes
        self._saving: asyncio.Task[None] | None = None
        self._failure = ""

    def load(self, now_ms: int = 0) -> None:
        """Restore the saved state, and expect the brokers that were registered. Whatever the file
        contains, the bounds in memory apply."""
        path = self._table.path
        try:
            found = self._table.load()
        except (TianzhouError, OSError) as error:
            remedy = f"missing brokers and epochs are forgotten; the file is kept as {path}.damaged"
            log.warning("memory.damaged", extra={"reason": str(error), "remedy": remedy})
            for suffix in ("", ".bak"):
                if self._files.exists(path + suffix):
                    self._files.rename(path + suffix, f"{path}{suffix}.damaged")
            return
        self._missing.restore(found.missing)
        self._epochs.restore(found.epochs)
        self._missing.expect(found.present, now_ms)
        self._saved = self._changes

    def note_topics(self) -> None:
        """Let the next save describe new topics of registered brokers. Called at every scan only:
        topics change more often than brokers, and each description costs time."""
        versions = [version for version, _ in self._present.values()]
        if versions != [member.data_version for _, _, member in self._described()]:
            self._saved = (-1, *self._saved[1:])

    def save_soon(self) -> None:
        """Write the file if anything changed. Called after every request and every lost broker."""
        if self._changes != self._saved and self._saving is None:
            self._saving = asyncio.get_running_loop().create_task(self._save())

    async def close(self) -> None:
        """Write pending changes."""
        if self._saving is not None:
            await self._saving
        self.save_soon()
        if self._saving is not None:
            await self._saving

    @property
    def _changes(self) -> tuple[int, int, int]:
        return self._missing.changes, self._epochs.changes, self._routes.changes

    def _described(self) -> Iterator[tuple[BrokerGroup, int, Member]]:
        return islice(self._routes.members(), BROKERS_MAX)

    def _describe(self) -> tuple[MissingBroker, ...]:
        """What a restarted NameServer should know of the brokers that are registered now."""
        found: dict[tuple[str, str], tuple[DataVersion, MissingBroker]] = {}
        for group, broker_id, member in self._described():
            key = group.name, member.address
            version, row = self._present.get(key, (None, None))
            if row is None or version != member.data_version or row.broker_id != broker_id:
                rows = self._routes.topics.rows_of_broker(group.name)
                lost = Lost(group.name, broker_id, group.cluster, member, rows)
                row = self._missing.row_of(lost, NOT_BACK, 0)
            found[key] = member.data_version, row
        self._present = found
        return tuple(row for _, row in found.values()) + tuple(self._missing.expected())

    async def _save(self) -> None:
        changes = self._changes
        now = Remembered(
            epochs=self._epochs.all(), missing=tuple(self._missing.all()), present=self._describe()
        )
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._table.save, now)
        except TianzhouError as error:  # the next scan retries
            if str(error) != self._failure:
                log.warning("memory.not_saved", extra={"reason": str(error)})
            self._failure = str(error)
            return
        finally:
            self._saving = None
        self._failure, self._saved = "", changes
        self.save_soon()
