"""The output of the demo: steps as they run, and a summary with every result checked against the
input."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any

from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tianzhou.cmd.demo_traffic import CITIES, Sums

WIDTH = 30


@dataclass(slots=True)
class Check:
    what: str
    wanted: object
    found: object
    note: str = ""

    @property
    def is_right(self) -> bool:
        return self.wanted == self.found


@dataclass(slots=True)
class Show:
    """The console and the checks so far."""

    console: Console = field(default_factory=Console)
    checks: list[Check] = field(default_factory=list[Check])
    begun_s: float = field(default_factory=time.monotonic)

    @contextmanager
    def step(self, text: str) -> Generator[None]:
        """Show a step while it runs, then print it with its duration."""
        begun = time.monotonic()
        with self.console.status(text):
            yield
        took = f"{time.monotonic() - begun:5.1f} s"
        self.console.print(Text.assemble((took, "dim"), "  ", text))

    def check(self, what: str, *, wanted: object, found: object, note: str = "") -> None:
        self.checks.append(Check(what, wanted, found, note))

    @property
    def is_right(self) -> bool:
        return all(check.is_right for check in self.checks)

    def facts(self) -> dict[str, Any]:
        """What `demo --json` prints."""
        return {
            "right": self.is_right,
            "seconds": round(time.monotonic() - self.begun_s, 1),
            "checks": [asdict(check) | {"right": check.is_right} for check in self.checks],
        }

    def summary(self, amounts: Sums) -> None:
        seconds = time.monotonic() - self.begun_s
        last = (
            Text(f"Every result matches the input. {seconds:.0f} s.", style="bold green")
            if self.is_right
            else Text("Some results do not match the input.", style="bold red")
        )
        body = Group(_checks(self.checks), Text(), _cities(amounts), Text(), last)
        self.console.print(Panel(body, title="Tianzhou 天舟", expand=False, padding=(1, 2)))


def _checks(checks: list[Check]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("check")
    table.add_column("expected", justify="right")
    table.add_column("found", justify="right")
    table.add_column("", style="dim")
    for check in checks:
        mark = Text("ok", style="green") if check.is_right else Text("NO", style="bold red")
        table.add_row(mark, check.what, _figure(check.wanted), _figure(check.found), check.note)
    return table


def _figure(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | Decimal) else str(value)


def _cities(amounts: Sums) -> Table:
    """The sum of all windows, by city."""
    totals = {city: Decimal(0) for city in CITIES}
    for (_, city), (_, amount) in amounts.items():
        totals[city] = totals.get(city, Decimal(0)) + amount
    most = max(totals.values(), default=Decimal(1)) or Decimal(1)
    table = Table(
        title="Amounts per city, from the table of windows",
        title_justify="left",
        box=None,
        pad_edge=False,
        show_header=False,
    )
    for city, total in sorted(totals.items(), key=lambda one: -one[1]):
        bar = "█" * max(1, round(float(total / most) * WIDTH)) if total else ""
        table.add_row(city, f"{total:,.2f}", Text(bar, style="cyan"))
    return table
