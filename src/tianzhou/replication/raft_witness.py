"""A running witness: a member that votes and stores the terms of entries, but no messages.

It needs no store, no client port and hardly any disk: while both copies work, it writes 512 bytes
with the heartbeats of the leader if something was committed; while one is away, with every group
commit of the leader.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from random import Random
from typing import Final

from tianzhou.base.errors import RemoteProtocolError, UsageError
from tianzhou.raft.messages import Entry, LogIndex, Message, NodeId, Start
from tianzhou.raft.node import Node
from tianzhou.raft.ready import HardState, Ready, Save
from tianzhou.replication.raft_contacts import Contacts
from tianzhou.replication.raft_driver import FULL_RETRY_S, RaftDriver, config_of
from tianzhou.replication.raft_peers import Greeting, MemberKind
from tianzhou.replication.raft_settings import RaftSettings
from tianzhou.replication.witness_state import WitnessFiles
from tianzhou.store.descriptors import is_shortage
from tianzhou.store.files import Files

log: Final = logging.getLogger("tianzhou.raft")


class WitnessDisk:
    """The `MemberDisk` of a witness: everything is in one slot, written and synced by a thread.
    Owner: the driver."""

    def __init__(
        self, files: WitnessFiles, *, settled: Callable[[], Start], saved: Callable[[], None]
    ) -> None:
        """`settled` is the last entry that is known to be committed; `saved` is called when a save
        is durable."""
        self._files = files
        self._settled = settled
        self._saved = saved
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "tianzhou-witness")
        self._is_durable = False
        self._is_closed = False
        self.is_syncing = False
        self.is_broken = False

    def save_state(self, state: HardState, then: Callable[[BaseException | None], object]) -> None:
        then(None)  # term and vote are part of what `write` writes

    def write(self, save: Save) -> None:
        if self._is_closed:
            return
        self.is_syncing = True
        self._thread.submit(self._write, save, self._settled()).add_done_callback(
            lambda done: self._loop.call_soon_threadsafe(self._written, done, save)
        )

    def _write(self, save: Save, settled: Start) -> None:
        self._files.save(self._files.state.after(save, settled))
        self._files.note_members(save)

    def _written(self, done: Future[None], save: Save) -> None:
        error = done.exception()
        if error is None:
            self._is_durable = True
            self._saved()
        elif isinstance(error, OSError) and is_shortage(error):
            log.warning("raft.disk_full", extra={"reason": str(error)})
            self._loop.call_later(FULL_RETRY_S, self.write, save)
        else:
            log.error("raft.witness_not_saved", extra={"reason": str(error)})
            self.is_broken = True

    def take_durable(self) -> bool:
        if not self._is_durable:
            return False
        self._is_durable = self.is_syncing = False
        return True

    def record_damage(self, hard: HardState, place: int) -> None:
        raise AssertionError("a witness reads its disk only when it starts")

    def close(self) -> None:
        self._is_closed = True
        self._thread.shutdown(wait=True)


class NoEntries:
    """The `LogStorage` of a witness: only leaders read entries."""

    def entries(self, first: LogIndex, last: LogIndex, bytes_max: int) -> tuple[Entry, ...]:
        raise AssertionError("a witness has no entries")

    def mark(self) -> bytes:
        raise AssertionError("a witness never leads")


class Witness:
    """The driver's `Listener`. Owner: the event loop."""

    def __init__(
        self, settings: RaftSettings, files: Files, root: str, *, on_fenced: Callable[[str], None]
    ) -> None:
        settings = as_witness(settings)
        self._on_fenced = on_fenced
        self._files = WitnessFiles(files, root)
        saved = self._files.open(settings)
        config, tick_s = config_of(settings, is_witness=True)
        self.node = Node(settings.raft_id, config, Random(), storage=NoEntries(), saved=saved)
        greeting = Greeting(settings.raft_group, settings.raft_id, 0, "", MemberKind.WITNESS)
        self.contacts = Contacts(
            settings,
            self.node,
            greeting,
            on_message=self._received,
            on_lost=self._lost,
            check_mark=_check_mark,
        )
        disk = WitnessDisk(self._files, settled=self._settled, saved=self._saved)
        self._driver = RaftDriver(
            self.node, disk, send=self.contacts.peers.send, listener=self, tick_s=tick_s
        )

    async def start(self) -> None:
        self.contacts.listen()
        self._driver.start()

    async def close(self) -> None:
        self._driver.stop()
        await self.contacts.peers.close()
        self._files.close()

    # Events of the connections, the disk and the driver

    def _received(self, message: Message) -> None:
        self._driver.step(message)

    def _lost(self, member: NodeId) -> None:
        self._driver.lost(member)

    def _saved(self) -> None:
        self._driver.flushed()

    def _settled(self) -> Start:
        raft_log = self.node.core.log
        return Start(raft_log.commit, raft_log.terms.at(raft_log.commit))

    def role_changed(self) -> None:
        node = self.node
        log.info("raft.witness", extra={"term": node.hard.term, "leader": node.leader})

    def progressed(self, ready: Ready) -> None:
        self.contacts.meet()

    def fenced(self, reason: str) -> None:
        self._on_fenced(reason)


def as_witness(settings: RaftSettings) -> RaftSettings:
    """The settings of the member that is the witness. Raises UsageError: another one is."""
    if settings.raft_witness not in ("", settings.raft_id):
        raise UsageError(
            f"raft_id is {settings.raft_id!r}, but the witness of {settings.raft_group} is "
            f"{settings.raft_witness!r}; start {settings.raft_id!r} with `tianzhou broker`"
        )
    return replace(settings, raft_witness=settings.raft_id)


def _check_mark(mark: bytes) -> None:
    if mark:
        raise RemoteProtocolError("the leader takes this witness for a copy")
