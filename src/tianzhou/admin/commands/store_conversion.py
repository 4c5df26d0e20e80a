"""`tianzhou store to-raft` and `import`: stores of brokers without a group, and of RocketMQ's
DLedger, become stores of Tianzhou's brokers and Raft groups."""

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tianzhou.admin.commands import output
from tianzhou.admin.commands.bars import Tell, progress_bar
from tianzhou.admin.commands.session import Teller, force, telling
from tianzhou.base.clock import Clock
from tianzhou.base.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tianzhou.replication.raft_member import Converted
    from tianzhou.replication.raft_settings import RaftSettings
    from tianzhou.store.imports import Imported
    from tianzhou.store.store import MessageStore


@click.command("to-raft")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--raft-group", required=True, metavar="NAME", help="Name of the group.")
@click.option("--raft-id", required=True, metavar="NAME", help="Name of this member, such as n0.")
@click.option(
    "--raft-peers",
    required=True,
    metavar="PEERS",
    help="Members and their addresses: n0=host:port;n1=host:port;n2=host:port.",
)
@click.option(
    "--like",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="For the store of a slave: the file raft/plain of the member that was converted first.",
)
@force
@telling
def to_raft(
    teller: Teller,
    directory: Path,
    raft_group: str,
    raft_id: str,
    raft_peers: str,
    like: Path | None,
    yes: bool,
) -> None:
    """Make a store the first member of a Raft group, with its messages and offsets.

    Nothing is copied: the log stays as it is. Stop the broker first. If the command is interrupted,
    run it again; until it is done the directory still belongs to the broker without a group.

    Members that are added later need no conversion: they start with an empty directory, and receive
    everything. With --like, the store of a slave keeps what equals the first member's log.
    """
    from tianzhou.replication.raft_settings import RaftSettings, check
    from tianzhou.replication.raft_state import membership_of
    from tianzhou.store.files import RealFiles

    settings = RaftSettings(raft_group=raft_group, raft_id=raft_id, raft_peers=raft_peers)
    check(settings)
    names = {"directory": str(directory), "group": raft_group, "member": raft_id}
    member = membership_of(str(directory), RealFiles())
    if member is not None:
        if member != (raft_group, raft_id):
            raise UsageError(f"{directory} belongs to {member[1]} of group {member[0]} already")
        teller.done({**names, "already": True}, f"{directory} is {raft_id} of {raft_group} already")
        return
    teller.confirm(_question(directory, settings), yes=yes)
    with progress_bar(None, "reading the log", in_bytes=True) as tell:
        done = _convert(str(directory), settings, like, tell)
    facts = {**names, "already": False, **done._asdict()}
    teller.show(lambda: facts, lambda _: _said(done, settings, directory, is_first=like is None))


def _question(directory: Path, settings: "RaftSettings") -> str:
    from rich.filesize import decimal

    from tianzhou.store.detect import detect
    from tianzhou.store.files import ReadOnlyFiles
    from tianzhou.store.verify import Directory

    files, root = ReadOnlyFiles(), str(directory)
    opened = Directory(files, root, detect(files, root))
    try:
        found = opened.inspect()
    finally:
        opened.close()
    size = decimal(found.log_end - found.log_start)
    return (
        f"{directory}: {found.log_files} log files, {size}, {len(found.queues)} queues. "
        f"Make it {settings.raft_id} of the Raft group {settings.raft_group}? "
        "Afterwards it cannot be started without the group"
    )


def _convert(root: str, settings: "RaftSettings", like: Path | None, tell: Tell) -> "Converted":
    from tianzhou.replication import raft_member
    from tianzhou.store.detect import detect
    from tianzhou.store.files import RealFiles
    from tianzhou.store.store import MessageStore

    clock: Clock = click.get_current_context().find_root().obj
    files = RealFiles()
    os.umask(0o077)
    rows = None if like is None else raft_member.read_rows(files, str(like))
    config = dataclasses.replace(detect(files, root), record_crc=True)
    store = MessageStore(files, root, config, clock)
    try:
        if rows is not None:
            return raft_member.follow(store, settings, rows, tell=tell)
        return _make_first(store, settings, tell)
    finally:
        store.close()


def _make_first(store: "MessageStore", settings: "RaftSettings", tell: Tell) -> "Converted":
    from tianzhou.broker.replica.raft_metadata import first_tables
    from tianzhou.broker.scheduled.timer_progress import progress_table
    from tianzhou.replication import raft_member
    from tianzhou.replication.ha_epochs import epoch_of
    from tianzhou.replication.ha_state import state_table

    clock: Clock = click.get_current_context().find_root().obj
    # Terms continue the epochs of a master, which NameServers compare.
    epoch = epoch_of(state_table(store.files, store.paths.tables).load().marks)
    tables = first_tables(store.tables, progress_table(store).load(), now_ms=clock.now_ms())
    return raft_member.convert(store, settings, term=max(1, epoch), tables=tables, tell=tell)


def _said(
    done: "Converted", settings: "RaftSettings", directory: Path, *, is_first: bool
) -> "RenderableType":
    from rich.filesize import decimal

    size = decimal(done.end - done.start)
    parts = [
        output.sentence(
            f"{directory} is {settings.raft_id} of {settings.raft_group}: "
            f"{size} of its log, as {done.entries:,} entries",
            "green",
        )
    ]
    if done.dropped_bytes:
        said = f"{done.dropped_bytes:,} bytes at the end are received from the group again"
        parts.append(output.sentence(said))
    start = (
        f"start it: tianzhou broker -n NAMESERVER --data {directory} "
        f"--raft-group {settings.raft_group} --raft-id {settings.raft_id} "
        f"--raft-peers '{settings.raft_peers}'"
    )
    then = "tianzhou raft add {} {}=HOST:PORT".format(
        settings.raft_group, "NAME" if is_first else settings.raft_id
    )
    who = "start each other member with an empty directory, then" if is_first else "then"
    return output.stack(*parts, output.sentence(start), output.sentence(f"{who}: {then}"))


@click.command("import")
@click.argument("source", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("destination", type=click.Path(file_okay=False, path_type=Path))
@click.option("--raft-group", metavar="NAME", help="Make it the first member of this Raft group.")
@click.option("--raft-id", metavar="NAME", help="With --raft-group: the name of the member.")
@click.option(
    "--raft-peers", metavar="PEERS", help="With --raft-group: members and their addresses."
)
@telling
def import_(
    teller: Teller,
    source: Path,
    destination: Path,
    raft_group: str | None,
    raft_id: str | None,
    raft_peers: str | None,
) -> None:
    """Copy a store of RocketMQ's DLedger into a new directory, with the same queue offsets.

    SOURCE is the storePathRootDir of a stopped broker; it is only read. DESTINATION must not exist,
    or be empty. An interrupted import leaves no DESTINATION; the next one starts over.

    Exit code 1 if parts of SOURCE are damaged; the rest is imported.
    """
    from tianzhou.replication.raft_settings import RaftSettings, check

    settings: RaftSettings | None = None
    if raft_group or raft_id or raft_peers:
        settings = RaftSettings(
            raft_group=raft_group or "", raft_id=raft_id or "", raft_peers=raft_peers or ""
        )
        check(settings)
    with progress_bar(None, "importing", in_bytes=True) as tell:
        found = _import(str(source), str(destination), settings, tell)
    facts: dict[str, Any] = {"source": str(source), "destination": str(destination)}
    facts |= dataclasses.asdict(found) | {"raft": None if settings is None else raft_group}
    teller.show(lambda: facts, lambda _: _imported(found, destination))
    if found.damage:
        raise SystemExit(1)


def _import(
    source: str, destination: str, settings: "RaftSettings | None", tell: Tell
) -> "Imported":
    from tianzhou.store import imports, layout
    from tianzhou.store.files import ReadOnlyFiles, RealFiles

    clock: Clock = click.get_current_context().find_root().obj
    reader, files = ReadOnlyFiles(), RealFiles()
    os.umask(0o077)  # as a broker: only its user may read messages
    # A copy of a store may lack the lock file.
    lock = layout.take_lock(reader, source) if reader.exists(f"{source}/{layout.LOCK}") else None
    try:
        opened, found = imports.import_store(
            imports.Source(reader, source), files, destination, clock, tell=tell
        )
    finally:
        if lock is not None:
            lock.close()
    try:
        if settings is not None:
            _make_first(opened, settings, tell)
    finally:
        opened.close()
    imports.finish(files, destination)
    return found


def _imported(found: "Imported", destination: Path) -> "RenderableType":
    from rich.filesize import decimal

    said = (
        f"{found.records:,} messages ({decimal(found.bytes)}) of {found.queues:,} queues, "
        f"{found.topics:,} topics and {found.groups:,} groups are in {destination}"
    )
    parts = [output.sentence(said, "green")]
    if found.uncommitted:
        said = f"{found.uncommitted:,} of them were not known to be committed"
        parts.append(output.sentence(said))
    if found.set_back:
        said = f"{found.set_back:,} offsets were beyond the end of their queue and were set back"
        parts.append(output.sentence(said, "yellow"))
    parts += [
        output.sentence(f"damaged: {start} to {end}: {reason}", "red")
        for start, end, reason in found.damage
    ]
    return output.stack(*parts)
