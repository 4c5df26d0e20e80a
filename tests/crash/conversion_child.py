"""The process that is killed: makes a store the first member of a group.

    conversion_child.py ROOT CALL

It kills itself at the CALL-th call that changes a file or a name; with 0 it ends by itself.
"""

import os
import signal
import sys
from typing import Final

from calm_files import CalmFiles
from kill_child import config

from tianzhou.base.kinds import Bytes, queue_key
from tianzhou.record.chunk import Entry, build
from tianzhou.replication.raft_member import convert
from tianzhou.replication.raft_settings import RaftSettings
from tianzhou.store.config import FlushMode
from tianzhou.store.files import RealFile
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock

SETTINGS: Final = RaftSettings(raft_group="g", raft_id="n0", raft_peers="n0=127.0.0.1:1")
TABLES: Final = queue_key("tables", 0)


class Countdown:
    """Kills the process at the last of these calls."""

    def __init__(self, calls: int) -> None:
        self._left = calls

    def step(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class DoomedFile(RealFile):
    countdown: Countdown

    def pwrite(self, at: int, data: Bytes) -> None:
        self.countdown.step()
        super().pwrite(at, data)

    def truncate(self, size: int) -> None:
        self.countdown.step()
        super().truncate(size)

    def sync(self) -> None:
        self.countdown.step()
        super().sync()


class DoomedFiles(CalmFiles):
    def __init__(self, countdown: Countdown) -> None:
        self._countdown = countdown

    def create(self, path: str, size: int) -> RealFile:
        self._countdown.step()
        return self._doomed(super().create(path, size))

    def open(self, path: str) -> RealFile:
        return self._doomed(super().open(path))

    def rename(self, old: str, new: str) -> None:
        self._countdown.step()
        super().rename(old, new)

    def remove(self, path: str) -> None:
        self._countdown.step()
        super().remove(path)

    def sync_dir(self, path: str) -> None:
        self._countdown.step()
        super().sync_dir(path)

    def _doomed(self, file: RealFile) -> RealFile:
        made = DoomedFile(file.path, file._fd)
        made.countdown = self._countdown
        return made


def main(root: str, calls: int) -> None:
    files = DoomedFiles(Countdown(calls))
    store = MessageStore(files, root, config(FlushMode.SYNC), ManualClock())
    tables = build([Entry(TABLES, b"all tables")], store_host=bytes(8), record_crc=True)
    convert(store, SETTINGS, term=1, tables=tables, tell=lambda _done, _all: None)
    store.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
