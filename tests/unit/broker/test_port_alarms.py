"""Ports that turn connections away, as alarms."""

import asyncio
import socket
from dataclasses import replace

from tianzhou.broker.alarms import Since
from tianzhou.broker.observe.health import PortAlarms
from tianzhou.net import admission
from tianzhou.net.acceptor import Acceptor
from tianzhou.net.admission import DescriptorBudget, Slot
from tianzhou.net.limits import CLIENT_PORT
from tianzhou.testing.sim.clock import ManualClock


class Quiet(asyncio.Protocol):
    def __init__(self, slot: Slot) -> None:
        self._slot = slot

    def connection_lost(self, exc: Exception | None) -> None:
        self._slot.release()


def test_port_alarms_list_a_port_while_it_rejects_connections() -> None:
    async def run() -> None:
        budget, clock = DescriptorBudget(lambda: 100), ManualClock()
        alarms = PortAlarms("broker-a", Since(clock), budget)
        port = Acceptor(replace(CLIENT_PORT, connections_max=2), Quiet, budget=budget)
        bound = socket.socket()
        bound.bind(("127.0.0.1", 0))
        port.listen(bound)
        assert list(alarms.current()) == []
        held = [await asyncio.open_connection(*bound.getsockname()) for _ in range(3)]
        async with asyncio.timeout(120):
            while not port.admission.refused_count:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        (alarm,) = alarms.current()
        assert (alarm.kind, alarm.since_ms) == ("client_port_full", clock.now_ms())
        assert "client port of broker-a" in alarm.text
        for _, writer in held:
            writer.close()
        port.close()
        assert list(alarms.current()) == [], "a port that is closed raises none"

    asyncio.run(run())


def test_port_alarms_last_a_minute_after_the_last_rejection() -> None:
    assert admission.FULL_S == 60
