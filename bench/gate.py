"""The access gate: its share of the CPU time of a send, in the worst case of one send per read.

A broker without sockets handles the same send many times, once with the gate as it is and once with
a gate that repeats its check; the difference is the cost of the repetitions. Run it alone with
`python -m bench.gate`.
"""

from collections.abc import Iterator
from time import process_time
from typing import Final, cast

from bench.load import send_frame
from bench.measure import Limit
from tianzhou.broker.access.gate import AccessGate, OpenAccess
from tianzhou.net.rpc import Peer, RequestRejected
from tianzhou.net.server_connection import ServerConnection
from tianzhou.testing.small_broker import RecordingPeer, SmallBroker, frames

SENDS: Final = 4_000
ROUND_SENDS: Final = 20
"""Sends of one iteration of the event loop."""
CHECKS: Final = 50
"""Repetitions: enough that the difference is far above the noise."""
REPEATS: Final = 5
SHARE_MAX: Final = 2.0


class RepeatedAccess:
    """Does the work of the gate several times, with the calls that the router makes for it."""

    def __init__(self) -> None:
        self._gate: AccessGate = OpenAccess()

    def check(self, peer: Peer, code: int) -> None:
        for _ in range(CHECKS):
            self._admits(peer, code)

    def _admits(self, peer: Peer, code: int) -> bool:
        try:
            self._gate.check(peer, code)
        except RequestRejected:
            return False
        return True


def limits() -> Iterator[Limit]:
    """The share of the gate, at most `SHARE_MAX` percent."""
    plain_s = min(_send_s(OpenAccess()) for _ in range(REPEATS))
    repeated_s = min(_send_s(RepeatedAccess()) for _ in range(REPEATS))
    share = (repeated_s - plain_s) / CHECKS / plain_s
    yield Limit("broker", "access gate, share of a send", share * 100, SHARE_MAX, "%")


def _send_s(access: AccessGate) -> float:
    """CPU time of all sends, each read separately."""
    broker = SmallBroker()
    broker.send("bench")
    requests = broker.requests
    requests.access = access
    batch = frames(send_frame("bench", bytes(100), 1))
    begun = process_time()
    for _ in range(SENDS // ROUND_SENDS):
        peer = RecordingPeer()
        connection = cast("ServerConnection", peer)  # has every attribute that handlers use
        for _ in range(ROUND_SENDS):
            requests.received(connection, batch)
        broker.slices.base.writer.settle()
    return process_time() - begun


if __name__ == "__main__":
    for limit in limits():
        print(f"{limit.name}: {limit.value:.2f} {limit.unit}, at most {limit.maximum} {limit.unit}")
