"""RocketMQ's Java producer at two brokers, one of which has a disk that stalls."""

import asyncio
import threading
from pathlib import Path

import client_build
import client_probe

from e2e.two_brokers import TwoBrokers

TOPIC = "orders"
STALL_S = 4.0


def test_java_producer_sends_elsewhere_while_a_disk_stalls(tmp_path: Path) -> None:
    classpath = client_build.build(client_build.FIVE)
    brokers = TwoBrokers(tmp_path, "flushDiskType=SYNC_FLUSH", "syncFlushTimeout=60000")
    try:
        asyncio.run(brokers.create(TOPIC))
        with client_probe.running(classpath, brokers.nameserver, tmp_path / "java") as probe:
            probe.ask("producer", "rate")
            probe.send("rate", TOPIC, "warm")
            brokers.stall.begin()
            ending = threading.Timer(STALL_S, brokers.stall.end)
            ending.start()
            # A send that was stored before the limit had passed waits for the disk.
            found = probe.ask("load", "rate", topic=TOPIC, rate=50, seconds=6, timeoutMs=20_000)
            ending.join()
        stored, rejected = asyncio.run(brokers.stored(TOPIC)), asyncio.run(brokers.rejected())
    finally:
        brokers.end()
    assert rejected > 0
    del stored["warm"]
    sent = {body for body, is_sent, _ in found["sends"] if is_sent}
    assert len(sent) > 200
    assert dict(stored) == dict.fromkeys(sent, 1), "each once, and none that failed"
