"""Start a witness, in a process of its own or in that of a NameServer."""

import os
from pathlib import Path

from tianzhou.cmd import logs, serve
from tianzhou.replication.raft_settings import RaftSettings, peers_of
from tianzhou.replication.raft_witness import Witness
from tianzhou.store.files import RealFiles


async def start(settings: RaftSettings, directory: Path) -> tuple[Witness, dict[str, object]]:
    """Start the witness; returns it, and what the ready file says of it. Raises UsageError."""
    serve.refuse_shared(directory)
    running = Witness(settings, RealFiles(), str(directory), on_fenced=_end)
    await running.start()
    return running, {
        "raftGroup": settings.raft_group,
        "raftId": settings.raft_id,
        "witness": peers_of(settings.raft_peers)[settings.raft_id],
    }


def _end(reason: str) -> None:
    """Exit: a witness whose vote may not be on its disk must not give another."""
    try:
        logs.say(f"tianzhou: fenced: {reason}; check the disk and restart", "raft.fenced")
    finally:
        os._exit(serve.FENCED)  # does not flush the log, which may be on the failed disk
