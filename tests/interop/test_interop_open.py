"""A directory that we wrote opens in Java RocketMQ: every message, offset and key is found."""

from pathlib import Path

import pytest
from corpus import STOPS, Content, config, fill, now_clock, open_store, write_store
from java_probe import JavaStore

from tianzhou.base.kinds import queue_key
from tianzhou.record.chunk import Entry, build


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("record_crc", [True, False])
def test_java_reads_our_store(java: JavaStore, tmp_path: Path, stop: str, record_crc: bool) -> None:
    root, settings, clock = tmp_path / "store", config(record_crc=record_crc), now_clock()
    content, keys_from = write_store(root, settings, clock, stop)
    if stop == "closed":
        _check_size(root)

    content.check(java.run(root, settings, keys=content.keys), keys_from=keys_from)

    store = open_store(root, settings, clock)
    assert store.recovered.damage == []
    assert store.recovered.cut_at is None
    assert Content.of(store) == content
    store.close()


def _check_size(root: Path) -> None:
    """Check that log, queues and index have several files."""
    assert len([*root.glob("commitlog/*")]) > 3
    assert len([*root.glob("index/*")]) > 1
    assert len([*root.glob("consumequeue/interop_orders/1/*")]) > 2


def test_java_verifies_our_record_checksums(
    java: JavaStore, java_version: str, tmp_path: Path
) -> None:
    if java_version.startswith("4."):
        pytest.skip("4.x knows no checksum of whole records")
    root, settings, clock = tmp_path / "store", config(record_crc=True), now_clock()
    store = open_store(root, settings, clock)
    fill(store, clock, range(10))
    content = Content.of(store)
    store.abandon()
    content.check(java.run(root, settings, keys=content.keys, record_crc=True))


def test_java_5_reads_a_topic_with_a_long_name(
    java: JavaStore, java_version: str, tmp_path: Path
) -> None:
    if java_version.startswith("4."):
        pytest.skip("4.x knows no names of more than 127 bytes")
    root, settings, clock = tmp_path / "store", config(record_crc=False), now_clock()
    store = open_store(root, settings, clock)
    entry = Entry(queue_key("long_" * 40, 0), b"body", b"KEYS\x01long\x02")
    store.append(build([entry] * 30, store_host=bytes(8), record_crc=False))
    store.dispatch_all()
    content = Content.of(store)
    store.close()
    content.check(java.run(root, settings, keys=content.keys))
