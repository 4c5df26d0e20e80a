"""Importing a DLedger directory: same queue offsets, and never a half-finished destination."""

from pathlib import Path

import pytest
from ledgers import FILE_BYTES, KEY, OTHER, LedgerWriter

from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import QueueKey, QueueOffset, queue_key
from tianzhou.record.chunk import Entry, build
from tianzhou.record.message import MessageView, decode_all
from tianzhou.store.config import StoreConfig
from tianzhou.store.detect import detect
from tianzhou.store.files import ReadOnlyFiles, RealFiles
from tianzhou.store.imports import SUFFIX, Imported, Source, finish, import_store
from tianzhou.store.read import ReadLimit
from tianzhou.store.store import MessageStore
from tianzhou.store.verify import Directory
from tianzhou.testing.sim.clock import ManualClock


@pytest.fixture
def writer(tmp_path: Path) -> LedgerWriter:
    made = LedgerWriter(tmp_path / "source")
    made.tables()
    for number in range(60):
        body = b"%d-" % number + b"x" * (number * 37 % 300)
        made.append(body, OTHER if number % 3 == 2 else KEY, offset=_offset(number))
    return made


def _offset(number: int) -> int:
    return number // 3 if number % 3 == 2 else number // 3 * 2 + number % 3


def run(source: Path, root: Path) -> Imported:
    files = RealFiles()
    store, found = import_store(
        Source(ReadOnlyFiles(), str(source)),
        files,
        str(root),
        ManualClock(),
        tell=lambda _done, _all: None,
    )
    store.close()
    finish(files, str(root))
    return found


def opened(root: Path) -> MessageStore:
    config = detect(RealFiles(), str(root))
    return MessageStore(RealFiles(), str(root), config, ManualClock())


def messages(store: MessageStore, key: QueueKey = KEY) -> list[MessageView]:
    start = QueueOffset(store.min_offset(key))
    with store.read(key, start, ReadLimit(1000, 1 << 20)) as found:
        return [view for span in found.spans for view in decode_all(span)]


def numbers(views: list[MessageView]) -> list[int]:
    return [int(bytes(view.body).partition(b"-")[0]) for view in views]


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_import_keeps_queue_offsets_and_tables(writer: LedgerWriter, tmp_path: Path) -> None:
    before = contents(writer.root)
    found = run(writer.root, tmp_path / "new")
    assert contents(writer.root) == before, "the source is only read"
    assert (found.records, found.queues, found.topics, found.groups) == (60, 2, 1, 1)
    assert not found.damage
    store = opened(tmp_path / "new")
    for key in (KEY, OTHER):
        views = messages(store, key)
        assert [view.queue_offset for view in views] == list(range(len(views)))
        assert {view.store_timestamp for view in views} == {77}
    assert numbers(messages(store)) == [number for number in range(60) if number % 3 != 2]
    assert store.tables.consumer_offsets.load().offset_table == {"orders@g": {0: 3, 1: 1}}
    assert "orders" in store.tables.topics.load().topic_config_table
    store.close()
    directory = Directory(ReadOnlyFiles(), str(tmp_path / "new"), store.config)
    assert directory.verify(lambda _done, _all: None).is_sound
    directory.close()


def test_import_continues_queues_that_do_not_start_at_zero(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path / "source")
    writer.tables()
    for number in range(500, 520):
        writer.append(b"%d-" % number, offset=number)
    run(writer.root, tmp_path / "new")
    store = opened(tmp_path / "new")
    assert (store.min_offset(KEY), store.max_offset(KEY)) == (500, 520)
    assert numbers(messages(store)) == list(range(500, 520))
    store.append(build([Entry(KEY, b"520-")], store_host=bytes(8), record_crc=True))
    store.flush()
    store.dispatch_all()
    assert numbers(messages(store))[-1] == 520
    assert store.max_offset(KEY) == 521
    store.close()


def test_import_reads_the_commit_log_from_before_dledger(tmp_path: Path) -> None:
    """RocketMQ keeps it when a broker is switched to DLedger, and continues behind it."""
    root = tmp_path / "source"
    config = StoreConfig(commit_log_file_bytes=FILE_BYTES, commit_log_preallocate_bytes=4096)
    old = MessageStore(RealFiles(), str(root), config, ManualClock())
    for number in range(10):
        old.append(build([Entry(KEY, b"%d-" % number)], store_host=bytes(8), record_crc=True))
    old.close()
    writer = LedgerWriter(root, first_file=FILE_BYTES)
    for number in range(10, 30):
        writer.append(b"%d-" % number, offset=number)
    found = run(root, tmp_path / "new")
    assert found.records == 30
    store = opened(tmp_path / "new")
    assert numbers(messages(store)) == list(range(30))
    store.close()


def test_import_skips_damaged_entries_and_reports_them(
    writer: LedgerWriter, tmp_path: Path
) -> None:
    writer.damage(writer.places[9] + 60)
    found = run(writer.root, tmp_path / "new")
    assert found.records == 59
    assert [one.start for one in found.damage] == [writer.places[9], writer.places[10]]
    store = opened(tmp_path / "new")
    views = messages(store)
    assert numbers(views) == [number for number in range(60) if number % 3 != 2 and number != 9]
    assert next(view.queue_offset for view in views if numbers([view])[0] > 9) == _offset(10)
    store.close()


def test_import_sets_back_offsets_beyond_the_end(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path / "source")
    writer.tables()
    writer.append(b"0-", offset=0)
    assert run(writer.root, tmp_path / "new").set_back == 2
    store = opened(tmp_path / "new")
    assert store.tables.consumer_offsets.load().offset_table == {"orders@g": {0: 1, 1: 0}}
    store.close()


def test_import_counts_entries_that_may_not_be_committed(
    writer: LedgerWriter, tmp_path: Path
) -> None:
    writer.commit(55)
    assert run(writer.root, tmp_path / "new").uncommitted == 4


def test_import_rejects_a_destination_that_is_not_empty(
    writer: LedgerWriter, tmp_path: Path
) -> None:
    target = tmp_path / "new"
    target.mkdir()
    (target / "something").write_text("mine")
    with pytest.raises(UsageError, match="is not empty"):
        run(writer.root, target)
    assert contents(target) == {"something": b"mine"}


def test_import_rejects_a_source_without_messages(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    with pytest.raises(UsageError, match="has no messages"):
        run(tmp_path / "source", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_import_that_was_interrupted_starts_over(writer: LedgerWriter, tmp_path: Path) -> None:
    target = tmp_path / "new"
    seen: list[int] = []

    def interrupt(done: int, _all: int) -> None:
        seen.append(done)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_store(
            Source(ReadOnlyFiles(), str(writer.root)),
            RealFiles(),
            str(target),
            ManualClock(),
            tell=interrupt,
        )
    assert seen
    assert not target.exists()
    assert Path(f"{target}{SUFFIX}").exists()
    assert run(writer.root, target).records == 60
    assert not Path(f"{target}{SUFFIX}").exists()


def test_import_does_not_remove_a_directory_that_it_did_not_make(
    writer: LedgerWriter, tmp_path: Path
) -> None:
    other = Path(f"{tmp_path / 'new'}{SUFFIX}")
    other.mkdir()
    (other / "precious").write_text("mine")
    with pytest.raises(UsageError, match="was not made by an import"):
        run(writer.root, tmp_path / "new")
    assert (other / "precious").read_text() == "mine"


def test_import_of_a_queue_of_another_topic_is_separate(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path / "source")
    writer.append(b"0-", queue_key("bills", 3), offset=7)
    run(writer.root, tmp_path / "new")
    store = opened(tmp_path / "new")
    assert store.max_offset(queue_key("bills", 3)) == 8
    store.close()
