"""The store against a reference model: they agree after any operations in any order."""

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from store_model import (
    FILE_BYTES,
    KEYS,
    LIGHT,
    QUEUES,
    TAGS,
    TOPICS,
    Model,
    Sent,
    Shape,
    entry_of,
    read,
    tags_codes,
)

from crash.calm_files import CalmFiles
from tianzhou.base.kinds import QueueKey, QueueOffset
from tianzhou.record.chunk import build
from tianzhou.record.message import MessageView, decode_all
from tianzhou.store.config import FlushMode, StoreConfig
from tianzhou.store.read import ReadLimit, ReadResult, ReadStatus
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock

TORTURE: Final = "TIANZHOU_TORTURE" in os.environ
shapes = st.builds(
    Shape,
    st.integers(0, len(QUEUES) - 1),
    st.integers(0, len(TAGS) - 1),
    st.integers(0, len(KEYS) - 1),
    st.sampled_from([0, 7, 300, 2500]),
    st.sampled_from([0, 0, 1, 2, 3]),
)
EVERY_QUEUE: Final = (*QUEUES, *LIGHT)
queues = st.sampled_from(EVERY_QUEUE)


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        memory = Path("/dev/shm")
        self.directory = tempfile.mkdtemp(dir=memory if memory.is_dir() else None)
        self.clock = ManualClock()
        self.model = Model()
        self.serial = 0

    @initialize(mode=st.sampled_from(FlushMode), crc=st.booleans())
    def begin(self, mode: FlushMode, crc: bool) -> None:
        self.config = StoreConfig(
            commit_log_file_bytes=FILE_BYTES,
            consume_queue_file_bytes=200,
            commit_log_preallocate_bytes=4096,
            index_slots=7,
            index_entries=60,
            retention_hours=1,
            retention_at_hours=(),
            record_crc=crc,
            flush_mode=mode,
        )
        self.store = self._open()

    def _open(self, *, rebuild: bool = False) -> MessageStore:
        return MessageStore(CalmFiles(), self.directory, self.config, self.clock, rebuild=rebuild)

    def teardown(self) -> None:
        try:
            if hasattr(self, "store"):
                self.compare_all()
                self.store.close()
        finally:
            shutil.rmtree(self.directory)

    # Writing

    @rule(drawn=st.lists(shapes, min_size=1, max_size=6))
    def append_few(self, drawn: list[Shape]) -> None:
        self._append(drawn)

    @rule(drawn=st.lists(shapes, min_size=1, max_size=6), times=st.integers(8, 20))
    def append_many(self, drawn: list[Shape], times: int) -> None:
        """Enough for the fast algorithms, which are used from 48 records on."""
        self._append([shape._replace(padding=shape.padding % 40) for shape in drawn] * times)

    def _append(self, drawn: list[Shape]) -> None:
        entries = [entry_of(s, self.serial + n) for n, s in enumerate(drawn)]
        self.serial += len(entries)
        chunk = build(entries, store_host=bytes(8), record_crc=self.config.record_crc)
        placed = self.store.append(chunk)
        offsets = placed.physical_offsets()
        counts = dict(self.model.next_offsets)
        sent: list[Sent] = []
        for rank, (entry, shape) in enumerate(zip(entries, drawn, strict=True)):
            queue_offset = counts.get(entry.queue, 0)
            counts[entry.queue] = queue_offset + 1
            size = chunk.ends[rank] - chunk.starts[rank]
            one = Sent(
                entry.queue,
                queue_offset,
                offsets[rank],
                size,
                self.clock.now_ms(),
                bytes(entry.body),
                TAGS[shape.tag],
                KEYS[shape.key],
            )
            sent.append(one)
            for queue in shape.light_queues:
                sent.append(replace(one, queue=queue, queue_offset=counts.get(queue, 0)))
                counts[queue] = counts.get(queue, 0) + 1
        stored = [one for one in sent if one.queue in QUEUES]
        assert list(placed.queue_offsets) == [one.queue_offset for one in stored]
        self._check_places(stored)
        self.model.append(sent)
        assert placed.end == self.model.end

    def _check_places(self, sent: list[Sent]) -> None:
        """Records are adjacent; one that does not fit its file starts the next file."""
        at = self.model.end
        for message in sent:
            if at % FILE_BYTES + message.size + 8 > FILE_BYTES:
                at = (at // FILE_BYTES + 1) * FILE_BYTES
            assert message.physical_offset == at
            at = message.end

    @rule()
    def dispatch_a_slice(self) -> None:
        self.store.dispatch()
        self.model.show(self.store.watermarks.dispatched)

    @rule()
    def dispatch_all(self) -> None:
        self.store.dispatch_all()
        marks = self.store.watermarks
        limit = marks.flushed if self.config.flush_mode is FlushMode.SYNC else marks.appended
        self.model.show(limit)
        assert marks.dispatched == limit

    @rule()
    def flush(self) -> None:
        self.store.flush()
        assert self.store.flushed == self.model.end

    @rule()
    def checkpoint(self) -> None:
        self.store.checkpoint()
        assert self.store.flushed == self.model.end

    # Time and space

    @rule(minutes=st.sampled_from([0, 30, 90]))
    def clean(self, minutes: int) -> None:
        self.clock.advance(ms=minutes * 60_000)
        # Undispatched records are kept; unflushed ones are flushed before their file is deleted.
        dispatched = self.store.watermarks.dispatched
        self.store.clean(by_hand=True)
        self.model.expire(self.clock.now_ms(), dispatched)

    @precondition(lambda self: self.model.rows)
    @rule(topic=st.sampled_from(TOPICS))
    def delete_topic(self, topic: str) -> None:
        """Messages of the topic that were not dispatched yet never become visible."""
        self.store.delete_topic(topic)
        self.model.show(self.store.watermarks.dispatched)
        self.model.delete_topic(topic)

    # Stopping and restarting

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.model.show(self.model.end)
        self.store = self._open()
        assert self.store.was_clean
        assert self.store.recovered.rebuilt == ""
        assert self.store.recovered.scanned_bytes == 0

    @rule()
    def die_and_restart(self) -> None:
        self.store.abandon()
        self.model.show(self.model.end)
        self.store = self._open()
        assert not self.store.was_clean
        assert self.store.recovered.rebuilt == ""

    @rule(clean=st.booleans())
    def rebuild(self, clean: bool) -> None:
        if clean:
            self.store.close()
            self.model.show(self.model.end)
        else:
            self.store.abandon()
        self.store = self._open(rebuild=True)
        self.model.rebuild()

    # Reading

    @rule(
        key=queues,
        part=st.floats(0, 1),
        count=st.integers(1, 70),
        size=st.sampled_from([1, 1500, 1 << 20]),
        tags=st.one_of(st.none(), st.sets(st.sampled_from(TAGS), min_size=1)),
    )
    def read(
        self, key: QueueKey, part: float, count: int, size: int, tags: set[str] | None
    ) -> None:
        row = self.model.rows.get(key)
        if row is None:
            assert self.store.read(key, QueueOffset(0)).status is (
                ReadStatus.NO_MATCHED_LOGIC_QUEUE
            )
            return
        minimum = row.minimum(self.model.log_min)
        if minimum == row.end:
            return
        start = minimum + int(part * (row.end - minimum - 1))
        codes = None if tags is None else tags_codes(tags)
        limit = ReadLimit(count, size)
        with self.store.read(key, QueueOffset(start), limit, tags_codes=codes) as result:
            wanted = read(row, start, count, size, tags)
            assert bodies_of(result) == wanted.bodies
            assert result.next_offset == wanted.next_offset
            assert (result.status is ReadStatus.FOUND) == bool(wanted.bodies)
            assert result.count == len(wanted.bodies)

    @rule(topic=st.sampled_from(TOPICS), key=st.sampled_from(KEYS))
    def query(self, topic: str, key: str) -> None:
        dispatched = self.store.watermarks.dispatched
        wanted = [
            sent.physical_offset
            for sent in self.model.log
            if (sent.queue.topic, sent.key) == (topic, key) and sent.end <= dispatched
        ]
        assert self._find(topic, key) == wanted[::-1]

    def _find(self, topic: str, key: str) -> list[int]:
        """Places of messages that really have this key, because hashes collide."""
        assert self.store.index is not None
        found: list[int] = []
        for offset in self.store.index.find(
            topic, key, begin_ms=0, end_ms=1 << 61, count_max=1 << 30
        ):
            segment = self.store.log.segment_at(offset)
            if segment is not None:  # the index may still refer to an expired file
                view = MessageView(segment.read(offset - segment.start, segment.file.size()))
                if view.topic == topic and key in (*view.keys, view.unique_id):
                    found.append(offset)
        return found

    # Invariants

    @invariant()
    def marks_are_in_order(self) -> None:
        if not hasattr(self, "store"):
            return
        marks = self.store.watermarks
        assert marks.minimum <= marks.dispatched <= marks.appended == self.model.end
        assert marks.flushed <= marks.appended
        assert marks.minimum == self.model.log_min

    @invariant()
    def queues_have_the_same_bounds(self) -> None:
        if not hasattr(self, "store"):
            return
        for key in EVERY_QUEUE:
            row = self.model.rows.get(key)
            assert self.store.max_offset(key) == (row.end if row else 0)
            if row is not None:
                assert self.store.min_offset(key) == row.minimum(self.model.log_min)

    @rule()
    def compare_all(self) -> None:
        """Every message of every queue, and every unique id."""
        for key, row in self.model.rows.items():
            at = row.minimum(self.model.log_min)
            wanted = [sent.body for sent in row.messages[at - row.first :] if sent]
            found: list[bytes] = []
            while at < row.end:
                with self.store.read(key, QueueOffset(at), ReadLimit(50)) as result:
                    found += bodies_of(result)
                    assert result.next_offset > at, result.status
                    at = result.next_offset
            assert found == wanted
        dispatched = self.store.watermarks.dispatched
        for sent in self.model.log:
            if sent.end <= dispatched and sent.queue in QUEUES:
                unique = f"U{sent.body[:6].decode()}"
                assert self._find(sent.queue.topic, unique) == [sent.physical_offset]


def bodies_of(result: ReadResult) -> list[bytes]:
    return [view.body for span in result.spans for view in decode_all(span)]


TestStore = StoreMachine.TestCase
TestStore.settings = settings(
    max_examples=4000 if TORTURE else 100,
    stateful_step_count=50,
    deadline=None,
)
