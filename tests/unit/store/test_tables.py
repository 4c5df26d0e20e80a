import errno
from collections.abc import Callable

import pytest

from tianzhou.base.kinds import QueueKey, QueueOffset, queue_key
from tianzhou.store.errors import DiskFull, StoreDamaged, StoreFenced
from tianzhou.store.tables import SetBack, Table, Tables
from tianzhou.testing.sim.disk import SimDisk
from tianzhou.testing.sim.disk_faults import lost
from tianzhou.wire import tables as wire
from tianzhou.wire.names import SCHEDULE_TOPIC

PATH = "store/config/delayOffset.json"
ONE = wire.DelayOffsetTable(offset_table={1: 10})
TWO = wire.DelayOffsetTable(offset_table={1: 20})
EMPTY = wire.DelayOffsetTable()


def table(disk: SimDisk) -> Table[wire.DelayOffsetTable]:
    return Table(disk, PATH, wire.decode_delay_offsets, EMPTY)


def write(disk: SimDisk, path: str, data: bytes) -> None:
    disk.make_dirs(path.rpartition("/")[0])
    file = disk.create(path, 0)
    file.pwrite(0, data)
    file.close()


def read(disk: SimDisk, path: str) -> bytes:
    file = disk.open(path)
    return file.pread(0, file.size())


def test_table_never_saved_is_empty() -> None:
    disk = SimDisk()
    assert table(disk).load() == EMPTY
    assert disk.calls == [], "nothing is made by looking"


def test_table_saved_is_loaded_and_keeps_its_backup() -> None:
    disk = SimDisk()
    table(disk).save(ONE)
    assert table(disk).load() == ONE
    assert disk.list("store/config") == ["delayOffset.json"]
    table(disk).save(TWO)
    assert table(disk).load() == TWO
    assert disk.list("store/config") == ["delayOffset.json", "delayOffset.json.bak"]
    assert wire.decode_delay_offsets(read(disk, f"{PATH}.bak")) == ONE


def test_table_saved_is_human_readable() -> None:
    disk = SimDisk()
    table(disk).save(ONE)
    assert b'\n  "offsetTable": {\n    "1": 10\n  }\n' in read(disk, PATH)


def test_table_saved_survives_power_loss() -> None:
    disk = SimDisk()
    for value in (ONE, TWO):
        table(disk).save(value)
        assert table(SimDisk(lost(disk))).load() == value


def test_table_crash_between_renames_loads_the_backup() -> None:
    disk = SimDisk()
    table(disk).save(ONE)
    disk.rename(PATH, f"{PATH}.bak")
    write(disk, f"{PATH}.tmp", b"half of the ne")
    assert table(disk).load() == ONE


def test_table_unreadable_raises_with_advice() -> None:
    disk = SimDisk()
    table(disk).save(ONE)
    table(disk).save(TWO)
    write(disk, PATH, b'{"offsetTable":')
    with pytest.raises(StoreDamaged, match=rf"{PATH}: can't be read: .* is {PATH}\.bak") as caught:
        table(disk).load()
    assert caught.value.path == PATH


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errno.ENOSPC, DiskFull),
        (errno.EDQUOT, DiskFull),
        (errno.EIO, StoreFenced),
    ],
)
def test_table_save_failing_at_any_call_leaves_old_or_new(
    error: int, kind: type[Exception]
) -> None:
    disk = SimDisk()
    table(disk).save(ONE)
    before = len(disk.calls)
    table(disk).save(TWO)
    calls = len(disk.calls) - before
    assert calls >= 6
    for call in range(1, calls + 1):
        disk = SimDisk()
        table(disk).save(ONE)
        disk.fail_at(call, error)
        with pytest.raises(kind, match=rf"saving {PATH} failed: \[Errno {error}\]"):
            table(disk).save(TWO)
        disk.heal()
        assert table(disk).load() in (ONE, TWO)
        assert table(SimDisk(lost(disk))).load() in (ONE, TWO)
        table(disk).save(TWO)
        assert table(disk).load() == TWO, "the next one works again"


# All tables of a broker


def ends(key: QueueKey) -> QueueOffset:
    return QueueOffset({("a", 0): 10, ("a", 1): 5, (SCHEDULE_TOPIC, 1): 7}.get(key, 0))


def consumers(offsets: dict[str, dict[int, int]]) -> wire.ConsumerOffsetTable:
    version = wire.DataVersion(counter=3)
    return wire.ConsumerOffsetTable(data_version=version, offset_table=offsets)


def test_tables_have_the_file_names_of_rocketmq() -> None:
    made = Tables(SimDisk(), "c")
    parts = (made.topics, made.groups, made.consumer_offsets, made.delay_offsets)
    assert [part.path for part in parts] == [
        "c/topics.json",
        "c/subscriptionGroup.json",
        "c/consumerOffset.json",
        "c/delayOffset.json",
    ]


@pytest.mark.parametrize("name", ["topics", "subscriptionGroup", "consumerOffset", "delayOffset"])
def test_table_damaged_stops_the_start(name: str) -> None:
    disk = SimDisk()
    made = Tables(disk, "c")
    made.check_all()
    write(disk, f"c/{name}.json", b"")
    with pytest.raises(StoreDamaged, match=f"^c/{name}.json: can't be read"):
        made.check_all()


def test_consumer_offsets_beyond_a_queue_end_are_lowered_to_it() -> None:
    disk = SimDisk()
    made = Tables(disk, "c")
    made.consumer_offsets.save(consumers({"a@g": {0: 11, 1: 5, 2: 1}, "a@h": {0: 9}}))
    assert made.beyond(ends) == [SetBack("a@g", 0, 11, 10), SetBack("a@g", 2, 1, 0)]
    made.set_back(made.beyond(ends))
    expected = consumers({"a@g": {0: 10, 1: 5, 2: 0}, "a@h": {0: 9}})
    assert made.consumer_offsets.load() == expected
    assert Tables(SimDisk(lost(disk)), "c").consumer_offsets.load() == expected


def test_delay_offsets_beyond_a_level_end_are_lowered_to_it() -> None:
    made = Tables(SimDisk(), "c")
    made.delay_offsets.save(wire.DelayOffsetTable(offset_table={2: 8, 3: 0}))
    assert len(made.beyond(ends)) == 1, "level 2 is queue 1"
    made.set_back(made.beyond(ends))
    assert made.delay_offsets.load().offset_table == {2: 7, 3: 0}


def test_offsets_within_their_queues_are_not_rewritten() -> None:
    disk = SimDisk()
    made = Tables(disk, "c")
    made.consumer_offsets.save(consumers({"a@g": {0: 10}}))
    made.delay_offsets.save(wire.DelayOffsetTable(offset_table={2: 7}))
    before = len(disk.calls)
    assert made.beyond(ends) == []
    made.set_back([])
    assert len(disk.calls) == before


def test_offset_key_is_split_into_topic_and_group() -> None:
    made = Tables(SimDisk(), "c")
    made.consumer_offsets.save(consumers({"%RETRY%g@g": {0: 3}}))
    asked: list[QueueKey] = []

    def end_of(key: QueueKey) -> QueueOffset:
        asked.append(key)
        return QueueOffset(99)

    assert made.beyond(end_of) == []
    assert asked == [queue_key("%RETRY%g", 0)]


def test_table_save_later_writes_the_newest_value_once_in_the_runner() -> None:
    disk, waiting = SimDisk(), list[Callable[[], None]]()
    made = table(disk)
    made.run_later = waiting.append
    made.save_later(ONE)
    made.save_later(TWO)
    assert disk.calls == []
    waiting[0]()
    assert table(disk).load() == TWO
    done = len(disk.calls)
    waiting[1]()
    assert len(disk.calls) == done, "it was written with the first"


def test_table_save_is_not_undone_by_an_earlier_save_later() -> None:
    disk, waiting = SimDisk(), list[Callable[[], None]]()
    made = table(disk)
    made.run_later = waiting.append
    made.save_later(ONE)
    made.save(TWO)
    waiting[0]()
    assert table(disk).load() == TWO


def test_table_save_later_on_a_full_disk_is_written_when_there_is_room() -> None:
    disk, waiting = SimDisk(), list[Callable[[], None]]()
    made = table(disk)
    made.run_later = waiting.append
    made.save_later(ONE)
    disk.fail_at(1, errno.ENOSPC)
    with pytest.raises(DiskFull):
        waiting[0]()
    assert table(disk).load() == EMPTY
    waiting[0]()
    assert table(disk).load() == ONE


def test_table_save_later_without_a_runner_saves_at_once() -> None:
    disk = SimDisk()
    table(disk).save_later(ONE)
    assert table(disk).load() == ONE


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("topics", b'{"topicConfjgTable":{"orders":{"topicName":"orders"}}}'),
        ("subscriptionGroup", b"{}"),
        ("consumerOffset", b'{"offseuTable":{"orders@g":{"0":7}}}'),
        ("delayOffset", b'{"topicConfigTable":{}}'),
    ],
)
def test_table_without_its_content_is_damaged_and_not_empty(name: str, data: bytes) -> None:
    """A flipped bit in the one name that matters would otherwise forget everything under it."""
    disk = SimDisk()
    write(disk, f"store/config/{name}.json", data)
    with pytest.raises(StoreDamaged, match=rf"{name}\.json: can't be read: it has no '\w+Table'"):
        Tables(disk, "store/config").check_all()


@pytest.mark.parametrize("name", ["derivation", "incidents", "timerProgress", "replication"])
@pytest.mark.parametrize("data", [b"", b"null", b"[]", b'{"a":' + b"[" * 100_000, b'{"\xff":1}'])
def test_table_of_another_module_that_is_unreadable_fails_the_check(name: str, data: bytes) -> None:
    disk = SimDisk()
    write(disk, f"store/config/{name}.json", data)
    with pytest.raises(StoreDamaged, match=rf"config/{name}\.json: can't be read"):
        Tables(disk, "store/config").check_all()
