"""The files of broadcasting consumers: Java's format, the lock of a client id, and the removal of
directories that no consumer uses any more."""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tianzhou.client.consume.offset_files import (
    FILE_NAME,
    LOCK_NAME,
    FileOffsets,
    lasting_identity,
    remove_unused,
)
from tianzhou.client.errors import UsageError
from tianzhou.client.options import ClientOptions
from tianzhou.wire.queues import MessageQueue

Q0 = MessageQueue(topic="T", broker_name="b", queue_id=0)
Q1 = MessageQueue(topic="T", broker_name="b", queue_id=1)
JAVA_FILE = b"""{
	"offsetTable":{{
			"brokerName":"b",
			"queueId":0,
			"topic":"T"
		}:12,{
			"brokerName":"b",
			"queueId":1,
			"topic":"T"
		}:7
	}
}"""
ID = "10.0.0.9@DEFAULT"
DAY_S = 86_400
Open = Callable[..., FileOffsets]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    held: list[FileOffsets] = []

    def make(content: bytes | None = None, *, client_id: str = ID, group: str = "g") -> FileOffsets:
        if content is not None:
            path = tmp_path / client_id / group / FILE_NAME
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        held.append(FileOffsets(tmp_path, client_id, group))
        return held[-1]

    yield make
    for offsets in held:
        offsets.close()


def test_decode_file_reads_a_java_offset_file(opened: Open) -> None:
    assert table_of(opened(JAVA_FILE)) == {Q0: 12, Q1: 7}


def table_of(offsets: FileOffsets) -> dict[MessageQueue, int]:
    found = {queue: asyncio.run(offsets.read(queue)) for queue in (Q0, Q1)}
    return {queue: offset for queue, offset in found.items() if offset is not None}


def test_encode_file_writes_the_java_format(opened: Open, tmp_path: Path) -> None:
    offsets = opened()
    offsets.put(Q0, 12)
    asyncio.run(offsets.save())
    path = tmp_path / ID / "g" / FILE_NAME
    assert path.read_bytes() == b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:12}}'
    offsets.put(Q1, 1 << 40)
    asyncio.run(offsets.save())
    offsets.close()
    assert table_of(opened()) == {Q0: 12, Q1: 1 << 40}


@pytest.mark.parametrize("wrong", [b"", b"{", b"[]", b'{"offsetTable":{"x":1}}'])
def test_decode_file_rejects_a_damaged_file(opened: Open, tmp_path: Path, wrong: bytes) -> None:
    with pytest.raises(UsageError, match=FILE_NAME):
        opened(wrong)
    (tmp_path / ID / "g" / FILE_NAME).unlink()
    opened()  # the lock was released


def test_failed_write_is_logged_once_and_repeated(
    opened: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    offsets = opened()
    obstacle = tmp_path / ID / "g" / "offsets.new"
    obstacle.mkdir()
    offsets.put(Q0, 12)
    for _ in range(3):
        asyncio.run(offsets.save())
    (record,) = caplog.records
    assert record.getMessage().startswith("group g could not write its broadcast offsets:")
    obstacle.rmdir()
    asyncio.run(offsets.save())
    offsets.close()
    assert table_of(opened()) == {Q0: 12}


# The lock


def test_second_consumer_with_one_client_id_is_told_to_name_itself(opened: Open) -> None:
    first = opened()
    opened(group="another")
    opened(client_id="10.0.0.9@two")
    with pytest.raises(UsageError) as caught:
        opened()
    text = str(caught.value)
    assert f"client id {ID} runs on this machine already, in process {os.getpid()};" in text
    assert "ClientOptions(instance_name='...')" in text
    first.close()
    opened()


def test_offset_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"ConsumerOptions\(offsets_directory=\.\.\.\)"):
        FileOffsets(tmp_path / "file", ID, "g")


def test_child_process_does_not_keep_the_lock_of_its_parent(opened: Open) -> None:
    offsets = opened()
    (started, is_started), (ending, is_ending) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:  # it lives until the parent closes its end
        os.close(is_ending)
        os.write(is_started, b"1")
        os.read(ending, 1)
        os._exit(0)
    os.read(started, 1)
    offsets.close()
    try:
        opened()
    finally:
        for end in (started, is_started, ending, is_ending):
            os.close(end)
        assert os.waitpid(child, 0)[1] == 0


def test_lasting_identity_is_that_of_java_unless_the_user_names_one() -> None:
    assert lasting_identity(ClientOptions()).instance_name == "DEFAULT"
    named = ClientOptions(instance_name="cache-1")
    assert lasting_identity(named) is named


# Directories that are no longer used


def aged(place: Path, days: float) -> None:
    at = time.time() - days * DAY_S
    for path in (place, *place.rglob("*")):
        os.utime(path, (at, at))


def old_directory(directory: Path, name: str, *files: str, days: float = 31) -> Path:
    group = directory / name / "g"
    group.mkdir(parents=True)
    for file in files:
        (group / file).write_bytes(b"{}")
    aged(directory / name, days)
    return directory / name


def clean(directory: Path) -> set[str]:
    remove_unused(directory, time.time() - 30 * DAY_S)
    return {place.name for place in directory.iterdir()}


def test_old_directories_of_unused_client_ids_are_removed(tmp_path: Path) -> None:
    old_directory(tmp_path, "10.0.0.1@123#456", FILE_NAME, LOCK_NAME)
    old_directory(tmp_path, "10.0.0.2@DEFAULT", FILE_NAME, f"{FILE_NAME}.bak")
    old_directory(tmp_path, "10.0.0.3@DEFAULT", FILE_NAME, days=29)
    assert clean(tmp_path) == {"10.0.0.3@DEFAULT"}


def test_directory_of_a_living_consumer_is_kept_however_old_it_is(
    opened: Open, tmp_path: Path
) -> None:
    offsets = opened(JAVA_FILE)
    aged(tmp_path / ID, 365)
    assert clean(tmp_path) == {ID}
    assert table_of(offsets) == {Q0: 12, Q1: 7}
    offsets.close()
    aged(tmp_path / ID, 365)
    assert clean(tmp_path) == set()


def test_directory_with_one_living_group_of_two_is_kept(opened: Open, tmp_path: Path) -> None:
    opened(group="living")
    old_directory(tmp_path, "other@x", FILE_NAME)
    (tmp_path / ID / "dead").mkdir()
    (tmp_path / ID / "dead" / FILE_NAME).write_bytes(b"{}")
    aged(tmp_path / ID, 365)
    assert clean(tmp_path) == {ID}
    assert (tmp_path / ID / "dead" / FILE_NAME).exists()


def test_directory_with_a_file_written_lately_is_kept(tmp_path: Path) -> None:
    """A Java consumer holds no lock, and writes its file every few seconds."""
    place = old_directory(tmp_path, "10.0.0.1@DEFAULT", FILE_NAME)
    (place / "g" / FILE_NAME).write_bytes(JAVA_FILE)
    aged(place, 365)
    os.utime(place / "g" / FILE_NAME)
    assert clean(tmp_path) == {"10.0.0.1@DEFAULT"}


def test_directories_with_anything_else_are_kept(tmp_path: Path) -> None:
    old_directory(tmp_path, "photos", "one.png")
    old_directory(tmp_path, "me@home", FILE_NAME, "diary.txt")
    (tmp_path / "me@file").write_text("x")
    (tmp_path / "me@flat").mkdir()
    (tmp_path / "me@flat" / FILE_NAME).write_text("x")
    aged(tmp_path / "me@flat", 365)
    target = old_directory(tmp_path, "target", FILE_NAME)
    (tmp_path / "link@x").symlink_to(target)
    kept = {"photos", "me@home", "me@file", "me@flat", "target", "link@x"}
    assert clean(tmp_path) == kept
    assert (target / "g" / FILE_NAME).exists()


def test_running_consumer_marks_its_lock_as_used(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets = opened()
    aged(tmp_path / ID, 20)
    asyncio.run(offsets.save())
    lock = tmp_path / ID / "g" / LOCK_NAME
    assert time.time() - lock.stat().st_mtime > DAY_S, "once in ten minutes is enough"
    monkeypatch.setattr("tianzhou.client.consume.offset_files.TOUCH_S", -1.0)
    asyncio.run(offsets.save())
    assert time.time() - lock.stat().st_mtime < DAY_S


def test_removal_of_a_missing_directory_has_no_effect(tmp_path: Path) -> None:
    remove_unused(tmp_path / "missing", time.time())
