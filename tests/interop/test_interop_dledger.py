"""The directory of a DLedger broker of RocketMQ, imported: same messages, same offsets."""

import asyncio
import json
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import java_servers
import pytest

from clients.server_process import spare_port
from tianzhou.base.kinds import QueueKey, QueueOffset, queue_key
from tianzhou.client import Admin, Message, Producer
from tianzhou.net.blocking import BlockingPeer
from tianzhou.record.message import MessageView, decode_all
from tianzhou.store.detect import detect
from tianzhou.store.files import RealFiles
from tianzhou.store.read import ReadLimit
from tianzhou.store.store import MessageStore
from tianzhou.testing.chaos.processes import TIANZHOU
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.names import SCHEDULE_TOPIC

TOPIC: Final = "ledgered"
GROUP: Final = "readers"
QUEUES: Final = 4
SENT: Final = 300
COMMITTED: Final = 7


class Sent(NamedTuple):
    """A message as the broker acknowledged it."""

    queue_id: int
    queue_offset: int
    body_crc: int


class Ledgered(NamedTuple):
    """The directory of a broker that has stopped, and what it acknowledged."""

    store: Path
    sent: list[Sent]


@pytest.fixture(scope="module", params=[java_servers.FOUR, java_servers.FIVE])
def ledgered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ledgered:
    directory = tmp_path_factory.mktemp("dledger")
    settings = {
        "enableDLegerCommitLog": "true",
        "dLegerGroup": "broker-java",
        "dLegerPeers": f"n0-127.0.0.1:{spare_port()}",
        "dLegerSelfId": "n0",
        "mappedFileSizeCommitLog": str(1 << 20),
        "mappedFileSizeConsumeQueue": "20000",
        "maxHashSlotNum": "1000",
        "maxIndexNum": "4000",
    }
    with java_servers.rocketmq(request.param, directory, **settings) as nameserver:
        sent = asyncio.run(play(nameserver))
    return Ledgered(directory / "store", sent)


async def play(nameserver: str) -> list[Sent]:
    """Messages of all sizes, so that they fill several files; one that is delayed; offsets."""
    sent: list[Sent] = []
    async with (
        asyncio.timeout(120),
        Admin(nameserver=nameserver) as admin,
        Producer("makers", nameserver=nameserver) as producer,
    ):
        await admin.topics.create(TOPIC, queues=QUEUES)
        await admin.groups.create(GROUP)
        for number in range(SENT):
            body = b"%d-" % number + b"x" * (number * 997 % 20_000)
            message = Message(TOPIC, body, keys=f"k{number}", tags="a" if number % 2 else "b")
            result = await producer.send(message)
            place = result.queue.queue_id, result.queue_offset
            sent.append(Sent(*place, zlib.crc32(body)))
        await producer.send(Message(TOPIC, b"later", delay_level=10))
        (address,) = [one.addresses[0] for one in await admin.brokers.all()]
    with BlockingPeer(address) as peer:
        for queue in range(QUEUES):
            ext = {
                "consumerGroup": GROUP,
                "topic": TOPIC,
                "queueId": str(queue),
                "commitOffset": str(COMMITTED + queue),
            }
            answer, _ = peer.call(RequestCode.UPDATE_CONSUMER_OFFSET, ext)
            assert answer.code == 0, answer.remark
    return sent


def imported(source: Path, target: Path, *more: str) -> dict[str, object]:
    done = subprocess.run(
        [TIANZHOU, "store", "import", str(source), str(target), *more, "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def messages(store: MessageStore, key: QueueKey) -> Iterator[MessageView]:
    at, end = store.min_offset(key), store.max_offset(key)
    while at < end:
        with store.read(key, QueueOffset(at), ReadLimit(100, 1 << 24)) as found:
            yield from (view for span in found.spans for view in decode_all(span))
            at = found.next_offset


def check(root: Path, sent: list[Sent]) -> None:
    config = detect(RealFiles(), str(root))
    store = MessageStore(RealFiles(), str(root), config, ManualClock(1_800_000_000_000))
    try:
        found = [
            Sent(queue, int(view.queue_offset), zlib.crc32(view.body))
            for queue in range(QUEUES)
            for view in messages(store, queue_key(TOPIC, queue))
        ]
        assert sorted(found) == sorted(sent)
        (later,) = messages(store, queue_key(SCHEDULE_TOPIC, 9))
        assert later.body == b"later"
        with store.find(TOPIC, "k17") as hits:
            assert [view.keys for span in hits.spans for view in decode_all(span)] == [("k17",)]
        offsets = store.tables.consumer_offsets.load().offset_table[f"{TOPIC}@{GROUP}"]
        assert offsets == {queue: COMMITTED + queue for queue in range(QUEUES)}
        assert store.tables.topics.load().topic_config_table[TOPIC].write_queue_nums == QUEUES
        assert not store.recovered.damage
    finally:
        store.close()


def contents(root: Path) -> dict[str, tuple[int, int]]:
    """Size and checksum of every file that may not change."""
    return {
        str(path.relative_to(root)): (path.stat().st_mtime_ns, path.stat().st_size)
        for path in root.rglob("*")
        if path.is_file()
    }


def test_import_of_a_dledger_directory_has_the_same_offsets(
    ledgered: Ledgered, tmp_path: Path
) -> None:
    before = contents(ledgered.store)
    found = imported(ledgered.store, tmp_path / "plain")
    assert contents(ledgered.store) == before
    assert found["damage"] == []
    assert found["uncommitted"] == 0
    assert int(str(found["records"])) > SENT
    check(tmp_path / "plain", ledgered.sent)


def test_import_of_a_dledger_directory_makes_a_member(ledgered: Ledgered, tmp_path: Path) -> None:
    member = ("--raft-group", "g", "--raft-id", "n0", "--raft-peers", "n0=127.0.0.1:1")
    assert imported(ledgered.store, tmp_path / "member", *member)["raft"] == "g"
    check(tmp_path / "member", ledgered.sent)
