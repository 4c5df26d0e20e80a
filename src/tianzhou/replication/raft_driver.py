"""What drives the node of a member: time, messages and the disk.

A save of the node first writes term and vote, in a separate thread because they are synced at once;
then the log, which is written here and synced by another thread. There is one save at a time, and
everything that arrives meanwhile is in the next one: a group commit.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from tianzhou.net.rearm import rearm
from tianzhou.raft.config import RaftConfig
from tianzhou.raft.messages import Message, NodeId
from tianzhou.raft.node import Node
from tianzhou.raft.ready import HardState, Ready, Save
from tianzhou.raft.roles import Role
from tianzhou.replication.raft_settings import RaftSettings
from tianzhou.store.errors import DiskFull, StoreDamaged, StoreError

log: Final = logging.getLogger("tianzhou.raft")

TICKS_PER_ELECTION: Final = 10
INFLIGHT_MAX: Final = 64
APPEND_BYTES_MAX: Final = 1 << 20
FULL_RETRY_S: Final = 1.0


def config_of(settings: RaftSettings, *, is_witness: bool = False) -> tuple[RaftConfig, float]:
    """The settings of a node, and the duration of a tick in seconds."""
    tick_ms = settings.raft_election_ms / TICKS_PER_ELECTION
    config = RaftConfig(
        election_ticks=TICKS_PER_ELECTION,
        heartbeat_ticks=max(1, round(settings.raft_heartbeat_ms / tick_ms)),
        append_bytes_max=APPEND_BYTES_MAX,
        inflight_max=INFLIGHT_MAX,
        is_witness=is_witness,
    )
    return config, tick_ms / 1000


class MemberDisk(Protocol):
    """Makes the saves of a node durable. Owner: the driver."""

    @property
    def is_broken(self) -> bool: ...

    @property
    def is_syncing(self) -> bool:
        """Whether a save is written that was not reported as durable yet."""
        ...

    def save_state(self, state: HardState, then: Callable[[BaseException | None], object]) -> None:
        """Write term and vote in a thread, which then calls `then` with the error, or None."""
        ...

    def write(self, save: Save) -> None:
        """Write the log of a save. Raises DiskFull: nothing was written, or it is truncated when it
        is written again. Raises other errors of the store, and ValueError."""
        ...

    def take_durable(self) -> bool:
        """Whether the written save is durable now. True once for each save."""
        ...

    def record_damage(self, hard: HardState, place: int) -> None:
        """Record that the log is damaged, and that this member is therefore in doubt."""
        ...

    def close(self) -> None:
        """Wait for a vote that may be on its way to the disk."""
        ...


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
    """Drives a node with time, messages and the disk. Owner: the event loop."""

    def __init__(
        self,
        node: Node,
        disk: MemberDisk,
        *,
        send: Callable[[Message], None],
        listener: Listener,
        tick_s: float,
    ) -> None:
        self.node = node
        self._disk = disk
        self._send = send
        self._listener = listener
        self._tick_s = tick_s
        self._loop = asyncio.get_running_loop()
        self._ticker: asyncio.TimerHandle | None = None
        self._is_awake = False
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
        self._disk.close()

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
        if self._disk.is_broken:
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

    def _save(self, save: Save) -> None:
        if save.state is None:
            self._write(save)
        else:
            call, saved_state = self._loop.call_soon_threadsafe, self._saved_state
            self._disk.save_state(save.state, lambda error: call(saved_state, save, error))

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
            self._disk.write(save)
        except DiskFull as error:
            if not self.is_full:
                log.warning("raft.disk_full", extra={"reason": str(error)})
            self.is_full = True
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
        if not self.is_stopped and self._disk.is_syncing:
            self._confirm()
            self.wake()

    def _confirm(self) -> None:
        if self._disk.take_durable():
            self.node.advance()

    def doubt(self, place: int, reason: str) -> None:
        """Record damage of the log: the member must not vote or lead before it is repaired."""
        if self.is_stopped:
            return
        self._disk.close()
        try:
            self._disk.record_damage(self.node.hard, place)
        except OSError as error:
            reason = f"{reason}; and recording it failed: {error}"
        self._fence(reason)

    def _fence(self, reason: str) -> None:
        log.error("raft.fenced", extra={"reason": reason})
        self.is_stopped = True
        if self._ticker is not None:
            self._ticker.cancel()
        self._listener.fenced(reason)
