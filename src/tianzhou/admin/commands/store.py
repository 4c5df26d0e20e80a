"""`tianzhou store`: inspect, verify and repair a store directory while no broker runs on it.

This is the one command that opens files itself instead of asking a broker. The store is imported
only by commands that open one, so that `--help` stays fast.
"""

import dataclasses
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tianzhou.admin.commands.bars import progress_bar
from tianzhou.admin.commands.session import Teller, telling
from tianzhou.admin.commands.store_conversion import import_, to_raft
from tianzhou.base.clock import Clock
from tianzhou.base.errors import UsageError

if TYPE_CHECKING:
    from tianzhou.store.verify import Directory, Findings

directory = click.argument(
    "directory", type=click.Path(exists=True, file_okay=False, path_type=Path)
)


@click.group()
def store() -> None:
    """Inspect, verify, rebuild and convert a store directory (no broker may run on it)."""


@store.command()
@directory
@telling
def inspect(teller: Teller, directory: Path) -> None:
    """Show sizes, and the range of every topic and queue. Reads no message and changes nothing."""
    from tianzhou.admin.commands import store_view

    with _opened(directory) as opened:
        found = opened.inspect()
    teller.show(lambda: _facts(found), lambda _: store_view.inspection(found))


@store.command()
@directory
@telling
def verify(teller: Teller, directory: Path) -> None:
    """Read every record and compare queues and index with the log. Changes nothing.

    Exit code 1 if anything is damaged.
    """
    from tianzhou.admin.commands import store_view
    from tianzhou.store import layout
    from tianzhou.store.files import ReadOnlyFiles

    files, root = ReadOnlyFiles(), str(directory)
    # A copy of a store may lack the lock file.
    lock = layout.take_lock(files, root) if files.exists(f"{root}/{layout.LOCK}") else None
    try:
        with _opened(directory) as opened, progress_bar(None, "checking", in_bytes=True) as tell:
            found = opened.verify(tell)
    finally:
        if lock is not None:
            lock.close()
    teller.show(lambda: _facts(found), lambda _: store_view.verification(found))
    if not found.is_sound:
        raise SystemExit(1)


@store.command()
@directory
@click.option(
    "--accept-loss-at",
    type=int,
    metavar="OFFSET",
    default=-1,
    help="Continue although the log ends early, at the OFFSET that the error names.",
)
@telling
def rebuild(teller: Teller, directory: Path, accept_loss_at: int) -> None:
    """Derive all queues and the index from the log again."""
    from tianzhou.admin.commands import store_view
    from tianzhou.store.detect import detect
    from tianzhou.store.files import RealFiles
    from tianzhou.store.store import MessageStore

    clock: Clock = click.get_current_context().find_root().obj
    files, root = RealFiles(), str(directory)
    config = dataclasses.replace(detect(files, root), accept_loss_at=accept_loss_at)
    with progress_bar(None, "rebuilding", in_bytes=True) as tell:
        opened = MessageStore(files, root, config, clock, progress=tell, rebuild=True)
        opened.close()
    report = opened.recovered
    teller.show(
        lambda: dataclasses.asdict(report),
        lambda _: store_view.rebuilt(report, queues=len(opened.queues)),
    )


@store.command()
@directory
@telling
def acknowledge(teller: Teller, directory: Path) -> None:
    """Print and close the incidents that a start reported.

    For a running broker: tianzhou broker acknowledge NAME.
    """
    import msgspec

    from tianzhou.admin.commands import store_view
    from tianzhou.store import layout
    from tianzhou.store.files import RealFiles
    from tianzhou.store.incidents import Incidents

    clock: Clock = click.get_current_context().find_root().obj
    files, root = RealFiles(), str(directory)
    tables = layout.paths_in_use(root).tables
    if not files.exists(tables):
        raise UsageError(f"{tables} does not exist; {root} is not a store directory")
    lock = layout.take_lock(files, root)
    try:
        closed = Incidents(files, tables).acknowledge(clock.now_ms())
    finally:
        lock.close()
    teller.show(
        lambda: {"acknowledged": [msgspec.structs.asdict(one) for one in closed]},
        lambda _: store_view.acknowledged([one.text for one in closed]),
    )


store.add_command(to_raft)
store.add_command(import_)


@contextmanager
def _opened(directory: Path) -> "Generator[Directory]":
    from tianzhou.store.detect import detect
    from tianzhou.store.files import ReadOnlyFiles
    from tianzhou.store.verify import Directory

    files, root = ReadOnlyFiles(), str(directory)
    opened = Directory(files, root, detect(files, root))
    try:
        yield opened
    finally:
        opened.close()


def _facts(found: "Findings") -> dict[str, Any]:
    return dataclasses.asdict(found) | {"sound": found.is_sound}
