"""Faults on demand. A fault starts with the call, and ends with `end` or with its block:

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
from tianzhou.broker.groups.groups import Sessions
from tianzhou.broker.server import Broker
from tianzhou.net.rpc import Peer, Reply
from tianzhou.testing.kit.disk import KitDisk
from tianzhou.testing.kit.gate import SENDS, Gate, Refusal
from tianzhou.wire._generated_codes import ResponseCode

T = TypeVar("T")

REMARK: Final = "refused by the test"


class Do(Protocol):
    """Runs a function in the broker's loop and waits for it."""

    def __call__(self, work: Callable[[], T], /) -> T: ...


class Fault:
    """An active fault. Use it as a context manager, or call `end`."""

    def __init__(self, end: Callable[[], object], hits: Callable[[], int] = lambda: 0) -> None:
        self._end = end
        self._hits = hits
        self._is_over = False

    @property
    def hits(self) -> int:
        """How many requests the fault has affected so far."""
        return self._hits()

    def end(self) -> None:
        """End the fault. Further calls do nothing."""
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
    """Injects faults into a running broker. May be used from any thread."""

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
        """Respond to sends with a response code instead of storing them.

        Affects all sends, or the next `count`, or those to one `topic`.

            with mq.faults.refuse_sends(ResponseCode.SYSTEM_BUSY, count=1) as fault:
                producer.send(order)  # succeeds with its second attempt
                assert fault.hits == 1
        """
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
        """Respond to requests of any code like `refuse_sends`.

        `topic` applies to requests whose header names one; `ext` are the fields of the response.
        Raises UsageError if no request could be affected.
        """
        refused = frozenset(requests)
        if not refused:
            raise UsageError("requests is empty; give at least one request code")
        if count is not None and count < 1:
            raise UsageError(f"count must be at least 1, got {count}")
        refusal = Refusal(refused, Reply(code, ext or {}, remark=remark), topic, count)
        self._do(lambda: self._gate.refusals.append(refusal))
        return Fault(
            lambda: self._do(lambda: self._gate.refusals.remove(refusal)), lambda: refusal.hits
        )

    def slow(self, *, seconds: float) -> Fault:
        """Delay every response. Requests are processed at once: a producer with a shorter timeout
        does not learn that its message is stored. Raises UsageError for a duration up to 0."""
        if seconds <= 0:
            raise UsageError(f"seconds must be above 0, got {seconds}")

        def add(by_s: float) -> None:
            self._gate.delay_s = max(0.0, self._gate.delay_s + by_s)

        self._do(lambda: add(seconds))
        return Fault(lambda: self._do(lambda: add(-seconds)))

    def full_disk(self) -> Fault:
        """Report a full disk. Sends are rejected; as on a real full disk, the oldest files are
        deleted first."""

        def change(is_full: bool) -> None:
            self._disk.is_full = is_full
            broker = self._broker()
            if broker is not None:
                broker.catch_up()  # now, not at its next check of the disk

        self._do(lambda: change(True))
        return Fault(lambda: self._do(lambda: change(False)))

    def cut_connections(self, client_id: str | None = None) -> int:
        """Abort the connections of one client, or all, and return how many there were. Raises
        UsageError if the client is not connected."""
        return self._do(lambda: self._cut(client_id))

    def _cut(self, client_id: str | None) -> int:
        life, broker = self._gate.life, self._broker()
        if life is None or broker is None:
            return 0
        if client_id is None:
            return life.cut(lambda _: True)
        clients = connections(broker.slices.groups.tables.sessions)
        if client_id not in clients:
            known = ", ".join(sorted(clients)) or "none"
            raise UsageError(f"client {client_id!r} is not connected; connected are: {known}")
        return life.cut(clients[client_id].__contains__)


def connections(sessions: Sessions) -> dict[str, set[Peer]]:
    """Return connections by client id, as far as heartbeats have announced them."""
    known = [*sessions.producers.values(), *(g.clients for g in sessions.consumers.values())]
    found: dict[str, set[Peer]] = {}
    for clients in known:
        for peer, client in clients.items():
            found.setdefault(client.client_id, set()).add(peer)
    return found
