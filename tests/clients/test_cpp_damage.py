"""A bit flips on the disk of a running broker: the damaged message is never delivered."""

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from clients import server_process
from clients.cpp_client import Clients, Facts, clients_of
from clients.server_process import ServerProcess

TOPIC = "cpp-damage"
BODIES = [f"message {number:04}, whole" for number in range(12)]
VICTIM = BODIES[5]


@pytest.fixture
def damaged_server(tmp_path: Path) -> Iterator[ServerProcess]:
    running = server_process.up(tmp_path / "up", "--ephemeral", "--http-port", "0")
    yield running
    running.end()


def flip_a_bit(data: Path, text: bytes) -> None:
    """Flip a bit of this text in the log file."""
    (file,) = (data / "commitlog").iterdir()
    with file.open("r+b") as log:
        place = log.read(2**20).index(text)
        log.seek(place)
        log.write(bytes([text[0] ^ 1]))


def damaged_records(server: ServerProcess) -> str:
    with urllib.request.urlopen(f"{server.facts['http']}/metrics", timeout=60) as page:
        lines: list[str] = page.read().decode().splitlines()
    (line,) = (line for line in lines if line.startswith("tianzhou_damaged_records"))
    return line.rpartition(" ")[2]


def bodies(rows: list[Facts]) -> list[str]:
    return sorted(row["body"] for row in rows)


def test_damaged_message_is_skipped_and_reported(
    cpp_python: Path, damaged_server: ServerProcess, tmp_path: Path
) -> None:
    server, clients = damaged_server, clients_of(damaged_server, cpp_python, tmp_path)
    try:
        check(server, clients)
    finally:
        clients.end()


def check(server: ServerProcess, clients: Clients) -> None:
    producer = clients.producer()
    for body in BODIES:  # all in one queue
        producer.send("orderly", TOPIC, body, shard=0)
    assert float(damaged_records(server)) == 0
    flip_a_bit(Path(server.facts["data"]), VICTIM.encode())
    wanted = [body for body in BODIES if body != VICTIM]
    assert bodies(clients.pull("cpp-damage-pullers", TOPIC)) == wanted
    consumer = clients.push("cpp-damage-readers", TOPIC)
    assert bodies(consumer.wait_lines("got", len(wanted))) == wanted
    # Later messages are not delayed, and the damaged one is never delivered.
    producer.send("orderly", TOPIC, "one more", shard=0)
    assert bodies(consumer.wait_lines("got", len(wanted) + 1)) == [*wanted, "one more"]
    assert float(damaged_records(server)) == 1
    logged = [line for line in server.log().splitlines() if "record.damaged" in line]
    assert len(logged) == 1
    assert "tianzhou store verify" in logged[0]
