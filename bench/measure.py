"""Timing, and rows of results. Machines are noisy: compare ratios within one run."""

import gc
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, process_time

from rich.console import Console
from rich.table import Table

REPEATS = 5


@dataclass(frozen=True, slots=True)
class Timing:
    """The best of several runs: the one with the least disturbance."""

    seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Row:
    group: str
    name: str
    messages_per_second: float
    bytes_per_second: float
    cpu_us_per_message: float
    yardstick: str = ""
    ratio: float | None = None
    floor: float | None = None
    smaller_is_better: bool = False
    """The ratio is a cost, and the floor a ceiling."""

    @property
    def holds(self) -> bool:
        if self.floor is None or self.ratio is None:
            return self.floor is None
        return self.ratio <= self.floor if self.smaller_is_better else self.ratio >= self.floor


@dataclass(frozen=True, slots=True)
class Limit:
    """A result that must stay below a fixed limit."""

    group: str
    name: str
    value: float
    maximum: float
    unit: str

    @property
    def holds(self) -> bool:
        return self.value <= self.maximum


def best_of(prepare: Callable[[], Callable[[], None]], repeats: int = REPEATS) -> Timing:
    """Prepare and run several times; preparing is not timed."""
    timings: list[Timing] = []
    for _ in range(repeats):
        run = prepare()
        gc.collect()
        cpu, begun = process_time(), perf_counter()
        run()
        timings.append(Timing(perf_counter() - begun, process_time() - cpu))
    return min(timings, key=lambda timing: timing.seconds)


def row(
    group: str,
    name: str,
    timing: Timing,
    *,
    messages: int,
    size: int,
    yardstick: str = "",
    yardstick_bytes_per_second: float = 0.0,
    floor: float | None = None,
) -> Row:
    speed = size / timing.seconds
    ratio = speed / yardstick_bytes_per_second if yardstick_bytes_per_second else None
    return Row(
        group,
        name,
        messages / timing.seconds,
        speed,
        timing.cpu_seconds / messages * 1e6,
        yardstick,
        ratio,
        floor,
    )


def show(rows: list[Row], limits: list[Limit], path: Path) -> None:
    """Print a table, and lines of JSON for programs."""
    table = Table("what", "messages/s", "MB/s", "µs CPU/message", "ratio", "floor", "yardstick")
    group = ""
    for item in rows:
        if item.group != group:
            group = item.group
            table.add_section()
            table.add_row(f"[bold]{group}[/bold]")
        floor = "" if item.floor is None else f"{item.floor:g} {'✓' if item.holds else '✗'}"
        table.add_row(
            item.name,
            f"{item.messages_per_second:,.0f}",
            f"{item.bytes_per_second / 1e6:,.1f}",
            f"{item.cpu_us_per_message:.2f}",
            "" if item.ratio is None else f"{item.ratio:.2f}",
            floor,
            item.yardstick,
        )
    console = Console(width=120)
    console.print(table)
    for limit in limits:
        sign = "✓" if limit.holds else "✗"
        text = f"{limit.name}: {limit.value:.1f} {limit.unit}, at most {limit.maximum:g} {sign}"
        console.print(text, highlight=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(asdict(item)) + "\n" for item in [*rows, *limits]))
