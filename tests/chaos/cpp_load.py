"""RocketMQ's C++ client as part of a load: a producer, and optionally a consumer."""

from pathlib import Path
from typing import Final

from clients.cpp_client import ClientProcess, Facts
from tianzhou.testing.chaos import stage as shapes
from tianzhou.testing.chaos.cluster import TOPIC, Cluster
from tianzhou.testing.chaos.history import FOREVER, Delivery, History, Outcome, Place, Queue, Send
from tianzhou.testing.chaos.load import Foreigners
from tianzhou.testing.chaos.scenarios import Scenario
from tianzhou.testing.chaos.values import value_in

CLIENT: Final = "cpp0"
PER_SECOND: Final = 50
TRIES_MAX: Final = 6
"""The client retries by itself, at most this often, and does not report how often it did."""
GROUP: Final = "chaos-cpp-readers"
FIRST_S: Final = 20.0


class CppLoad:
    """Starts when created. Its consumer reports no broker names, so there must be one group."""

    def __init__(
        self, python: Path, cluster: Cluster, history: History, *, has_consumer: bool
    ) -> None:
        self._history = history
        self._broker = cluster.brokers[0].group
        self.group = GROUP if has_consumer else None
        where = cluster.directory / "cpp"
        self._consumer: ClientProcess | None = None
        if has_consumer:
            self._consumer = ClientProcess(
                python, where / "consumer", "chaos_consume.py", cluster.nameserver, GROUP, TOPIC
            )
            self._consumer.wait_lines("ready", 1)
        self._producer = ClientProcess(
            python,
            where / "producer",
            "chaos_produce.py",
            cluster.nameserver,
            TOPIC,
            CLIENT,
            str(PER_SECOND),
        )
        self._is_producing = self._is_running = True
        self._producer.wait_lines("ended", 1, within_s=FIRST_S)

    def stop_producing(self) -> None:
        if not self._is_producing:
            return
        self._is_producing = False
        self._producer.close()
        ended = {row["value"]: row for row in self._producer.lines("ended")}
        for row in self._producer.lines("began"):
            self._history.sent(_send(row, ended.get(row["value"])))

    def received(self) -> set[str]:
        return {row.value for row in self._deliveries()}

    def _deliveries(self) -> list[Delivery]:
        if self._consumer is None:
            return []
        return [
            Delivery(
                "cpp-reader",
                GROUP,
                value_in(row["body"].encode()),
                Place(Queue(self._broker, row["queue"]), row["offset"]),
                row["at"],
            )
            for row in self._consumer.lines("got")
        ]

    def stop(self) -> None:
        """Stop both processes, whatever the outcome of the scenario."""
        if not self._is_running:
            return
        self._is_running = False
        self._producer.end()
        if self._consumer is not None:
            self._history.delivered(self._deliveries())
            self._consumer.end()


def _send(began: Facts, ended: Facts | None) -> Send:
    if ended is None:
        return Send(CLIENT, began["value"], began["at"], FOREVER, Outcome.UNKNOWN)
    # Its errors do not tell whether a response was lost.
    outcome = Outcome.OK if ended["status"] == "OK" else Outcome.UNKNOWN
    return Send(
        CLIENT,
        began["value"],
        began["at"],
        ended["at"],
        outcome,
        status=ended["status"] or ended["error"],
        tries_max=TRIES_MAX,
    )


def cpp_clients(python: Path, scenario: Scenario) -> Foreigners:
    """Start the clients. There is a consumer only if no master stops: it would wait half a minute
    for a response that never comes."""
    has_consumer = scenario.shape is shapes.pair and not scenario.kills_masters
    return lambda cluster, history: CppLoad(python, cluster, history, has_consumer=has_consumer)
