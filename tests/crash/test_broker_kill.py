"""A broker under load is killed with SIGKILL repeatedly: acknowledged messages are delivered
afterwards, intact, once, and from the acknowledged place."""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from clients.server_process import Lives
from clients.waiting import wait_until
from crash.broker_load import LATER, QUEUES, TOPICS, Load, Place, body_of
from crash.broker_reader import Reader

TORTURE: Final = "TIANZHOU_TORTURE" in os.environ
CYCLES: Final = 100 if TORTURE else 10
"""Kills in each flush mode."""
ACKS: Final = (0, 1, 30, 300, 2_000)
DELIVERED_S: Final = 30.0
SAVE_S: Final = 5.0
SAVE_SLACK_S: Final = 10.0


class Witness:
    """Compares delivered messages with acknowledged ones, and with earlier deliveries."""

    def __init__(self) -> None:
        self.load = Load()
        self.seen: dict[Place, int] = {}

    def check(self, address: str, *, whole: bool) -> None:
        """Pull everything that is new; check that every acknowledged message is there."""
        with Reader(address) as reader:
            for topic in TOPICS:
                for queue_id in range(QUEUES):
                    self._check_queue(reader, topic, queue_id, whole=whole)
        for serial, place in self.load.acked.items():
            assert self.seen.get(place) == serial, f"message {serial} is not at {place}"
        assert len(set(self.seen.values())) == len(self.seen), "a message was delivered twice"

    def _check_queue(self, reader: Reader, topic: str, queue_id: int, *, whole: bool) -> None:
        seen = sum(place[:2] == (topic, queue_id) for place in self.seen)
        end = 0 if whole else seen
        for view in reader.messages(topic, queue_id, end):
            serial = int(view.body.partition(b"|")[0])
            assert view.body == body_of(serial)
            place = Place(topic, queue_id, view.queue_offset)
            assert self.seen.setdefault(place, serial) == serial, f"{place} has another message"
            end += 1
        assert end >= seen, f"{seen - end} messages of {topic}, queue {queue_id}, are lost"

    def delayed_are_delivered(self, address: str) -> bool:
        """Delayed messages may come twice, because their progress is saved periodically."""
        with Reader(address) as reader:
            serials = {
                int(view.body.partition(b"|")[0])
                for queue_id in range(QUEUES)
                for view in reader.messages(LATER, queue_id, 0)
            }
        return self.load.delayed <= serials


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    made = Lives(tmp_path / "server")
    yield made
    made.end()


@pytest.mark.timeout(100 if not TORTURE else 3_600)
@pytest.mark.parametrize("flush", ["async", "sync"])
def test_broker_killed_under_load_keeps_acknowledged_messages(lives: Lives, flush: str) -> None:
    options = ("--sync-flush",) if flush == "sync" else ()
    witness, dice = Witness(), random.Random(flush)
    for _ in range(CYCLES):
        server = lives.start(*options)
        witness.check(server.broker, whole=False)
        with witness.load.in_flight(server.broker, dice.randint(0, dice.choice(ACKS))):
            server.kill()
    server = lives.start(*options)
    witness.check(server.broker, whole=True)
    wait_until(
        lambda: witness.delayed_are_delivered(server.broker),
        within_s=DELIVERED_S,
        what="all delayed messages are delivered",
    )
    assert not witness.load.refused
    assert len(witness.load.acked) > CYCLES * 50
    assert witness.load.delayed
    assert server.stop() == 0


def test_committed_offsets_survive_a_kill_after_five_seconds(lives: Lives) -> None:
    """A committed offset is durable after five seconds."""
    server = lives.start()
    with Load().in_flight(server.broker, 200):
        server.kill()
    server = lives.start()
    path = Path(server.facts["data"]) / "config" / "consumerOffset.json"
    with Reader(server.broker) as reader:
        for queue_id in range(QUEUES):
            reader.commit(TOPICS[0], queue_id, 3 + queue_id)
        wait_until(
            lambda: path.exists() and "kill-readers" in path.read_text(),
            within_s=SAVE_S + SAVE_SLACK_S,
            what="offsets are saved",
        )
        # Not durable yet; but the offset found later must be one that was committed.
        reader.commit(TOPICS[0], 0, 5)
    server.kill()
    server = lives.start()
    with Reader(server.broker) as reader:
        found = [reader.committed(TOPICS[0], queue_id) for queue_id in range(QUEUES)]
    assert found[0] in (3, 5)
    assert found[1:] == [4, 5, 6]
