"""The master's side on sockets: slaves connect, receive the log and report their progress."""

import asyncio
import enum
import logging
import secrets
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, cast

import msgspec

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.net.acceptor import Acceptor, bind
from tianzhou.net.admission import Slot
from tianzhou.net.limits import HA_PORT, PortLimits
from tianzhou.replication.durability import Outcome
from tianzhou.replication.errors import PeerRefused, Superseded
from tianzhou.replication.ha_frames import Welcome, encode_spoken
from tianzhou.replication.ha_session import MasterFacts, MasterSession
from tianzhou.replication.ha_state import extent_of, log_bytes, matches
from tianzhou.store.store import MessageStore
from tianzhou.wire.replication_bodies import LostSlave, SlaveView

log: Final = logging.getLogger("tianzhou.replication")

LAZY_BYTES: Final = 64 * 1024
LAZY_S: Final = 0.005
"""While no response waits for slaves, the log is sent in parts of this size or after this time: a
part in every iteration of the loop would cost the master more than half of a send."""
UNSENT_BYTES_MAX: Final = 4 * 1024 * 1024
"""Log bytes in memory on their way to one slave; the rest is read from the log when there is
room."""
_MISSED_MAX: Final = 64
_MISSED_S: Final = 86_400.0
"""A slave that was removed permanently is reported as lost for this long."""
_HISTORY: Final = 600
"""How many past ends of the log are kept to compute the delay of a slave."""


def bind_for_slaves(host: str, chosen: int, usual: int) -> socket.socket | None:
    """Bind the port for slaves. Returns None if none was configured (0) and the usual one is
    taken."""
    try:
        return bind(host, chosen or usual)
    except OSError as error:
        if chosen:
            raise
        log.warning("ha_port.busy", extra={"port": usual, "reason": str(error)})
        return None


class Standing(enum.Enum):
    """Whether this broker knows that it is still the master, so that reports of slaves count."""

    SURE = enum.auto()
    ASKING = enum.auto()
    """It may have been replaced: one slave left, and others may still follow it. Reports count once
    a NameServer has accepted it as the master."""
    ALONE = enum.auto()
    """No NameServer accepts it: slaves count as missing until one does."""


class SlaveEvents(NamedTuple):
    """What the owner of a `HaMaster` wants to know about its slaves."""

    confirmed: Callable[[], None] = lambda: None
    """Called when `replicated` has advanced and responses wait for that."""
    superseded: Callable[[int], None] = lambda _epoch: None
    """Called when a slave knows a later master."""
    left: Callable[[], None] = lambda: None
    """Called when a slave stops following."""


_IGNORED: Final = SlaveEvents()


class AckRule(NamedTuple):
    """Which slaves must confirm before a message counts as replicated."""

    behind_bytes_max: int
    """A slave that lacks this much of the log is not in sync."""
    needed: int = 1
    """How many slaves must confirm."""
    hurries: bool = False
    """Whether responses wait for slaves."""


class SlaveHistory:
    """What a master remembers for operators: past ends of its log, and slaves that left.

    Owner: the master.
    """

    def __init__(self) -> None:
        self._ends: deque[tuple[float, int]] = deque(maxlen=_HISTORY)
        self._left: dict[int, tuple[float, LostSlave]] = {}

    def clear(self) -> None:
        self._ends.clear()
        self._left.clear()

    def record_end(self, end: int, now_s: float) -> None:
        if not self._ends or self._ends[-1][1] != end:
            self._ends.append((now_s, end))

    def late_ms(self, acked: int, end: int, now_s: float) -> int:
        """Return about how long ago the first byte that the slave lacks was written."""
        if acked >= end:
            return 0
        since = next((at_s for at_s, then in self._ends if then > acked), now_s)
        return round((now_s - since) * 1000)

    def record_left(self, slave: LostSlave, now_s: float) -> None:
        self._left.pop(slave.broker_id, None)
        self._left[slave.broker_id] = now_s, slave
        if len(self._left) > _MISSED_MAX:
            del self._left[next(iter(self._left))]

    def lost(self, connected: set[int], now_s: float) -> list[LostSlave]:
        """Return the slaves that left and are not among the connected ids; forget the others."""
        self._left = {
            broker_id: (at_s, slave)
            for broker_id, (at_s, slave) in self._left.items()
            if broker_id not in connected and now_s - at_s < _MISSED_S
        }
        return [
            msgspec.structs.replace(slave, gone_ms=round((now_s - at_s) * 1000))
            for at_s, slave in self._left.values()
        ]


class _Pump:
    """How far the log was sent, and the timer that sends the rest. Owner: the master."""

    def __init__(self) -> None:
        self.end = PhysicalOffset(0)
        self._timer: asyncio.TimerHandle | None = None

    def schedule(self, pump: Callable[[], None]) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LAZY_S, pump)

    def started(self, end: PhysicalOffset) -> None:
        self.end = end
        self.cancel()

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class HaMaster:
    """Sends the log to slaves and implements `Replicas`, for which responses wait. Owner: the event
    loop.

    Invariant: replicated never decreases while this broker is the master
    """

    def __init__(
        self,
        store: MessageStore,
        facts: Callable[[], MasterFacts | None],
        monotonic_s: Callable[[], float],
        *,
        behind_bytes_max: int,
        events: SlaveEvents = _IGNORED,
    ) -> None:
        """`facts` returns None while this broker is not the master."""
        self._store = store
        self._facts = facts
        self._monotonic_s = monotonic_s
        self._rule = AckRule(behind_bytes_max)
        self.events = events
        self.connections: set[_Connection] = set()
        self.refused_count = 0
        self.standing = Standing.SURE
        self.replicated = PhysicalOffset(0)
        """See `Replicas`."""
        self._pump = _Pump()
        self._history = SlaveHistory()
        self._acceptor: Acceptor | None = None

    def listen(self, bound: socket.socket, limits: PortLimits = HA_PORT) -> None:
        """Accept slaves. A peer has proven itself once the log streams to it."""
        self._acceptor = Acceptor(limits, lambda slot: _Connection(self, slot))
        self._acceptor.listen(bound)

    def require(self, needed: int, *, hurries: bool) -> None:
        """Count a message as replicated once this many slaves have it; `hurries` if responses
        wait for that."""
        self._rule = self._rule._replace(needed=needed, hurries=hurries)

    def begin(self) -> None:
        """Start as the master. Everything in its log was confirmed before, or is declared confirmed
        by the promotion."""
        self.replicated = self._store.log.end
        self.standing = Standing.SURE
        self._history.clear()

    def stand(self, standing: Standing) -> None:
        """Count the reports of slaves from now on, or no longer."""
        self.standing = standing
        self.acked()

    def drop_all(self) -> None:
        for connection in tuple(self.connections):
            connection.drop()

    def close(self) -> None:
        self.events = _IGNORED
        if self._acceptor is not None:
            self._acceptor.close()
        self._pump.cancel()
        self.drop_all()

    # State of the slaves

    def missing(self) -> Outcome | None:
        if self.standing is Standing.ALONE:
            return Outcome.SLAVE_NOT_AVAILABLE
        near = sum(self._is_near(one) for one in self.connections)
        return None if near >= self._rule.needed else Outcome.SLAVE_NOT_AVAILABLE

    @property
    def too_late(self) -> Outcome:
        return Outcome.FLUSH_SLAVE_TIMEOUT

    def _is_near(self, one: "_Connection") -> bool:
        session = one.session
        if session is None or not session.counts:
            return False
        return self._store.log.end - session.acked < self._rule.behind_bytes_max

    def rows(self) -> list[SlaveView]:
        end, now_s = self._store.log.end, self._monotonic_s()
        rows: list[SlaveView] = []
        for one in self.connections:
            session = one.session
            if session is None or not session.is_streaming:
                continue
            hello = session.hello
            rows.append(
                SlaveView(
                    acked=session.acked,
                    address=(hello.address if hello else "") or one.remote,
                    broker_id=hello.id if hello else -1,
                    is_in_sync=self._is_near(one),
                    lag_bytes=end - session.acked,
                    lag_ms=self._history.late_ms(session.acked, end, now_s),
                )
            )
        return sorted(rows, key=lambda row: (row.broker_id, row.address))

    def left(self, slave: LostSlave) -> None:
        """Record that a slave stopped following."""
        self._history.record_left(slave, self._monotonic_s())
        self.events.left()

    def lost(self) -> list[LostSlave]:
        """Remember a slave that died: all other components forget it at once, and operators must
        learn of it."""
        connected = {row.broker_id for row in self.rows()}
        return self._history.lost(connected, self._monotonic_s())

    # Work

    def grown(self) -> None:
        """Send new log bytes, now or shortly after."""
        end = self._store.log.end
        pump = self._pump
        if not self.connections or end == pump.end:
            return
        if self._rule.hurries or end - pump.end >= LAZY_BYTES:
            self.pump()
        else:
            pump.schedule(self.pump)

    def pump(self) -> None:
        """Send what was appended."""
        self._pump.started(self._store.log.end)
        for connection in tuple(self.connections):
            connection.pump()

    def tick(self) -> None:
        """About every second."""
        now_s = self._monotonic_s()
        self._history.record_end(self._store.log.end, now_s)
        for connection in tuple(self.connections):
            connection.tick(now_s)

    def forget_earlier(self, newest: "_Connection") -> None:
        """Replace the connection of a slave that reconnected before its loss was noticed: it is one
        replica."""
        for other in tuple(self.connections):
            if other is not newest and other.slave and other.slave == newest.slave:
                self.connections.discard(other)
                other.drop()

    def acked(self) -> None:
        """Update `replicated` after a report."""
        if self.standing is not Standing.SURE:
            return
        acks = sorted(
            (
                one.session.acked
                for one in self.connections
                if one.session is not None and one.session.counts
            ),
            reverse=True,
        )
        needed = self._rule.needed
        if len(acks) >= needed and acks[needed - 1] > self.replicated:
            self.replicated = acks[needed - 1]
            if self._rule.hurries:
                self.events.confirmed()

    def session(self, host: str) -> MasterSession | None:
        facts = self._facts()
        if facts is None:
            return None
        store = self._store
        return MasterSession(
            facts,
            lambda: extent_of(store),
            lambda probe: matches(store, probe),
            host=host,
            nonce=secrets.token_hex(16),
            now_s=self._monotonic_s(),
        )

    def read(self, offset: PhysicalOffset, size: int) -> bytes:
        data = log_bytes(self._store, offset, size)
        assert data is not None, f"the log does not hold {size} bytes at {offset}"
        return data

    @property
    def now_s(self) -> float:
        return self._monotonic_s()


class _Connection(asyncio.Protocol):
    """One slave, or any other peer that connected to the port."""

    def __init__(self, master: HaMaster, slot: Slot) -> None:
        self._master = master
        self._slot = slot
        self._transport: asyncio.Transport | None = None
        self._is_paused = False
        self._is_slave = False
        self.session: MasterSession | None = None
        self.remote = ""

    @property
    def slave(self) -> str:
        """The address where the slave serves clients, which identifies it; empty if unknown."""
        hello = self.session.hello if self.session is not None else None
        return hello.address if hello is not None else ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made = self._transport = cast("asyncio.Transport", transport)
        peer = made.get_extra_info("peername") or ("", 0)
        self.remote = f"{peer[0]}:{peer[1]}"
        self.session = self._master.session(peer[0])
        if self.session is None:
            made.abort()
            return
        made.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        sock = made.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._master.connections.add(self)

    def data_received(self, data: bytes) -> None:
        session, transport = self.session, self._transport
        if session is None or transport is None or transport.is_closing():
            return
        was_streaming, acked = session.is_streaming, session.acked
        try:
            answer = session.received(data, self._master.now_s)
            if answer:
                transport.write(answer)
        except PeerRefused as error:
            self.refuse(error)
            return
        if session.is_streaming and not was_streaming:
            self._master.forget_earlier(self)
            if not self._slot.prove():
                self.refuse(PeerRefused("the limit on slaves is reached"))
                return
            self._is_slave = True
            self._note("slave.streaming", start=int(session.sent))
        if session.is_streaming and (not was_streaming or session.acked > acked):
            self._master.acked()
        self.pump()

    def pump(self) -> None:
        session, transport = self.session, self._transport
        if session is None or transport is None or self._is_paused or transport.is_closing():
            return
        try:
            while not self._is_paused and (wanted := session.next_range()) is not None:
                data = self._master.read(*wanted)
                transport.write(session.frame(data, self._master.now_s))
        except PeerRefused as error:
            self.refuse(error)

    def tick(self, now_s: float) -> None:
        session, transport = self.session, self._transport
        if session is None or transport is None or transport.is_closing():
            return
        try:
            heartbeat = session.tick(now_s)
            if heartbeat:
                transport.write(heartbeat)
        except PeerRefused as error:
            self.refuse(error)

    def refuse(self, error: PeerRefused) -> None:
        """Send the reason to a peer that greeted, and close."""
        assert self._transport is not None
        assert self.session is not None
        if self._transport.is_closing():
            return
        self._master.connections.discard(self)
        self._master.refused_count += 1
        log.warning("slave.refused", extra={"peer": self.remote, "reason": str(error)})
        epoch = error.epoch if isinstance(error, Superseded) else 0
        if self.session.hello is not None and not self.session.is_streaming:
            refusal = Welcome(refusal=str(error), superseded_by=epoch)
            self._transport.write(encode_spoken(refusal))
            self._transport.close()
        else:
            self._transport.abort()
        if epoch:
            self._master.events.superseded(epoch)

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self.pump()

    def connection_lost(self, exc: Exception | None) -> None:
        self._slot.release()
        self._master.connections.discard(self)
        session = self.session
        if session is not None and self._is_slave:
            self._note("slave.gone", acked=int(session.acked))
            if session.hello is not None:
                address, broker_id = session.hello.address or self.remote, session.hello.id
                self._master.left(
                    LostSlave(acked=session.acked, address=address, broker_id=broker_id, gone_ms=0)
                )

    def _note(self, event: str, **facts: object) -> None:
        hello = self.session.hello if self.session is not None else None
        kind = f"slave {hello.id}" if hello else "a RocketMQ slave"
        log.info(event, extra={"peer": self.remote, "slave": kind, **facts})
