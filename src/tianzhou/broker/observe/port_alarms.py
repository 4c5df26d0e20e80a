"""Alarms about ports of this process that have no room for more connections."""

from collections.abc import Iterator
from dataclasses import dataclass

from tianzhou.broker.alarms import Alarm, Since
from tianzhou.net.acceptor import PROCESS_BUDGET, DescriptorBudget


@dataclass(slots=True)
class PortAlarms:
    """Owner: the broker loop."""

    broker: str
    since: Since
    budget: DescriptorBudget = PROCESS_BUDGET

    def current(self) -> Iterator[Alarm]:
        full = {f"{port.limits.name}_port_full": port for port in self.budget.full_ports()}
        self.since.keep(full)
        for kind, port in full.items():
            yield Alarm(
                kind=kind,
                text=f"the {port.limits.name} port of {self.broker} has no room for more "
                f"connections: it holds {port.count} and has closed {port.refused_count}",
                remedy="find the peers that hold them with `ss -tn`, or raise the limit of open "
                "files (`ulimit -n`) and restart",
                since_ms=self.since.began_ms(kind, holds=True),
            )
