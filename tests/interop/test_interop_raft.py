"""RocketMQ's own clients on a Raft group: a killed leader loses nothing, sends continue."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import client_probe
import pytest
from client_build import FIVE, FOUR, build
from client_probe import ClientProbe, ProbeError

from clients import server_process
from clients.server_process import ServerProcess
from clients.waiting import wait_until
from tianzhou.client.sync import Admin

TOPIC = "Elected"
COUNT = 20
BACK_S = 90.0
"""Java's clients fetch routes only every 30 s."""


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ServerProcess]:
    running = server_process.up(tmp_path / "group", "--replicas", "3", "--no-http")
    yield running
    running.end()


@pytest.fixture(params=[FIVE, FOUR])
def probe(
    request: pytest.FixtureRequest, group: ServerProcess, tmp_path: Path
) -> Iterator[ClientProbe]:
    classpath = build(request.param)
    with client_probe.running(classpath, group.nameserver, tmp_path / "probe") as running:
        running.ask("producer", "p")
        yield running


def master(group: ServerProcess) -> str | None:
    with Admin(nameserver=group.nameserver) as admin:
        (place,) = admin.brokers.all()
        return place.addresses.get(0)


def kill_leader(group: ServerProcess) -> None:
    facts: dict[str, Any] = {**group.facts}
    killed = master(group)
    (name,) = [name for name, address in facts["members"].items() if address == killed]
    os.kill(facts["pids"][name], signal.SIGKILL)
    wait_until(
        lambda: master(group) not in (None, killed), within_s=20, what="another member leads"
    )


def send(probe: ClientProbe, body: str) -> None:
    """Send until the group acknowledges it."""

    def is_sent() -> bool:
        try:
            return probe.send("p", TOPIC, body)["status"] == "SEND_OK"
        except ProbeError:
            return False

    wait_until(is_sent, within_s=BACK_S, what=f"{body} is sent")


@pytest.mark.timeout(400)
def test_java_clients_survive_a_kill_of_the_leader(
    group: ServerProcess, probe: ClientProbe
) -> None:
    with Admin(nameserver=group.nameserver) as admin:
        admin.topics.create(TOPIC, queues=4)
    wanted = [f"{when}-{number}" for when in ("before", "after") for number in range(COUNT)]
    for body in wanted[:COUNT]:
        send(probe, body)
    probe.ask("consumer", "c", group="elected-readers", topic=TOPIC)
    probe.wait_bodies(wanted[:COUNT], "c")
    kill_leader(group)
    for body in wanted[COUNT:]:
        send(probe, body)
    # A message in flight when the leader died may come twice.
    wait_until(
        lambda: set(probe.bodies("c")) == set(wanted),
        within_s=BACK_S,
        what="everything is delivered",
    )
    probe.stop("p", "c")
