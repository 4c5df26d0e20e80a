"""How the findings about a store directory look on a terminal."""

from typing import Final

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from tianzhou.store.recovery import Report
from tianzhou.store.verify import Findings

QUEUES_SHOWN_MAX: Final = 200


def inspection(found: Findings) -> None:
    console = Console()
    _summary(console, found)
    table = Table(
        "topic", "queue", "first", "end", "messages", title="queues", title_justify="left"
    )
    for queue in found.queues[:QUEUES_SHOWN_MAX]:
        count = queue.max_offset - queue.min_offset
        table.add_row(
            queue.topic,
            str(queue.queue_id),
            str(queue.min_offset),
            str(queue.max_offset),
            str(count),
        )
    console.print(table)
    if len(found.queues) > QUEUES_SHOWN_MAX:
        console.print(f"… and {len(found.queues) - QUEUES_SHOWN_MAX} more; --json shows all")
    _problems(console, found)


def verification(found: Findings) -> None:
    console = Console()
    _summary(console, found)
    console.print(f"{found.records} records read")
    if found.pending_units:
        console.print(
            f"{found.pending_units} messages are not in their queues yet: "
            "the last stop was a crash, the next start will add them"
        )
    if found.deleted_units:
        console.print(f"{found.deleted_units} messages are of topics that were deleted")
    _problems(console, found)
    if found.is_sound:
        console.print("[green]nothing is wrong[/green]")


def rebuilt(report: Report, *, queues: int) -> None:
    console = Console()
    console.print(
        f"{report.records} records ({decimal(report.scanned_bytes)}) gave {queues} queues"
    )
    if report.cut_at is not None:
        console.print(f"a torn tail was cut at offset {report.cut_at}")
    if report.quarantine:
        console.print(f"[yellow]what stood behind damage is kept in {report.quarantine}[/yellow]")
    for start, end, reason in report.damage:
        console.print(f"[red]damaged: {start} to {end}: {reason}[/red]")


def _summary(console: Console, found: Findings) -> None:
    stop = "clean" if found.clean else "a crash, or a broker runs now"
    console.print(f"last stop       {stop}")
    console.print(
        f"commit log      {found.log_files} files, offsets {found.log_start} to {found.log_end}"
    )
    console.print(f"on the medium   up to {found.flushed}")
    console.print(f"derived         up to {found.derived}")
    console.print(f"index           {found.index_files} files, {found.index_entries} entries")


def _problems(console: Console, found: Findings) -> None:
    for start, end, reason in found.damage:
        console.print(f"[red]damaged: log offsets {start} to {end}: {reason}[/red]")
    for problem in found.problems:
        console.print(f"[red]{problem}[/red]")
    if found.problems and not found.damage:
        console.print("mend queues and index with: tianzhou store rebuild DIR")
