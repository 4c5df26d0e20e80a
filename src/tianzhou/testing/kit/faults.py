"""Faults on demand. Each begins when it is asked for, and ends with `end` or with its block:

with mq.faults.refuse_sends(topic="orders"):
    ...

fault = mq.faults.slow(seconds=0.5)
...
fault.end()
"""

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar

from tianzhou.base.errors import UsageError
from tianzhou.broker.groups.sessions import Sessions
from tianzhou.broker.server import Broker
from tianzhou.net.rpc import Peer, Reply
from tianzhou.testing.kit.disk import KitDisk
from tianzhou.testing.kit.gate import SENDS, Gate, Refusal
from tianzhou.wire._generated_codes import ResponseCode

T = TypeVar("T")

REMARK: Final = "refused by the test"


class Do(Protocol):
    """Has something done in the broker's loop, and waits for it."""

    def __call__(self, work: Callable[[], T], /) -> T: ...


class Fault:
    """One fault in force."""

    def __init__(self, end: Callable[[], object], hits: Callable[[], int] = lambda: 0) -> None:
        self._end = end
        self._hits = hits
        self._is_over = False

    @property
    def hits(self) -> int:
        """How many requests it has met so far."""
        return self._hits()

    def end(self) -> None:
        """Let everything work again. A second time changes nothing."""
        if not self._is_over:
            self._is_over = True
            self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()


class Faults:
    """What can be made to go wrong. May be used from any thread."""

    def __init__(
        self, gate: Gate, disk: KitDisk, do: Do, broker: Callable[[], Broker | None]
    ) -> None:
        self._gate = gate
        self._disk = disk
        self._do = do
        self._broker = broker

    def refuse_sends(
        self,
        code: int = ResponseCode.SYSTEM_BUSY,
        *,
        remark: str = REMARK,
        topic: str | None = None,
        count: int | None = None,
    ) -> Fault:
        """Answer sends with this code instead of storing them: all, or the next `count`, or those
        to one topic."""
        return self.refuse(SENDS, code, remark=remark, topic=topic, count=count)

    def refuse(
        self,
        requests: Iterable[int],
        code: int = ResponseCode.SYSTEM_BUSY,
        *,
        remark: str = REMARK,
        topic: str | None = None,
        count: int | None = None,
        ext: dict[str, str] | None = None,
    ) -> Fault:
        """The same for requests of any code. `topic` counts where a header names one; `ext` are
        the fields of the answer."""
        refused = frozenset(requests)
        if not refused:
            raise UsageError("no request code is given, which would refuse nothing")
        if count is not None and count < 1:
            raise UsageError(f"count {count} would refuse nothing; give at least 1")
        refusal = Refusal(refused, Reply(code, ext or {}, remark=remark), topic, count)
        self._do(lambda: self._gate.refusals.append(refusal))
        return Fault(
            lambda: self._do(lambda: self._gate.refusals.remove(refusal)), lambda: refusal.hits
        )

    def slow(self, *, seconds: float) -> Fault:
        """Let every answer leave so much later. What was asked is done at once: a producer whose
        patience is shorter does not know that its message is stored."""
        if seconds <= 0:
            raise UsageError(f"seconds {seconds}: an answer can't come before the question")

        def add(by_s: float) -> None:
            self._gate.delay_s = max(0.0, self._gate.delay_s + by_s)

        self._do(lambda: add(seconds))
        return Fault(lambda: self._do(lambda: add(-seconds)))

    def full_disk(self) -> Fault:
        """No room is left. Sends are refused; as on a real disk that is full, files that can be
        spared are removed, the oldest first."""

        def change(is_full: bool) -> None:
            self._disk.is_full = is_full
            broker = self._broker()
            if broker is not None:
                broker.catch_up()  # not when it looks at the disk the next time

        self._do(lambda: change(True))
        return Fault(lambda: self._do(lambda: change(False)))

    def cut_connections(self, client_id: str | None = None) -> int:
        """Drop the connections of one client, or all, without a word; how many there were."""
        return self._do(lambda: self._cut(client_id))

    def _cut(self, client_id: str | None) -> int:
        life, broker = self._gate.life, self._broker()
        if life is None or broker is None:
            return 0
        if client_id is None:
            return life.cut(lambda _: True)
        clients = connections(broker.parts.clients.sessions)
        if client_id not in clients:
            known = ", ".join(sorted(clients)) or "none"
            raise UsageError(f"no client {client_id!r} is connected; these are: {known}")
        return life.cut(clients[client_id].__contains__)


def connections(sessions: Sessions) -> dict[str, set[Peer]]:
    """By client id, as far as heartbeats told of them."""
    known = [*sessions.producers.values(), *(g.clients for g in sessions.consumers.values())]
    found: dict[str, set[Peer]] = {}
    for clients in known:
        for peer, client in clients.items():
            found.setdefault(client.client_id, set()).add(peer)
    return found
