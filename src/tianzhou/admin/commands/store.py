"""`tianzhou store`: look at, check and mend a store directory while no broker runs on it.

This is the one command that opens files itself instead of asking a broker. The store is imported by
those who open one, not by those who ask for help.
"""

import dataclasses
import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tianzhou.admin.commands.session import as_json
from tianzhou.base.clock import Clock

if TYPE_CHECKING:
    from tianzhou.store.verify import Directory, Findings

directory = click.argument(
    "directory", type=click.Path(exists=True, file_okay=False, path_type=Path)
)


@click.group()
def store() -> None:
    """Inspect, verify and rebuild a store directory (no broker may run on it)."""


@store.command()
@directory
@as_json
def inspect(directory: Path, as_json: bool) -> None:
    """Show sizes, and the range of every topic and queue. Reads no message and changes nothing."""
    from tianzhou.admin.commands import store_view

    with _opened(directory) as opened:
        found = opened.inspect()
    _print(found, as_json, store_view.inspection)


@store.command()
@directory
@as_json
def verify(directory: Path, as_json: bool) -> None:
    """Read every record and compare queues and index with the log. Changes nothing.

    Exit code 1 if anything is damaged.
    """
    from tianzhou.admin import render
    from tianzhou.admin.commands import store_view
    from tianzhou.store import layout
    from tianzhou.store.files import RealFiles

    files = RealFiles()
    lock = layout.take_lock(files, str(directory))
    try:
        with _opened(directory) as opened, render.progress("checking", quiet=as_json) as progress:
            found = opened.verify(progress)
    finally:
        lock.close()
    _print(found, as_json, store_view.verification)
    if not found.is_sound:
        raise SystemExit(1)


@store.command()
@directory
@as_json
@click.pass_obj
def rebuild(clock: Clock, directory: Path, as_json: bool) -> None:
    """Derive all queues and the index from the log again."""
    from tianzhou.admin import render
    from tianzhou.admin.commands import store_view
    from tianzhou.store.detect import detect
    from tianzhou.store.files import RealFiles
    from tianzhou.store.store import MessageStore

    files, root = RealFiles(), str(directory)
    config = detect(files, root)
    with render.progress("rebuilding", quiet=as_json) as progress:
        opened = MessageStore(files, root, config, clock, progress=progress, rebuild=True)
        opened.close()
    report = opened.recovered
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report)))
    else:
        store_view.rebuilt(report, queues=len(opened.queues))


@contextmanager
def _opened(directory: Path) -> "Generator[Directory]":
    from tianzhou.store.detect import detect
    from tianzhou.store.files import RealFiles
    from tianzhou.store.verify import Directory

    files, root = RealFiles(), str(directory)
    opened = Directory(files, root, detect(files, root))
    try:
        yield opened
    finally:
        opened.close()


def _print(found: "Findings", as_json: bool, show: "Callable[[Findings], None]") -> None:
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(found) | {"sound": found.is_sound}))
    else:
        show(found)
