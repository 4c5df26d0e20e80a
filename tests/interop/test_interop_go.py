"""RocketMQ's Go client, unmodified: what it sends arrives, and it receives what is sent."""

import fcntl
import json
import os
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import client_servers
import maven
import pytest

from clients.waiting import wait_until

SOURCE: Final = Path(__file__).parent / "go-client"
BUILD_SECONDS_MAX: Final = 540
CUSTOMERS: Final = 3

SENT: Final = [
    *(f"sync {rank}" for rank in range(8)),
    *(f"async {rank}" for rank in range(8)),
    *(f"oneway {rank}" for rank in range(4)),
    *(f"batch {rank}" for rank in range(8)),
    *(f"ordered {rank}" for rank in range(12)),
    f"large {'x' * 20000}",
    "delayed 0",
    "transaction commit",
    "transaction unknown",
]
"""What consumers must get; the rolled-back transaction is excluded."""


class Probe:
    """The output of the Go program so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._facts: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # the client's own log uses other lines
                self._facts.append(json.loads(line))

    def events(self, what: str, **wanted: object) -> list[dict[str, Any]]:
        return [
            fact
            for fact in list(self._facts)
            if fact["what"] == what and wanted.items() <= fact.items()
        ]

    def bodies(self, consumer: str) -> Counter[str]:
        return Counter(fact["body"] for fact in self.events("got", consumer=consumer))

    def is_alive(self) -> bool:
        return self._process.poll() is None


def build_program() -> Path:
    """Build the program. Skips with a reason if that is not possible."""
    if shutil.which("go") is None:
        pytest.skip("NOTHING WAS PROVEN with the Go client: go is not on the PATH")
    program = maven.ROOT / "build" / "interop" / "go-client"
    program.parent.mkdir(parents=True, exist_ok=True)
    with program.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ran = subprocess.run(
            ["go", "build", "-o", str(program), "."],
            cwd=SOURCE,
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS_MAX,
        )
    if "proxy" in ran.stderr or "dial tcp" in ran.stderr:
        pytest.skip(f"NOTHING WAS PROVEN with the Go client: {ran.stderr[-300:]}")
    assert ran.returncode == 0, ran.stderr
    return program


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Probe]:
    program, home = build_program(), tmp_path_factory.mktemp("go-client")
    with (
        client_servers.impatient(home) as server,
        (home / "errors.txt").open("w") as errors,
        subprocess.Popen(
            [str(program), server.nameserver],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "HOME": str(home)},
        ) as process,
    ):
        try:
            probe = Probe(process)
            wait_until(
                lambda: probe.events("ready") or not probe.is_alive(),
                within_s=60,
                what="the Go client has sent everything and listens",
            )
            assert probe.is_alive(), (home / "errors.txt").read_text()
            yield probe
        finally:
            process.kill()


def test_go_producer_sends_in_every_mode(probe: Probe) -> None:
    sent = probe.events("sent")
    assert {fact["status"] for fact in sent} == {0}
    assert Counter(fact["how"] for fact in sent) == {
        "sync": 8,
        "async": 8,
        "batch": 1,
        "ordered": 12,
        "large": 1,
        "delayed": 1,
    }
    assert len({fact["id"] for fact in sent}) == len(sent)
    assert all(fact["offset"] >= 0 for fact in sent)
    assert len({fact["queue"] for fact in probe.events("sent", how="ordered")}) <= CUSTOMERS


def test_go_group_gets_everything_once_and_failed_messages_again(probe: Probe) -> None:
    expected = Counter(SENT) + Counter(["sync 0"])
    wait_until(lambda: probe.bodies("plain") >= expected, within_s=60, what="all messages")
    assert probe.bodies("plain") == expected
    times = [fact["times"] for fact in probe.events("got", consumer="plain", body="sync 0")]
    assert sorted(times) == [0, 1]


def test_go_undecided_transaction_is_checked(probe: Probe) -> None:
    wait_until(lambda: probe.events("checked"), within_s=30, what="the transaction check")
    assert {fact["body"] for fact in probe.events("checked")} == {"transaction unknown"}
    assert {fact["fate"] for fact in probe.events("decided")} == {"commit", "rollback", "unknown"}


def test_go_consumers_filter_by_tags_and_expressions(probe: Probe) -> None:
    tagged = Counter(body for body in SENT if body.startswith(("sync", "async")))
    filtered = Counter(f"sync {rank}" for rank in (3, 4, 5))
    wait_until(lambda: probe.bodies("tagged") >= tagged, within_s=60, what="the tagged messages")
    wait_until(
        lambda: probe.bodies("filtered") >= filtered, within_s=60, what="the filtered messages"
    )
    assert probe.bodies("tagged") == tagged
    assert probe.bodies("filtered") == filtered


def test_go_orderly_consumer_keeps_the_order_of_keys(probe: Probe) -> None:
    wait_until(
        lambda: len(probe.events("got", consumer="orderly")) >= 12,
        within_s=60,
        what="the ordered messages",
    )
    ranks = [int(fact["body"].split()[1]) for fact in probe.events("got", consumer="orderly")]
    assert sorted(ranks) == list(range(12))
    for customer in range(CUSTOMERS):
        mine = [rank for rank in ranks if rank % CUSTOMERS == customer]
        assert mine == sorted(mine)


def test_go_broadcast_consumer_gets_everything(probe: Probe) -> None:
    wait_until(
        lambda: probe.bodies("everybody") >= Counter(SENT),
        within_s=60,
        what="all broadcast messages",
    )
    assert probe.bodies("everybody") == Counter(SENT)
