"""Drives a node with time, messages and the disk. No other code calls the node.

A save first writes term and vote, in a separate thread because they are synced at once; then the
log, which is written here and synced by the flush thread of the store. There is one save at a time,
and everything that arrives meanwhile is in the next one: a group commit.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.net.rearm import rearm
from tianzhou.raft.messages import Message, NodeId
from tianzhou.raft.node import Node
from tianzhou.raft.ready import HardState, Ready, Save
from tianzhou.raft.roles import Role
from tianzhou.replication.raft_state import RaftFiles, new_doubt
from tianzhou.replication.raft_storage import RaftStorage
from tianzhou.store.errors import DiskFull, StoreDamaged, StoreError
from tianzhou.store.store import MessageStore

log: Final = logging.getLogger("tianzhou.raft")

FULL_RETRY_S: Final = 1.0


class Listener(Protocol):
    """Receives the events of a member."""

    def role_changed(self) -> None:
        """Handle a change of the role, the term or the leader. Called before all other events of
        it."""
        ...

    def progressed(self, ready: Ready) -> None:
        """Handle a new commit index, or new entries to apply."""
        ...

    def fenced(self, reason: str) -> None:
        """Handle a failed disk: this member has stopped taking part in the group."""
        ...


class RaftDriver:
    """Owner: the event loop."""

    def __init__(
        self,
        node: Node,
        storage: RaftStorage,
        files: RaftFiles,
        store: MessageStore,
        *,
        send: Callable[[Message], None],
        listener: Listener,
        tick_s: float,
        relaxed: bool,
    ) -> None:
        self.node = node
        self._storage = storage
        self._files = files
        self._store = store
        self._send = send
        self._listener = listener
        self._tick_s = tick_s
        self._relaxed = relaxed
        """Whether written bytes count as durable without a sync."""
        self._loop = asyncio.get_running_loop()
        self._disk = ThreadPoolExecutor(1, "tianzhou-raft")
        self._ticker: asyncio.TimerHandle | None = None
        self._is_awake = False
        self._awaited: PhysicalOffset | None = None
        """The current save is complete when the log is synced up to here."""
        self._seen = self._look()
        self.is_full = False
        """Whether the disk is full: such a member does not stand for election."""
        self.is_stopped = False

    def start(self) -> None:
        self._ticker = self._loop.call_later(self._tick_s, self._tick)
        self.wake()

    def stop(self) -> None:
        """Stop: send and do nothing from now on."""
        self.is_stopped = True
        if self._ticker is not None:
            self._ticker.cancel()
        self._disk.shutdown(wait=True)

    # What happens

    def step(self, message: Message) -> None:
        if not self.is_stopped:
            self.node.step(message)
            self.wake()

    def lost(self, member: NodeId) -> None:
        """The connection from this member ended."""
        if not self.is_stopped:
            self.node.lost(member)
            self.wake()

    def wake(self) -> None:
        """Schedule the work that the node requests, once per iteration of the event loop."""
        if not self._is_awake:
            self._loop.call_soon(self._run)
            self._is_awake = True  # set last: scheduling the call may raise MemoryError

    def _tick(self) -> None:
        if self.is_stopped:
            return
        self._ticker = rearm(self._loop, self._tick_s, self._tick)
        if self._store.is_broken:
            self._fence("the store is broken")
            return
        if not self.is_full or self.node.role is Role.LEADER:
            self.node.tick()
        self.drain()

    def _run(self) -> None:
        self._is_awake = False
        self.drain()

    # Executing the actions of the node

    def drain(self) -> None:
        node = self.node
        self._notice()
        while not self.is_stopped and node.has_ready():
            try:
                ready = node.ready()
            except StoreDamaged as error:
                self.doubt(error.offset or 0, str(error))
                return
            if ready.save is not None:
                self._save(ready.save)
            for message in ready.messages:
                self._send(message)
            self._notice()
            self._listener.progressed(ready)

    def _look(self) -> tuple[Role, int, NodeId]:
        return self.node.role, self.node.hard.term, self.node.leader

    def _notice(self) -> None:
        seen = self._look()
        if seen != self._seen:
            self._seen = seen
            self._listener.role_changed()

    def write_tail(self) -> None:
        """Write entries that the node appended itself, before any others."""
        tail = self.node.core.log.after(self._storage.last)
        if tail:
            self._storage.write(tail)

    def _save(self, save: Save) -> None:
        if save.state is None:
            self._write(save)
        else:
            done = self._disk.submit(self._save_state, save.state)
            done.add_done_callback(
                lambda _: self._loop.call_soon_threadsafe(self._saved_state, save, done.exception())
            )

    def _save_state(self, state: HardState) -> None:
        self._files.save(state)

    def _saved_state(self, save: Save, error: BaseException | None) -> None:
        if self.is_stopped:
            return
        if error is not None:
            self._fence(f"saving term and vote failed: {error}")
            return
        self._write(save)
        self.drain()

    def _write(self, save: Save) -> None:
        if self.is_stopped:
            return
        try:
            if save.begin is not None:
                self._storage.begin(save.begin)
            self._awaited = PhysicalOffset(0)
            if save.entries:
                self._awaited = self._storage.write(save.entries)
        except DiskFull as error:
            # Nothing was written, or it is truncated when it is written again.
            if not self.is_full:
                log.warning("raft.disk_full", extra={"reason": str(error)})
            self.is_full, self._awaited = True, None
            self.node.resign()
            self._loop.call_later(FULL_RETRY_S, self._write, save._replace(begin=None))
            return
        except (StoreError, OSError, ValueError) as error:
            self._fence(f"writing the log failed: {error}")
            return
        self.is_full = False
        self._confirm()

    def flushed(self) -> None:
        """Handle a sync of the store."""
        if not self.is_stopped and self._awaited is not None:
            self._confirm()
            self.wake()

    def _confirm(self) -> None:
        if self._awaited is None:
            return
        if self._relaxed or self._store.flushed >= self._awaited:
            self._awaited = None
            self.node.advance()

    def doubt(self, place: int, reason: str) -> None:
        """Record damage of the log: the member must not vote or lead before it is repaired."""
        if self.is_stopped:
            return
        self._disk.shutdown(wait=True)  # a vote may be on its way to the disk
        hard = self.node.hard
        try:
            self._files.save(hard if hard.doubt else hard._replace(doubt=new_doubt()))
            self._storage.note_damage(place)
        except OSError as error:
            reason = f"{reason}; and recording it failed: {error}"
        self._fence(reason)

    def _fence(self, reason: str) -> None:
        log.error("raft.fenced", extra={"reason": reason})
        self.is_stopped = True
        if self._ticker is not None:
            self._ticker.cancel()
        self._listener.fenced(reason)
