"""How scenarios inspect brokers and their files: every message and all damage is found."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from clients.waiting import wait_until
from tianzhou.client import Message
from tianzhou.client.sync import Producer
from tianzhou.net.blocking import Unreachable
from tianzhou.testing import SMALL_STORE, RunningBroker
from tianzhou.testing.chaos import evidence, looking
from tianzhou.testing.chaos.history import Place, Queue
from tianzhou.testing.chaos.processes import ProcessFailed, Server, spare_ports
from tianzhou.testing.chaos.values import body_of, value_in, value_of

COUNT = 50
STORE = replace(SMALL_STORE, index_slots=1_000, index_entries=4_000)


def fill(mq: RunningBroker) -> list[str]:
    mq.create_topic("chaos", queues=2)
    values = [value_of("client", serial) for serial in range(COUNT)]
    with Producer("producers", nameserver=mq.nameserver) as producer:
        for value in values:
            producer.send(Message("chaos", body_of(value)))
    return values


def test_inspection_detects_an_incomplete_body() -> None:
    for serial in range(300):
        assert value_in(body_of(value_of("a-b", serial))) == f"a-b-{serial}"
    with pytest.raises(AssertionError, match="not what was sent"):
        value_in(body_of("a-7")[:-1])
    with pytest.raises(AssertionError, match="not what was sent"):
        value_in(body_of("a-7") + b"x")


def test_scan_finds_every_message_at_its_offset(mq: RunningBroker) -> None:
    values = fill(mq)
    found = looking.scan(mq.broker, "broker-a", "chaos", 2)
    assert sorted(found.values()) == sorted(values)
    assert set(found) == {
        Place(Queue("broker-a", queue_id), offset)
        for queue_id in (0, 1)
        for offset in range(COUNT // 2)
    }
    assert looking.log_end(mq.broker) > COUNT * 100
    assert looking.committed(mq.broker, "nobody", "chaos", 0) == 0
    assert looking.scan(mq.broker, "broker-a", "unheard-of", 2) == {}


@pytest.mark.slow
def test_scan_starts_after_messages_that_retention_removed(tmp_path: Path) -> None:
    config = replace(STORE, commit_log_file_bytes=4096, retention_hours=1)
    with RunningBroker(directory=tmp_path, store_config=config) as mq:
        fill(mq)
        mq.clock.advance(hours=2)
        found = looking.scan(mq.broker, "broker-a", "chaos", 2)
    firsts = [min(place.offset for place in found if place.queue.queue_id == n) for n in (0, 1)]
    assert min(firsts) > 0
    assert set(found) == {
        Place(Queue("broker-a", queue_id), offset)
        for queue_id, first in enumerate(firsts)
        for offset in range(first, COUNT // 2)
    }


def test_scan_of_a_dead_broker_raises(mq: RunningBroker) -> None:
    address = mq.broker
    mq.stop()
    with pytest.raises(Unreachable):
        looking.log_end(address)


@pytest.mark.slow
def test_log_digest_covers_all_bytes_and_detects_damage(tmp_path: Path) -> None:
    with RunningBroker(directory=tmp_path / "one", store_config=STORE) as mq:
        fill(mq)
    root = tmp_path / "one" / "store"
    shutil.copytree(root, tmp_path / "two")
    first, second = (
        evidence.sum_up("same", root, "chaos"),
        evidence.sum_up("same", tmp_path / "two", "chaos"),
    )
    assert first == second
    assert first.queues[0] == (0, COUNT // 2)
    assert first.problems == ()
    (path,) = (tmp_path / "two" / "commitlog").iterdir()
    data = bytearray(path.read_bytes())
    data[first.end // 2] ^= 1
    path.write_bytes(data)
    damaged = evidence.sum_up("same", tmp_path / "two", "chaos")
    assert damaged.problems
    assert damaged.digests != first.digests


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().split()[2]


@pytest.mark.slow
def test_server_process_can_be_stopped_killed_and_restarted(tmp_path: Path) -> None:
    server = Server("names", ["nameserver", "-p", str(spare_ports(1))], tmp_path / "names")
    try:
        server.start()
        facts = server.wait_ready()
        assert (server.is_alive, server.life) == (True, "names:1")
        server.pause()
        wait_until(lambda: state_of(server.pid) == "T", within_s=5, what="the process has stopped")
        server.resume()
        server.kill()
        assert not server.is_alive
        with pytest.raises(ProcessFailed, match="is not running"):
            server.pause()
        server.start()
        assert server.wait_ready() == facts
        assert server.life == "names:2"
        server.stop()
        assert not server.is_alive
    finally:
        server.end()


@pytest.mark.slow
def test_server_that_fails_to_start_reports_the_reason(tmp_path: Path) -> None:
    server = Server("bad", ["broker", "--no-such-option"], tmp_path / "bad")
    try:
        server.start()
        with pytest.raises(ProcessFailed, match="No such option"):
            server.wait_ready()
    finally:
        server.end()
