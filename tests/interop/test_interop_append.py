"""Java RocketMQ continues in our directory and we in its: nothing is lost, bytes agree."""

from dataclasses import replace
from pathlib import Path

import pytest
from corpus import (
    ORDERS,
    PAYMENTS,
    ROUNDS,
    SCHEDULE,
    STOPS,
    Content,
    config,
    files_below,
    fill,
    index_entries,
    now_clock,
    open_store,
    write_store,
)
from java_probe import JavaStore, Line, Put

from tianzhou.store.config import StoreConfig
from tianzhou.store.consume_queue import UNIT
from tianzhou.testing.sim.clock import ManualClock

CHANGED_BY_4 = {"WAIT", "REAL_TOPIC", "REAL_QID"}
"""4.x drops the first, and adds the others to delayed messages by itself."""


def _puts() -> list[Put]:
    """Messages for Java: in our queues and in a new one, more than one log file."""
    return [put for rank in range(12) for put in _puts_of(rank)]


def _puts_of(rank: int) -> list[Put]:
    unique = f"AC11000200002A9FAAC2{rank:012X}"
    return [
        Put(
            ORDERS,
            rank % 4,
            f"java {rank} 消息" * 400,
            {
                "UNIQ_KEY": unique,
                "TAGS": "北京",
                "KEYS": f"java-{rank} customer-3",
                "WAIT": "true",
            },
        ),
        Put(ORDERS, 1, "x", {}),
        Put(PAYMENTS, 0, "paid" * rank or "-", {"KEYS": f"pay-{rank}"}),
        Put("interop_java", 0, "new", {"UNIQ_KEY": unique, "TAGS": "t"}),
        Put("interop_java", 0, "newer", {"TAGS": "a || b"}),
        Put(
            SCHEDULE,
            17,
            "later",
            {
                "DELAY": "18",
                "REAL_TOPIC": ORDERS,
                "REAL_QID": "0",
                "KEYS": f"later-java-{rank}",
            },
        ),
    ]


@pytest.mark.parametrize("halt", [False, True], ids=["java-closed", "java-halted"])
@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("record_crc", [True, False])
def test_java_continues_our_store_and_we_continue_its(
    java: JavaStore, java_version: str, tmp_path: Path, record_crc: bool, stop: str, halt: bool
) -> None:
    root, settings, clock = tmp_path / "store", config(record_crc=record_crc), now_clock()
    before, keys_from = write_store(root, settings, clock, stop)

    answers = java.run(root, settings, puts=_puts(), halt=halt)
    queues, index = files_below(root, "consumequeue"), files_below(root, "index")

    clock = ManualClock(clock.now_ms() + 700_000)
    store = open_store(root, settings, clock)
    assert store.recovered.damage == []
    assert store.recovered.cut_at is None
    after = Content.of(store)
    assert after.lines == {line["physicalOffset"]: line for line in answers.messages}
    assert before.lines.items() <= after.lines.items()
    _check_placed(after, answers.placed)
    after.check_own_search(store)
    store.close()
    _check_queues(files_below(root, "consumequeue"), queues, java_version)
    _check_index([index, files_below(root, "index")], settings, after, keys_from=keys_from)

    store = open_store(root, settings, clock)
    fill(store, clock, range(ROUNDS, ROUNDS + 15))
    both = Content.of(store)
    assert after.lines.items() < both.lines.items()
    store.close()
    both.check(java.run(root, settings, keys=both.keys))


def _check_placed(content: Content, placed: list[Line]) -> None:
    """Check that each message is at the reported place."""
    for put, answer in zip(_puts(), placed, strict=True):
        line = content.lines[answer["physicalOffset"]]
        assert (line["topic"], line["queueId"]) == (put.topic, put.queue_id)
        assert line["bodySize"] == len(put.body.encode())
        assert line["recordSize"] == answer["size"]
        for name in ("msgId", "queueOffset", "storeTimestamp"):
            assert line[name] == answer[name]
        for name in put.properties.keys() - CHANGED_BY_4:
            assert line["properties"][name] == put.properties[name]


def _check_queues(ours: dict[str, bytes], javas: dict[str, bytes], java_version: str) -> None:
    assert ours.keys() == javas.keys()
    for path, data in ours.items():
        if data != javas[path]:
            # Java 4.x recovers before it reads the delay levels, and takes the hash of the tag for
            # the delivery time of records that it derives then.
            assert java_version.startswith("4.")
            assert SCHEDULE in path
            assert [*map(_place, UNIT.iter_unpack(data))] == [
                *map(_place, UNIT.iter_unpack(javas[path]))
            ]


def _place(unit: tuple[int, int, int]) -> tuple[int, int]:
    return unit[:2]


def _check_index(
    files: list[dict[str, bytes]], settings: StoreConfig, content: Content, *, keys_from: int
) -> None:
    """Files are named by their creation time; their bytes are the same."""
    javas, ours = ([*found.values()] for found in files)
    if javas == ours:
        return
    wanted, found = (index_entries(found, settings, content) for found in (javas, ours))
    if keys_from:
        assert {*wanted} < {*found}
        wanted = [entry for entry in wanted if entry[1] >= keys_from]
        found = [entry for entry in found if entry[1] >= keys_from]
    assert found == wanted


@pytest.mark.parametrize("stop", STOPS)
def test_store_of_a_killed_java_broker_loses_nothing(
    java: JavaStore, tmp_path: Path, stop: str
) -> None:
    """Before its first checkpoint. Java writes no checksum of whole records, and we require one for
    records that we did not flush, unless another program wrote to the directory."""
    root, clock = tmp_path / "store", now_clock()
    # A full index file would trigger a checkpoint.
    settings = replace(config(record_crc=True), index_entries=4000)
    before, _ = write_store(root, settings, clock, stop)
    with java.session(root, settings) as session:
        placed = [session.put(put) for put in _puts()[:3]]
        session.halt()
    store = open_store(root, settings, clock)
    assert store.recovered.cut_at is None
    after = Content.of(store)
    assert before.lines.items() < after.lines.items()
    assert {answer["physicalOffset"] for answer in placed} == after.lines.keys() - before.lines
    store.close()
