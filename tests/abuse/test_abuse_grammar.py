"""Mutated sends of every kind, then a crash, a restart and a verification: only valid messages may
be stored. Most go to a broker without sockets, some to a process that is killed."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

import pytest
from live import Live, running, wait_for
from raw_client import HungUp, RawClient, pull_of, send_v2
from send_grammar import next_request

from tianzhou.broker.config import BrokerConfig
from tianzhou.store.config import StoreConfig
from tianzhou.store.verify import Directory
from tianzhou.testing.small_broker import ROOT, RecordingPeer, SmallBroker

IS_TORTURE: Final = bool(os.environ.get("TIANZHOU_TORTURE"))
EXECUTIONS: Final = 1_000_000 if IS_TORTURE else 20_000
SLICE: Final = 2_500
"""Requests before a broker is killed, restarted and verified; the next slice uses a new one."""
LIVE_SLICES: Final = 20 if IS_TORTURE else 2
LIVE_SLICE: Final = 1_000
SEEDS: Final = range(EXECUTIONS // SLICE)
STORE: Final = StoreConfig(
    commit_log_file_bytes=4 << 20,
    consume_queue_file_bytes=20 * 4096,
    index_slots=1024,
    index_entries=1 << 15,
    commit_log_preallocate_bytes=1 << 16,
)
PEERS: Final = ("10.1.1.1", "2001:db8::7", "::ffff:10.1.1.1")


class Traces(logging.Handler):
    """Collects unexpected errors, which the broker logs with a stack trace."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.seen.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


@contextmanager
def traces() -> Generator[list[str]]:
    trap, log = Traces(), logging.getLogger("tianzhou")
    log.addHandler(trap)
    try:
        yield trap.seen
    finally:
        log.removeHandler(trap)


def fuzz(seed: int, count: int) -> SmallBroker:
    """Send `count` requests to a new broker, and return it."""
    with traces() as seen:
        return _fuzz(seed, count, seen)


def _fuzz(seed: int, count: int, traces: list[str]) -> SmallBroker:
    dice, broker = Random(seed), SmallBroker(store_config=STORE, config=BrokerConfig())
    for address in PEERS:
        broker.send("Fuzz", b"before", peer=RecordingPeer(address))
    for number in range(count):
        sent = next_request(dice, broker.store.log.end)
        peer = RecordingPeer(dice.choice(PEERS), 4711)
        try:
            broker.received(peer, sent.data)
            peer.answers()
        except Exception as error:
            traces.append(repr(error))
        assert not traces, f"seed {seed}, request {number} ({sent.kind}): {traces}: {sent.data!r}"
        if number % 50 == 49:
            broker.clock.advance(ms=dice.choice((10, 1_500, 12_000)))
            broker.tick()
    return broker


def check_store(broker: SmallBroker, seed: int) -> None:
    """Check that everything stored can be read, before and after a crash."""
    broker.flush()
    assert broker.store.damaged == set(), f"seed {seed}: a malformed record was stored"
    assert not broker.store.has_undispatched
    ends = {queue.key: int(queue.end) for queue in broker.store.queues}
    for key in ends:
        broker.messages(key.topic, key.queue_id)
    broker.send("Fuzz", b"after")
    ends = {queue.key: int(queue.end) for queue in broker.store.queues}
    broker.kill()
    assert {queue.key: int(queue.end) for queue in broker.store.queues} == ends, f"seed {seed}"
    assert b"after" in [message.stored_body for message in broker.messages("Fuzz")]
    broker.stop()
    directory = Directory(broker.disk, ROOT, STORE)
    found = directory.verify(lambda _done, _total: None)
    directory.close()
    assert found.is_sound, (seed, found.damage, found.problems)


@pytest.mark.slow
@pytest.mark.timeout(7200 if IS_TORTURE else 120)
@pytest.mark.parametrize("seeds", [SEEDS[first::8] for first in range(8)], ids=str)
def test_broker_survives_mutated_sends_of_every_kind(seeds: range) -> None:
    for seed in seeds:
        check_store(fuzz(seed, SLICE), seed)


def fuzz_live(live: Live, dice: Random, count: int) -> None:
    client = live.to_broker()
    for _ in range(count):
        place = dice.randrange(1 << 20)
        try:
            client.send(next_request(dice, place).data)
        except (HungUp, OSError):
            client = live.to_broker()
    client.socket.close()


def send_settled(client: RawClient) -> int:
    """Send a message after everything else; returns how many messages its queue has then."""
    response = client.ask(310, send_v2("Settled", queue_id=0), b"settled")
    assert response.code == 0, response.header
    return int(response.header.ext["queueOffset"]) + 1


@pytest.mark.slow
@pytest.mark.timeout(1800 if IS_TORTURE else 120)
def test_process_survives_mutated_sends_kill_and_restart(tmp_path: Path) -> None:
    data = tmp_path / "data"
    options = ("--data", str(data), "--no-http")
    count = 0
    for number in range(LIVE_SLICES):
        with running(tmp_path, *options, ephemeral=False) as live:
            with live.to_broker() as client:
                fuzz_live(live, Random(1_000_000 + number), LIVE_SLICE)
                assert send_settled(client) == count + 1
                found = client.ask(11, pull_of("Settled", offset=0))
                assert found.body.count(b"settled") == count + 1
                table = json.loads(client.ask(28, {}).body)["table"]
                assert table["damagedRecords"] == "0"
            count += 1
            live.process.kill()
            wait_for(lambda process=live.process: process.poll() is not None)
        (tmp_path / "ready.json").unlink()
        verified = subprocess.run(
            [
                sys.executable,
                "-c",
                "from tianzhou.cmd.main import main; main()",
                "store",
                "verify",
                str(data),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert verified.returncode == 0, verified.stdout + verified.stderr
    with running(tmp_path, *options, ephemeral=False) as live, live.to_broker() as client:
        found = client.ask(11, pull_of("Settled", offset=0))
        assert found.body.count(b"settled") == count, "the broker starts after the last kill, too"
