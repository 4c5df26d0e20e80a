"""The state that a NameServer keeps across restarts: missing brokers and each group's latest epoch.

A small file, `remembered.json` in the directory of the setting `data_dir`, rewritten shortly after
every change, in a separate thread because the write waits for the disk. It contains no routes:
brokers register again. Without a directory everything is in memory only.

An unreadable file is renamed to `remembered.json.damaged`, and the NameServer starts without it.
"""

import asyncio
import logging
from typing import Final

import msgspec

from tianzhou.base.errors import TianzhouError
from tianzhou.nameserver.epochs import Epochs, Latest
from tianzhou.nameserver.missing import MissingBrokers
from tianzhou.store.files import Files
from tianzhou.store.tables import Table
from tianzhou.wire.fastjson import BodyReader
from tianzhou.wire.nameserver_bodies import MissingBroker

log: Final = logging.getLogger("tianzhou.nameserver")

NAME: Final = "remembered.json"


class Remembered(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    epochs: dict[str, Latest] = {}
    missing: tuple[MissingBroker, ...] = ()


class Memory:
    """Owner: the event loop of the NameServer."""

    def __init__(
        self, files: Files, directory: str, *, missing: MissingBrokers, epochs: Epochs
    ) -> None:
        self._files = files
        self._table = Table(files, f"{directory}/{NAME}", BodyReader(Remembered).read, Remembered())
        self._missing = missing
        self._epochs = epochs
        self._saved = self._changes
        self._saving: asyncio.Task[None] | None = None
        self._failure = ""

    def load(self) -> None:
        """Restore the saved state. Whatever the file contains, the bounds in memory apply."""
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
        self._saved = self._changes

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
    def _changes(self) -> tuple[int, int]:
        return self._missing.changes, self._epochs.changes

    async def _save(self) -> None:
        changes = self._changes
        now = Remembered(epochs=self._epochs.all(), missing=tuple(self._missing.all()))
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
