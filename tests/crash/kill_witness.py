"""Records what killed processes acknowledged, and checks that it is stored."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

from calm_files import CalmFiles
from kill_child import QUEUES, ROUND_MS, Ack, config, entry_of, parse_ack

from tianzhou.base.kinds import QueueKey, QueueOffset
from tianzhou.record.message import MessageView, decode_all
from tianzhou.store.config import FlushMode
from tianzhou.store.read import ReadLimit
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock

CHILD: Final = str(Path(__file__).parent / "kill_child.py")
HOUR_MS: Final = 3_600_000
KILLED: Final = -signal.SIGKILL


class Witness:
    """One directory, and everything that was acknowledged or readable so far."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.dice = random.Random(seed)
        self.mode = self.dice.choice(list(FlushMode))
        self.acked: dict[tuple[QueueKey, int], Ack] = {}
        self.seen: dict[tuple[QueueKey, int], int] = {}
        """Serial of every message that was ever readable: it must stay readable."""
        self.now_ms = 0
        self._cycle = 0

    # Killing

    def run(
        self, *, rounds: int, kill_after: int | None = None, point: str = "-", hit: int = 1
    ) -> int:
        """Run a process, and kill it once it acknowledged `count` messages; its exit code."""
        self._cycle += 1
        thread = self.dice.choice(("thread", "none"))
        arguments = [str(self.root), str(self._cycle), self.mode.name, thread, str(rounds)]
        child = subprocess.Popen(
            [sys.executable, CHILD, *arguments, point, str(hit)], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        output = b""
        while piece := os.read(child.stdout.fileno(), 1 << 16):
            output += piece
            # The first line means that the interpreter runs and is about to open the store.
            if kill_after is not None and output.count(b"\n") > kill_after:
                child.kill()
        child.stdout.close()
        self._take(output)
        return child.wait()

    def _take(self, output: bytes) -> None:
        for line in output.splitlines():
            if line not in (b"opening", b"closed"):
                ack = parse_ack(line)
                self.acked[ack.queue, ack.queue_offset] = ack
                self.now_ms = max(self.now_ms, ack.stored_ms)

    # Checking

    def verify(self, *, close: bool) -> None:
        """Open the directory and check it; then close it, or leave it as a kill would."""
        clock = ManualClock(self.now_ms + HOUR_MS)
        store = MessageStore(CalmFiles(), str(self.root), config(self.mode), clock)
        try:
            assert store.recovered.damage == []
            assert store.recovered.quarantine == ""
            present = self._read_all(store)
            self._check_nothing_lost(store, present)
            self._check_nothing_changed(store, present)
            self._check_keys(store, present)
            self._check_offsets(store)
            self.seen = {place: serial for place, (serial, _) in present.items()}
        finally:
            if close:
                store.close()
            else:
                store.abandon()

    def _read_all(self, store: MessageStore) -> dict[tuple[QueueKey, int], tuple[int, int]]:
        """Serial and place of every readable message. Checks that offsets have no gap."""
        present: dict[tuple[QueueKey, int], tuple[int, int]] = {}
        for key in QUEUES:
            at, end = store.min_offset(key), store.max_offset(key)
            while at < end:
                with store.read(key, QueueOffset(at), ReadLimit(200, 1 << 20)) as result:
                    for view in (view for span in result.spans for view in decode_all(span)):
                        assert view.queue_offset == at, "a gap in a queue"
                        present[key, at] = self._recognise(view, key), view.physical_offset
                        at = QueueOffset(at + 1)
                    assert result.next_offset == at, "a gap in a queue"
        return present

    def _recognise(self, view: MessageView, key: QueueKey) -> int:
        serial = int(view.body.partition(b"|")[0])
        entry = entry_of(serial)
        assert view.body == entry.body
        assert (view.topic, view.queue_id) == entry.queue == key
        assert view.unique_id == f"U{serial}"
        return serial

    def _check_nothing_lost(
        self, store: MessageStore, present: dict[tuple[QueueKey, int], tuple[int, int]]
    ) -> None:
        for place, ack in list(self.acked.items()):
            if ack.physical_offset < store.log.min_offset:
                # The process read its clock at most a few rounds after its last acknowledgement.
                assert ack.stored_ms <= self.now_ms + 3 * ROUND_MS - HOUR_MS, "deleted too early"
                del self.acked[place]
            else:
                assert present.get(place) == (ack.serial, ack.physical_offset), ack

    def _check_nothing_changed(
        self, store: MessageStore, present: dict[tuple[QueueKey, int], tuple[int, int]]
    ) -> None:
        """What was readable once still is, at the same offset, or has expired."""
        for (key, rank), serial in self.seen.items():
            if rank >= store.min_offset(key):
                assert present[key, rank][0] == serial
        serials = [serial for serial, _ in present.values()]
        assert len(set(serials)) == len(serials), "a message is stored twice"

    def _check_keys(
        self, store: MessageStore, present: dict[tuple[QueueKey, int], tuple[int, int]]
    ) -> None:
        assert store.index is not None
        places = list(present.items())
        for (key, _), (serial, offset) in self.dice.sample(places, min(40, len(places))):
            for name in (f"K{serial}", f"U{serial}"):
                found = store.index.find(
                    key.topic, name, begin_ms=0, end_ms=1 << 61, count_max=1 << 20
                )
                assert offset in found

    def _check_offsets(self, store: MessageStore) -> None:
        """The table of consumer offsets is valid, and no offset is beyond the end of its queue."""
        for name, row in store.tables.consumer_offsets.load().offset_table.items():
            topic = name.partition("@")[0]
            for queue_id, offset in row.items():
                key = next(key for key in QUEUES if key == (topic, queue_id))
                assert offset <= store.max_offset(key)
