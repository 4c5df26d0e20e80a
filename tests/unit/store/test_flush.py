import errno

import pytest
from small_store import chunk

from tianzhou.store.checkpoint import CheckpointFile
from tianzhou.store.commit_log import CommitLog
from tianzhou.store.config import PAGE
from tianzhou.store.flush import Flusher, FlushSchedule
from tianzhou.testing.sim.disk import SimDisk


@pytest.mark.parametrize(
    ("waiting", "idle_s", "due"),
    [
        (0, 100.0, False),
        (1, 0.0, False),
        (4 * PAGE - 1, 9.9, False),
        (4 * PAGE, 0.0, True),
        (1, 10.0, True),
        (-5, 100.0, False),
    ],
)
def test_flush_is_due_by_pages_or_time(waiting: int, idle_s: float, due: bool) -> None:
    schedule = FlushSchedule(interval_s=0.5, pages_min=4, thorough_s=10)
    assert schedule.is_due(waiting, idle_s) is due


@pytest.mark.parametrize(("error", "fenced"), [(errno.ENOSPC, False), (errno.EIO, True)])
def test_flush_leaves_a_failed_preallocation_to_the_writer(error: int, fenced: bool) -> None:
    disk = SimDisk()
    log = CommitLog(disk, "log", file_bytes=4096, reserve_bytes=4096)
    flusher = Flusher(disk, log, CheckpointFile(disk, "checkpoint"))
    log.append(chunk(b"x" * 3000), queue_offsets=[0], now_ms=1)
    disk.fail_at(1, error)
    flusher.prepare_next()
    assert disk.failures == 1
    assert (flusher.error is not None) == fenced
    flusher.prepare_next()
    assert len(disk.list("log")) == 2
