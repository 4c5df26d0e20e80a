"""RocketMQ's C++ client resumes when a server is restarted or killed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.cpp_client import ClientProcess, Clients
from clients.server_process import Lives
from clients.waiting import wait_until

BACK_S = 60.0
"""The client does not check whether its connection broke: it waits 30 s for the response to a pull
that it had sent."""


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    made = Lives(tmp_path / "server")
    yield made
    made.end()


@pytest.fixture
def clients(cpp_python: Path, lives: Lives, tmp_path: Path) -> Iterator[Clients]:
    made = Clients(cpp_python, tmp_path, lives.start().nameserver)
    yield made
    made.end()


def bodies(consumer: ClientProcess) -> list[str]:
    return sorted(row["body"] for row in consumer.lines("got"))


def test_group_resumes_at_its_offset_after_a_restart(lives: Lives, clients: Clients) -> None:
    producer = clients.producer()
    for n in range(20):
        producer.send("sync", "cpp-kept", f"old {n:02}")
    consumer = clients.push("cpp-kept-readers", "cpp-kept")
    consumer.wait_lines("got", 20)
    # A consumer commits its offsets when it ends.
    consumer.close()
    producer.close()
    assert lives.last.stop() == 0
    lives.start()
    producer = clients.producer()
    for n in range(5):
        producer.send("sync", "cpp-kept", f"new {n}")
    again = clients.push("cpp-kept-readers", "cpp-kept")
    again.wait_lines("got", 5)
    assert bodies(again) == [f"new {n}" for n in range(5)]
    other_group = clients.push("cpp-kept-strangers", "cpp-kept")
    assert len(other_group.wait_lines("got", 25)) == 25


def test_running_clients_reconnect_to_a_killed_server(lives: Lives, clients: Clients) -> None:
    producer = clients.producer()
    sent = [f"{n:03}" for n in range(30)]
    for body in sent[:10]:
        producer.send("sync", "cpp-loyal", body)
    consumer = clients.push("cpp-loyal-readers", "cpp-loyal")
    consumer.wait_lines("got", 10, within_s=BACK_S)
    lives.last.kill()
    lives.start()
    for body in sent[10:]:
        producer.send("sync", "cpp-loyal", body)
    wait_until(
        lambda: set(bodies(consumer)) == set(sent),
        within_s=BACK_S,
        what="everything was delivered after the kill",
    )
