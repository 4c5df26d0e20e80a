"""Directories written by Java RocketMQ 4.9.8: every message is found, nothing is changed."""

from collections import defaultdict
from pathlib import Path
from zlib import crc32

import pytest
from java_sample import (
    KINDS,
    Sent,
    open_store,
    read_queue,
    records_of,
    sent,
    tree,
    unpack,
)

from tianzhou.base.java import string_hash
from tianzhou.base.kinds import QueueKey, queue_key
from tianzhou.record import flags
from tianzhou.record.chunk import Entry, build
from tianzhou.record.ids import decode_offset_id
from tianzhou.record.message import MessageView, decode_all
from tianzhou.record.walk import Stop, first_unsound, walk
from tianzhou.store.read import ReadStatus
from tianzhou.store.store import MessageStore

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
EVER = 1 << 61


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def root(kind: str, tmp_path: Path) -> Path:
    return unpack(kind, tmp_path)


def test_every_record_of_java_is_valid(root: Path) -> None:
    count = 0
    for path in sorted((root / "commitlog").iterdir()):
        data = path.read_bytes()
        found = walk(data, 0, len(data))
        assert found.stop is Stop.END
        assert first_unsound(data, found.starts, found.end, base=int(path.name)) is None
        count += len(found.starts)
    assert count == 142


def test_opening_finds_the_whole_log_and_reports_why_it_rebuilt(root: Path) -> None:
    store = open_store(root)
    assert store.recovered.records == 142
    assert store.recovered.damage == []
    assert store.recovered.cut_at is None
    # Java's checkpoint has times, not positions; and both brokers left their abort marker.
    assert store.recovered.rebuilt == "there is no checkpoint of Tianzhou"
    assert not store.was_clean
    store.close()
    again = open_store(root)
    assert again.was_clean
    assert again.recovered.rebuilt == ""
    assert again.recovered.scanned_bytes == 0
    again.close()


def test_every_message_sent_to_java_is_found(root: Path, kind: str) -> None:
    store = open_store(root)
    for message in sent(kind):
        _check_by_place(store, message)
        _check_by_keys(store, message)
    store.close()


def _stored_under(message: Sent) -> QueueKey:
    """The broker stores delayed messages and half messages in its system queues."""
    if message.kind.startswith("delay"):
        return queue_key(SCHEDULE_TOPIC, int(message.kind[5:]) - 1)
    if message.kind.startswith("tx_"):
        return queue_key(HALF_TOPIC, 0)
    return queue_key(message.topic, message.queue_id)


def _check_by_place(store: MessageStore, message: Sent) -> None:
    key = _stored_under(message)
    (by_offset,) = _message_at(store, key, message.queue_offset)
    _check_contents(by_offset, message)
    if message.offset_id is not None:  # Java reports none for a half message
        host, offset = decode_offset_id(message.offset_id)
        assert host == ("127.0.0.1", 40911)
        assert by_offset.offset_id == message.offset_id
        assert _record_at(store, offset).physical_offset == by_offset.physical_offset


def _check_by_keys(store: MessageStore, message: Sent) -> None:
    topic = _stored_under(message).topic
    for key in (message.unique_id, *message.keys):
        found = [_record_at(store, offset) for offset in _find(store, topic, key)]
        mine = [view for view in found if view.unique_id == message.unique_id]
        assert mine, f"{key} of {topic} was not found"
        _check_contents(mine[-1], message)


def _check_contents(view: MessageView, message: Sent) -> None:
    assert view.unique_id == message.unique_id
    assert view.tags == message.tags
    assert list(view.keys) == list(message.keys)
    assert len(view.body) == message.body_size
    assert crc32(view.body) == message.body_crc
    assert bool(view.sys_flag & flags.COMPRESSED) == (message.kind == "compressed")


def _message_at(store: MessageStore, key: QueueKey, offset: int) -> list[MessageView]:
    return [view for view in read_queue(store, key) if view.queue_offset == offset]


def _record_at(store: MessageStore, offset: int) -> MessageView:
    segment = store.log.segment_at(offset)
    assert segment is not None
    return MessageView(segment.read(0, segment.file.size()), offset - segment.start)


def _find(store: MessageStore, topic: str, key: str) -> list[int]:
    assert store.index is not None
    return [*store.index.find(topic, key, begin_ms=0, end_ms=EVER, count_max=64)]


def test_transactions_and_delays_of_java_have_the_expected_outcome(root: Path, kind: str) -> None:
    store = open_store(root)
    delivered: defaultdict[str, list[str | None]] = defaultdict(list)
    for queue in list(store.queues):
        delivered[queue.key.topic] += [m.unique_id for m in read_queue(store, queue.key)]
    for message in sent(kind):
        times = delivered[message.topic].count(message.unique_id)
        rolled_back = message.kind == "tx_ROLLBACK_MESSAGE"
        # Levels 4 and 5 are 30 s and 60 s; the brokers did not run that long.
        undelivered = message.kind in ("delay4", "delay5")
        assert times == (0 if rolled_back or undelivered else 1), message
    store.close()


def test_every_queue_of_java_matches_the_log(root: Path) -> None:
    wanted: defaultdict[QueueKey, list[tuple[int, int]]] = defaultdict(list)
    for view in records_of(root):
        if view.sys_flag & flags.TRANSACTION_MASK in (0, flags.TRANSACTION_COMMIT):
            key = queue_key(view.topic, view.queue_id)
            wanted[key].append((view.queue_offset, view.physical_offset))
    store = open_store(root)
    found = {
        queue.key: [(m.queue_offset, m.physical_offset) for m in read_queue(store, queue.key)]
        for queue in list(store.queues)
    }
    assert found == wanted
    assert all([rank for rank, _ in row] == list(range(len(row))) for row in found.values())
    store.close()


def test_tag_filter_finds_the_messages_with_that_tag(root: Path) -> None:
    store = open_store(root)
    total = 0
    for queue_id in range(4):
        key = queue_key("golden_orders", queue_id)
        wanted = [m.queue_offset for m in read_queue(store, key) if m.tags == "beijing"]
        with store.read(key, store.min_offset(key), tags_codes={string_hash("beijing")}) as result:
            found = [m.queue_offset for span in result.spans for m in decode_all(bytes(span))]
            assert (result.status is ReadStatus.FOUND) == bool(wanted)
        assert found == wanted
        total += len(found)
    assert total > 0
    store.close()


def test_opening_keeps_the_files_of_java(root: Path) -> None:
    before = tree(root, "commitlog", "config", "consumequeue")
    names = {path.name for path in root.iterdir()}
    open_store(root).close()
    after = tree(root, "commitlog", "config", "consumequeue")
    # Java creates the next log file in advance. It is empty, so it may be deleted.
    assert set(before) - set(after) <= {"commitlog/00000000000000065536"}
    # Our derivation file is stored beside Java's tables.
    del after["config/derivation.json"]
    assert {path: before[path] for path in after} == after
    assert {path.name for path in root.iterdir()} == names - {"abort"}


def test_java_store_continues_with_our_messages(root: Path, kind: str) -> None:
    """Our messages after Java's: queue offsets continue, and the old messages are kept."""
    store = open_store(root)
    key = queue_key("golden_orders", 1)
    before = [bytes(m.body) for m in read_queue(store, key)]
    entry = Entry(key, b"after", b"TAGS\x01beijing\x02UNIQ_KEY\x01ours\x02")
    placed = store.append(build([entry], store_host=bytes(8), record_crc=True))
    store.dispatch_all()
    assert list(placed.queue_offsets) == [len(before)]
    store.close()
    store = open_store(root)
    assert [bytes(m.body) for m in read_queue(store, key)] == [*before, b"after"]
    assert _find(store, "golden_orders", "ours") == placed.physical_offsets()
    for message in sent(kind):
        _check_by_place(store, message)
    store.close()
