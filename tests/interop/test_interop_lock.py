"""One directory has one owner, in Java and in Python."""

from pathlib import Path

import pytest
from corpus import config, fill, now_clock, open_store
from java_probe import JavaStore

from tianzhou.store.errors import StoreLocked


def test_java_fails_to_start_on_our_open_store(java: JavaStore, tmp_path: Path) -> None:
    root, settings, clock = tmp_path / "store", config(record_crc=True), now_clock()
    store = open_store(root, settings, clock)
    fill(store, clock, range(2))
    with java.session(root, settings) as session:
        assert "Lock failed" in session.first["refused"]
    store.close()


def test_open_fails_on_an_open_java_store(java: JavaStore, tmp_path: Path) -> None:
    root, settings, clock = tmp_path / "store", config(record_crc=True), now_clock()
    with java.session(root, settings) as session:
        assert session.first == {"opened": 0}
        with pytest.raises(StoreLocked):
            open_store(root, settings, clock)
        session.close()
    open_store(root, settings, clock).close()
