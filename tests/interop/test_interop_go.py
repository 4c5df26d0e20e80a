"""RocketMQ's Go client, unmodified: what it sends arrives, and what was sent it gets."""

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
"""What consumers must get; the transaction that was rolled back is not among it."""


class Probe:
    """What the Go program said so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._facts: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # the client has a logger of its own
                self._facts.append(json.loads(line))

    def told(self, what: str, **wanted: object) -> list[dict[str, Any]]:
        return [
            fact
            for fact in list(self._facts)
            if fact["what"] == what and wanted.items() <= fact.items()
        ]

    def bodies(self, consumer: str) -> Counter[str]:
        return Counter(fact["body"] for fact in self.told("got", consumer=consumer))

    def is_alive(self) -> bool:
        return self._process.poll() is None


def built() -> Path:
    """The program. Skips aloud where it can't be had."""
    if shutil.which("go") is None:
        pytest.skip("NOTHING WAS PROVEN with the Go client: go is not on the PATH")
    program = maven.ROOT / "build" / "interop" / "go-client"
    program.parent.mkdir(parents=True, exist_ok=True)
    with program.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ran = subprocess.run(
            ["go", "build", "-o", str(program), "."],
            cwd=SOURCE, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX,
        )  # fmt: skip
    if "proxy" in ran.stderr or "dial tcp" in ran.stderr:
        pytest.skip(f"NOTHING WAS PROVEN with the Go client: {ran.stderr[-300:]}")
    assert ran.returncode == 0, ran.stderr
    return program


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Probe]:
    program, home = built(), tmp_path_factory.mktemp("go-client")
    with (
        client_servers.impatient(home) as server,
        (home / "errors.txt").open("w") as errors,
        subprocess.Popen(
            [str(program), server.nameserver],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            env={**os.environ, "HOME": str(home)},
        ) as process,
    ):  # fmt: skip
        try:
            probe = Probe(process)
            wait_until(
                lambda: probe.told("ready") or not probe.is_alive(),
                within_s=60, what="the Go client has sent everything and listens",
            )  # fmt: skip
            assert probe.is_alive(), (home / "errors.txt").read_text()
            yield probe
        finally:
            process.kill()


def test_every_way_of_sending_is_acknowledged(probe: Probe) -> None:
    sent = probe.told("sent")
    assert {fact["status"] for fact in sent} == {0}
    assert Counter(fact["how"] for fact in sent) == {
        "sync": 8, "async": 8, "batch": 1, "ordered": 12, "large": 1, "delayed": 1,
    }  # fmt: skip
    assert len({fact["id"] for fact in sent}) == len(sent)
    assert all(fact["offset"] >= 0 for fact in sent)
    assert len({fact["queue"] for fact in probe.told("sent", how="ordered")}) <= CUSTOMERS


def test_a_group_gets_everything_once_and_what_failed_again(probe: Probe) -> None:
    expected = Counter(SENT) + Counter(["sync 0"])
    wait_until(lambda: probe.bodies("plain") >= expected, within_s=60, what="all messages")
    assert probe.bodies("plain") == expected
    times = [fact["times"] for fact in probe.told("got", consumer="plain", body="sync 0")]
    assert sorted(times) == [0, 1]


def test_the_broker_asks_about_a_transaction_that_nobody_decided(probe: Probe) -> None:
    wait_until(lambda: probe.told("checked"), within_s=30, what="the question")
    assert {fact["body"] for fact in probe.told("checked")} == {"transaction unknown"}
    assert {fact["fate"] for fact in probe.told("decided")} == {"commit", "rollback", "unknown"}


def test_tags_and_expressions_filter(probe: Probe) -> None:
    tagged = Counter(body for body in SENT if body.startswith(("sync", "async")))
    filtered = Counter(f"sync {rank}" for rank in (3, 4, 5))
    wait_until(lambda: probe.bodies("tagged") >= tagged, within_s=60, what="the tagged")
    wait_until(lambda: probe.bodies("filtered") >= filtered, within_s=60, what="the filtered")
    assert probe.bodies("tagged") == tagged
    assert probe.bodies("filtered") == filtered


def test_each_customer_s_messages_come_in_order(probe: Probe) -> None:
    wait_until(
        lambda: len(probe.told("got", consumer="orderly")) >= 12, within_s=60, what="the ordered"
    )
    ranks = [int(fact["body"].split()[1]) for fact in probe.told("got", consumer="orderly")]
    assert sorted(ranks) == list(range(12))
    for customer in range(CUSTOMERS):
        mine = [rank for rank in ranks if rank % CUSTOMERS == customer]
        assert mine == sorted(mine)


def test_broadcasting_gets_everything(probe: Probe) -> None:
    wait_until(lambda: probe.bodies("everybody") >= Counter(SENT), within_s=60, what="all of them")
    assert probe.bodies("everybody") == Counter(SENT)
