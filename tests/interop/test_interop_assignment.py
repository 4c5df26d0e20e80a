"""Our assignment strategies give the same queues as RocketMQ's own classes."""

import random
import subprocess
from pathlib import Path
from typing import Final

import pytest
from client_build import FIVE, FOUR, JAVA, build

from tianzhou.client.core import assignment
from tianzhou.client.core.assignment import Strategy, assign
from tianzhou.wire.queues import MessageQueue

SOURCE: Final = Path(__file__).parent / "java-assignment" / "Assignments.java"
CASES: Final = 400
STRATEGIES: Final[dict[str, Strategy]] = {
    "average": assignment.average,
    "circle": assignment.circle,
    "consistent_hash": assignment.consistent_hash(),
    "machine_room": assignment.machine_room(["hz", "sh"]),
    "machine_room_nearby": assignment.machine_room_nearby(
        lambda queue: queue.broker_name.partition("@")[0],
        lambda client: client.partition("-")[0],
    ),
}


def cases(dice: random.Random) -> list[tuple[str, str, list[str], list[str]]]:
    """Strategy, client, clients and queues, of all sizes."""
    found: list[tuple[str, str, list[str], list[str]]] = []
    for number in range(CASES):
        name = sorted(STRATEGIES)[number % len(STRATEGIES)]
        rooms = ["bj", "hz", "sh"][: dice.randint(1, 3)]
        clients = sorted(
            {
                f"{dice.choice(rooms)}-10.0.0.{dice.randint(1, 250)}@{dice.randint(1, 99999)}#é"
                for _ in range(dice.randint(1, 9))
            }
        )
        queues = sorted(
            {
                f"{dice.choice(rooms)}@broker-{dice.choice('abc')}:{dice.randint(0, 15)}"
                for _ in range(dice.randint(1, 40))
            }
        )
        dice.shuffle(clients)
        dice.shuffle(queues)
        found.append((name, dice.choice(clients), clients, queues))
    return found


def queue_of(text: str) -> MessageQueue:
    broker, _, number = text.rpartition(":")
    return MessageQueue(topic="T", broker_name=broker, queue_id=int(number))


@pytest.mark.parametrize("version", [FIVE, FOUR])
def test_assignments_equal_those_of_java(version: str) -> None:
    asked = cases(random.Random(20))
    lines = [
        "\t".join((name, client, ",".join(clients), ",".join(queues)))
        for name, client, clients, queues in asked
    ]
    ran = subprocess.run(
        [*JAVA, "-Dfile.encoding=UTF-8", "-cp", build(version), str(SOURCE)],
        input="\n".join(lines) + "\n",
        capture_output=True,
        encoding="utf-8",
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    answers = ran.stdout.splitlines()
    assert len(answers) == len(asked)
    for (name, client, clients, queues), answer in zip(asked, answers, strict=True):
        mine = assign(
            STRATEGIES[name],
            group="g",
            client_id=client,
            queues=map(queue_of, queues),
            clients=clients,
        )
        assert [f"{q.broker_name}:{q.queue_id}" for q in mine] == [
            text for text in answer.split(",") if text
        ], (name, client, clients, queues)
