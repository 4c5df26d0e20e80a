"""The slave's side on a socket: it connects to the master, receives its log and reports progress.

It retries with growing pauses until it is stopped. A master that does not answer the greeting is
greeted again: it may be paused, slow or unreachable. Only if the operator listed the address as
that of a RocketMQ broker (`Follower.why_not_plain`) does the next attempt omit the greeting, and
the master must then first send the slave's last bytes again.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol, cast

from tianzhou.base.errors import TianzhouError
from tianzhou.base.kinds import PhysicalOffset
from tianzhou.net.connect import connect
from tianzhou.replication.errors import PeerRefused
from tianzhou.replication.ha_frames import Hello, LogBytes, Welcome
from tianzhou.replication.ha_plain import Overlap
from tianzhou.replication.ha_session import SlaveSession
from tianzhou.replication.ha_state import overlap_of
from tianzhou.store.store import MessageStore

log: Final = logging.getLogger("tianzhou.replication")

CONNECT_S: Final = 3.0
GREET_S: Final = 3.0
"""One of our masters answers a greeting at once."""
PROVE_S: Final = 15.0
"""How long a master without a greeting may take to send the slave's last bytes again."""
LAZY_S: Final = 0.02
"""How late a report may be that the master does not wait for."""
RETRY_S_MIN: Final = 0.2


class SlaveSettings(NamedTuple):
    secret: str
    heartbeat_s: float
    silence_s: float
    retry_s_max: float


class Follower(Protocol):
    """What the connection needs from the broker."""

    def master_address(self) -> str:
        """`host:port` where the master listens for slaves; empty: unknown."""
        ...

    def why_not_plain(self, host: str) -> str:
        """Why the master at this IP address may not be followed without a greeting; empty if it
        may."""
        ...

    def hello(self) -> Hello: ...

    def agree(self, welcome: Welcome) -> None:
        """Truncate the slave's log to a prefix of this master's log. Raises PeerRefused."""
        ...

    def appended(self) -> None:
        """Handle a longer log: make new messages visible."""
        ...

    def lost(self) -> None:
        """Handle a lost connection: the master may have moved, or may now be known."""
        ...


class HaSlave:
    """Owner: the event loop."""

    def __init__(
        self,
        store: MessageStore,
        follower: Follower,
        settings: SlaveSettings,
        monotonic_s: Callable[[], float],
    ) -> None:
        self.store = store
        self.follower = follower
        self.settings = settings
        self.monotonic_s = monotonic_s
        self.following: _Following | None = None
        self._greets = True
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self.last_error = ""
        """Why the last connection ended; for operators."""

    def start(self) -> None:
        assert self._task is None, "it follows already"
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        self.abort()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def abort(self) -> None:
        if self.following is not None:
            self.following.drop()
        if self._task is not None:
            self._task.cancel()

    def reconnect_now(self) -> None:
        """Reconnect now: the master may have a new address."""
        self._wake.set()

    @property
    def is_streaming(self) -> bool:
        return self.following is not None and self.following.is_streaming

    @property
    def master_end(self) -> int:
        """How far the master's log reaches, as last reported by it."""
        return self.following.session.master_end if self.following is not None else 0

    def flushed(self) -> None:
        """Confirm newly flushed bytes, if the master waits for that."""
        if self.following is not None and self.following.confirms_flushed:
            self.following.report()

    def tick(self) -> None:
        if self.following is not None:
            self.following.tick()

    async def _run(self) -> None:
        pause_s = RETRY_S_MIN
        while True:
            target = self.follower.master_address()
            if target:
                before = self.store.log.end
                await self._follow(target)
                # Reconnect at once only after progress; with a full disk this would spin.
                pause_s = RETRY_S_MIN if self.store.log.end > before else pause_s * 2
            else:
                pause_s *= 2
            self.follower.lost()
            pause_s = min(pause_s, self.settings.retry_s_max)
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()

    async def _follow(self, target: str) -> None:
        """Run one connection until it ends."""
        host, _, port = target.rpartition(":")
        greets, self._greets = self._greets, True
        try:
            following = await connect(
                lambda: _Following(self, greets=greets),
                host.strip("[]"),
                int(port),
                timeout_s=CONNECT_S,
            )
        except (OSError, TimeoutError, ValueError, MemoryError) as error:
            self._ended(target, f"cannot connect: {str(error) or type(error).__name__}")
            return
        self.following = following
        try:
            await following.ended
        finally:
            self.following = None
        self._greets = not following.may_go_plain
        self._ended(target, following.reason)

    def _ended(self, target: str, reason: str) -> None:
        if reason != self.last_error:
            log.warning("master.lost", extra={"master": target, "reason": reason})
        self.last_error = reason


class _Following(asyncio.Protocol):
    """One connection to a master."""

    def __init__(self, slave: HaSlave, *, greets: bool) -> None:
        self._slave = slave
        self._store = slave.store
        self._greets = greets
        self._transport: asyncio.Transport | None = None
        now_s, settings = slave.monotonic_s(), slave.settings
        self._begun_s = now_s
        self.session = SlaveSession(
            slave.follower.hello() if greets else None,
            secret=settings.secret,
            heartbeat_s=settings.heartbeat_s,
            silence_s=settings.silence_s,
            now_s=now_s,
        )
        self._rest = b""
        """The start of a record whose rest was not received yet."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.reason = "the master closed the connection"
        self.may_go_plain = False
        """Whether the next attempt omits the greeting, because this one was not answered."""
        self._host = ""
        self._overlap: Overlap | None = None
        """The bytes that a master without a greeting must send again first."""
        self._later: asyncio.TimerHandle | None = None

    @property
    def is_streaming(self) -> bool:
        """Whether the master knows the slave's position and has the slave's log."""
        if self._greets:
            return self.session.welcome is not None
        return self.session.master_end > 0 and self._is_proven

    @property
    def _is_proven(self) -> bool:
        return self._overlap is None or self._overlap.is_proven

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made = self._transport = cast("asyncio.Transport", transport)
        sock = made.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._host = (made.get_extra_info("peername") or ("",))[0]
        if self._greets:
            made.write(self.session.greeting())
        else:
            self._begin_plain()

    def _begin_plain(self) -> None:
        """Request the slave's last bytes, and what follows, from a master without a greeting."""
        reason = self._slave.follower.why_not_plain(self._host)
        if reason:
            self.fail(reason)
            return
        assert self._transport is not None
        self._overlap = overlap_of(self._store)
        if self._overlap is None:
            self.report()
            return
        report = self.session.report(self._overlap.start, self._slave.monotonic_s())
        self._transport.write(report)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        if self._transport.is_closing():
            return
        session, is_agreed = self.session, self.session.welcome is not None
        try:
            pieces = session.received(data, self._slave.monotonic_s())
            if session.welcome is not None and not is_agreed:
                self._slave.follower.agree(session.welcome)
                self._transport.write(session.agreed())
                self.report()
            if pieces and not self._is_proven:
                assert self._overlap is not None
                pieces = self._overlap.strip(pieces)
                if self._is_proven:
                    log.info("master.agreed", extra={"epoch": 0, "end": self._overlap.end})
                    self.report()
            if pieces:
                self._append(pieces)
        except TianzhouError as error:
            self.fail(str(error))

    def _append(self, pieces: list[LogBytes]) -> None:
        """Append everything of one read at once."""
        data = b"".join([self._rest, *(piece.data for piece in pieces)])
        start = PhysicalOffset(pieces[0].offset - len(self._rest))
        end = self._store.append_raw(start, data)
        self._rest = data[end - start :]
        if end > start:
            if self.confirms_flushed:
                self._store.ask_flush()
            self._report_soon()
            self._slave.follower.appended()

    def _report_soon(self) -> None:
        """Report at once if the master waits for it, otherwise after a short delay."""
        welcome = self.session.welcome
        if welcome is None or welcome.confirm_at_once:
            self.report()
        elif self._later is None:
            self._later = asyncio.get_running_loop().call_later(LAZY_S, self._report_delayed)

    def _report_delayed(self) -> None:
        self._later = None
        self.report()

    @property
    def confirms_flushed(self) -> bool:
        return self.session.welcome is not None and self.session.welcome.confirm_flushed

    def report(self) -> None:
        """Report to the master how far the log reaches, or how far it is flushed if the master
        requires that."""
        assert self._transport is not None
        if not self._is_proven or (self._greets and self.session.welcome is None):
            return
        end = self._store.log.end
        if self.confirms_flushed:
            end = min(end, self._store.flushed)
        report = self.session.report(end, self._slave.monotonic_s())
        if report and not self._transport.is_closing():
            self._transport.write(report)

    def tick(self) -> None:
        assert self._transport is not None
        now_s = self._slave.monotonic_s()
        if self._greets and self.session.welcome is None and now_s - self._begun_s > GREET_S:
            self._on_greeting_timeout()
            return
        if not self._is_proven and now_s - self._begun_s > PROVE_S:
            assert self._overlap is not None
            self.fail(
                f"the master did not resend the slave's last bytes, up to {self._overlap.end}, "
                f"within {PROVE_S:.0f} s; its log may be shorter"
            )
            return
        try:
            report = self.session.tick(now_s)
        except PeerRefused as error:
            self.fail(str(error))
        else:
            if report:
                self._transport.write(report)

    def _on_greeting_timeout(self) -> None:
        why_not = self._slave.follower.why_not_plain(self._host)
        self.may_go_plain = not why_not
        reason = f"the master did not answer the greeting within {GREET_S:.0f} s"
        self.fail(f"{reason}; {why_not}" if why_not else reason)

    def fail(self, reason: str) -> None:
        self.reason = reason
        self.drop()

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._later is not None:
            self._later.cancel()
        if exc is not None:
            self.reason = f"the connection broke: {exc}"
        if not self.ended.done():
            self.ended.set_result(None)
