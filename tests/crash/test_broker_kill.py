"""A running broker under load, killed with SIGKILL again and again: what it acknowledged is
delivered afterwards, whole, once, and where it said."""

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
"""Of each flush mode."""
ACKS: Final = (0, 1, 30, 300, 2_000)
DELIVERED_S: Final = 30.0
SAVE_S: Final = 5.0
SAVE_SLACK_S: Final = 10.0


class Witness:
    """Compares what is delivered with what was acknowledged, and with what was seen before."""

    def __init__(self) -> None:
        self.load = Load()
        self.seen: dict[Place, int] = {}

    def look(self, address: str, *, whole: bool) -> None:
        """Pull everything, or what is behind what was seen; what is acknowledged is there."""
        with Reader(address) as reader:
            for topic in TOPICS:
                for queue_id in range(QUEUES):
                    self._look_at(reader, topic, queue_id, whole=whole)
        for serial, place in self.load.acked.items():
            assert self.seen.get(place) == serial, f"message {serial} is not at {place}"
        assert len(set(self.seen.values())) == len(self.seen), "a message was delivered twice"

    def _look_at(self, reader: Reader, topic: str, queue_id: int, *, whole: bool) -> None:
        seen = sum(place[:2] == (topic, queue_id) for place in self.seen)
        end = 0 if whole else seen
        for view in reader.messages(topic, queue_id, end):
            serial = int(view.body.partition(b"|")[0])
            assert view.body == body_of(serial)
            place = Place(topic, queue_id, view.queue_offset)
            assert self.seen.setdefault(place, serial) == serial, f"{place} holds another message"
            end += 1
        assert end >= seen, f"{seen - end} messages of {topic}, queue {queue_id}, are gone"

    def delayed_are_delivered(self, address: str) -> bool:
        """Delayed messages may come twice, since their progress is saved now and then."""
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
def test_kills_under_load(lives: Lives, flush: str) -> None:
    options = ("--sync-flush",) if flush == "sync" else ()
    witness, dice = Witness(), random.Random(flush)
    for _ in range(CYCLES):
        server = lives.start(*options)
        witness.look(server.broker, whole=False)
        with witness.load.in_flight(server.broker, dice.randint(0, dice.choice(ACKS))):
            server.kill()
    server = lives.start(*options)
    witness.look(server.broker, whole=True)
    wait_until(
        lambda: witness.delayed_are_delivered(server.broker),
        within_s=DELIVERED_S, what="all delayed messages are delivered",
    )  # fmt: skip
    assert not witness.load.refused
    assert len(witness.load.acked) > CYCLES * 50
    assert witness.load.delayed
    assert server.stop() == 0


def test_offsets_are_saved_in_time_and_survive(lives: Lives) -> None:
    """How far a group came is safe five seconds after it said so."""
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
            within_s=SAVE_S + SAVE_SLACK_S, what="offsets are saved",
        )  # fmt: skip
        # Not safe yet, but whatever is found later is something that was said.
        reader.commit(TOPICS[0], 0, 5)
    server.kill()
    server = lives.start()
    with Reader(server.broker) as reader:
        found = [reader.committed(TOPICS[0], queue_id) for queue_id in range(QUEUES)]
    assert found[0] in (3, 5)
    assert found[1:] == [4, 5, 6]
