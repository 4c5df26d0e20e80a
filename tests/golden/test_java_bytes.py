"""Byte for byte: what we derive from Java's log, and what we would have written instead."""

from pathlib import Path

import pytest
from java_sample import CONFIG, KINDS, open_store, records_of, tree, unpack

from tianzhou.base.kinds import queue_key
from tianzhou.record.chunk import Entry, RecordChunk, build, stamp
from tianzhou.record.ids import encode_host
from tianzhou.record.message import MessageView
from tianzhou.store.files import RealFiles
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock


@pytest.fixture(params=KINDS)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return unpack(request.param, tmp_path)


def test_rebuilt_queues_and_index_equal_javas(root: Path) -> None:
    """Also for the broker that was killed: its pages survived in the page cache, and everything it
    had appended was dispatched by then, so nothing is missing and nothing is extra."""
    queues, index = tree(root, "consumequeue"), tree(root, "index")
    store = open_store(root, rebuild=True)
    assert store.recovered.rebuilt == "it was requested"
    store.close()
    assert tree(root, "consumequeue") == queues
    # An index file is named by its creation time, which differs. Its bytes are the same.
    assert list(tree(root, "index").values()) == list(index.values())


def test_rebuild_does_not_change_the_log(root: Path) -> None:
    before = tree(root, "commitlog")
    open_store(root, rebuild=True).close()
    after = tree(root, "commitlog")
    assert after == {path: before[path] for path in after}
    # The file that Java created in advance is empty; it is created again when needed.
    assert [any(data) for path, data in before.items() if path not in after] == [False]


def _rebuild(view: MessageView) -> RecordChunk:
    """Build the chunk for this message as we would."""
    entry = Entry(
        queue_key(view.topic, view.queue_id),
        view.stored_body,
        view.stored_properties,
        view.flag,
        view.sys_flag,
        view.born_timestamp,
        encode_host(view.born_host),
        view.reconsume_times,
        view.prepared_offset,
    )
    return build([entry], store_host=encode_host(view.store_host), record_crc=False)


def test_record_built_from_decoded_fields_has_the_same_bytes(root: Path) -> None:
    log = (root / "commitlog" / "00000000000000000000").read_bytes()
    for view in records_of(root):
        chunk = _rebuild(view)
        stamp(
            chunk,
            0,
            1,
            queue_offsets=[view.queue_offset],
            physical_offset=view.physical_offset,
            store_timestamp=view.store_timestamp,
        )
        at = view.physical_offset
        assert bytes(chunk.data) == log[at : at + view.total_size]


def test_same_messages_sent_to_us_give_the_same_directory(root: Path, tmp_path: Path) -> None:
    """The whole store: log, queues and index, written by us at the same times as by Java."""
    clock = ManualClock(0)
    ours = tmp_path / "ours"
    store = MessageStore(RealFiles(), str(ours), CONFIG, clock)
    for view in records_of(root):
        clock.jump(view.store_timestamp - clock.now_ms())
        placed = store.append(_rebuild(view))
        assert placed.physical_offsets() == [view.physical_offset]
        assert list(placed.queue_offsets) == [view.queue_offset]
        store.dispatch_all()
    store.close()
    first = "commitlog/00000000000000000000"
    assert tree(ours, "commitlog")[first] == tree(root, "commitlog")[first]
    assert tree(ours, "consumequeue") == tree(root, "consumequeue")
    assert list(tree(ours, "index").values()) == list(tree(root, "index").values())
    written = {path.name for path in ours.iterdir()}
    # Not compared: the tables of the broker, and the marker of an unclean stop.
    assert {path.name for path in root.iterdir()} - written == {"abort"}
    assert {path.name for path in (ours / "config").iterdir()} == {"derivation.json"}
