"""`kill -9` at every call of a conversion: the broker it was, or a member; never half of one."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from calm_files import CalmFiles
from conversion_child import SETTINGS
from kill_child import QUEUES, config, entry_of

from tianzhou.base.kinds import QueueOffset
from tianzhou.record.chunk import build
from tianzhou.record.message import decode_all
from tianzhou.replication.raft_member import open_member
from tianzhou.replication.raft_state import membership_of
from tianzhou.store.config import FlushMode
from tianzhou.store.read import ReadLimit
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock

CHILD: Final = str(Path(__file__).parent / "conversion_child.py")
COUNT: Final = 120
EVERY: Final = 2
"""One in this many calls is the last one."""
KILLED: Final = -signal.SIGKILL


def convert(root: Path, calls: int) -> int:
    """Run the conversion in a process that ends at this call; 0: it does not."""
    command = [sys.executable, CHILD, str(root), str(calls)]
    return subprocess.run(command, capture_output=True, check=False, timeout=100).returncode


def opened(root: Path) -> MessageStore:
    return MessageStore(CalmFiles(), str(root), config(FlushMode.SYNC), ManualClock())


def messages(store: MessageStore) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for queue in QUEUES:
        with store.read(queue, QueueOffset(0), ReadLimit(1000, 1 << 24)) as result:
            found[str(queue)] = [view.body for span in result.spans for view in decode_all(span)]
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_conversion_killed_at_any_call_can_be_repeated(tmp_path: Path) -> None:
    """Each kill starts from a fresh copy; half of them go on where the broker starts again."""
    origin = tmp_path / "origin"
    store = opened(origin)
    for serial in range(COUNT):
        store.append(build([entry_of(serial)], store_host=bytes(8), record_crc=True))
    store.close()
    store = opened(origin)
    wanted = messages(store)
    store.close()
    assert sum(map(len, wanted.values())) == COUNT
    killed_as = {False: 0, True: 0}
    for calls in range(1, 1000, EVERY):
        root = tmp_path / "killed"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(origin, root)
        code = convert(root, calls)
        if code == 0:
            break
        assert code == KILLED
        is_member = membership_of(str(root), CalmFiles()) is not None
        killed_as[is_member] += 1
        if not is_member:
            if calls % (2 * EVERY) == 1:
                store = opened(root)
                assert messages(store) == wanted, calls
                store.close()
            assert convert(root, 0) == 0, calls
        check_member(root, wanted)
    assert killed_as[False] > 10, killed_as
    assert killed_as[True], killed_as


def check_member(root: Path, wanted: dict[str, list[bytes]]) -> None:
    member = open_member(
        SETTINGS, CalmFiles(), str(root), config(FlushMode.SYNC), clock=ManualClock()
    )
    member.store.flush()
    member.store.dispatch_all()
    assert not member.state.doubt
    assert messages(member.store) == wanted
    member.files.close()
    member.store.close()
