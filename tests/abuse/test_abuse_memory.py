"""A broker short of memory under heavy clients: every request gets a response or a closed
connection, the process survives, and everything works again when there is memory."""

import resource
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from live import Live, running, wait_for
from raw_client import HungUp, RawClient, pull_of, send_v2

from tianzhou.wire._generated_codes import RequestCode, ResponseCode

TOPIC: Final = "Large"
SMALL_FILES: Final = (
    *("--set", "commit_log_file_bytes=16777216"),
    *("--set", "index_slots=50000"),
    *("--set", "index_entries=200000"),
)
SHORT_S: Final = 6.0
"""How long the test keeps memory short."""
LINES_MAX: Final = 400
"""Log lines for all clients: lines of one kind are limited, so not every failure has its line."""


def send(client: RawClient, size: int) -> int:
    header = send_v2(TOPIC, properties="KEYS\x01order\x02")
    return client.ask(RequestCode.SEND_MESSAGE_V2, header, bytes(size)).code


def pull(client: RawClient) -> int:
    return client.ask(RequestCode.PULL_MESSAGE, pull_of(TOPIC, maxMsgNums="32")).code


def long_poll(client: RawClient) -> int:
    """Pull; waits for a message for up to a second."""
    fields = pull_of(TOPIC, queue_id=1, sysFlag="6", suspendTimeoutMillis="1000")
    return client.ask(RequestCode.PULL_MESSAGE, fields).code


def query(client: RawClient) -> int:
    fields = {
        "topic": TOPIC,
        "key": "order",
        "maxNum": "32",
        "beginTimestamp": "0",
        "endTimestamp": str(1 << 60),
    }
    return client.ask(RequestCode.QUERY_MESSAGE, fields).code


def runtime(client: RawClient) -> int:
    return client.ask(RequestCode.GET_BROKER_RUNTIME_INFO, {}).code


REQUESTS: Final[dict[str, Callable[[RawClient], int]]] = {
    "large send": lambda client: send(client, 3_000_000),
    "small send": lambda client: send(client, 1_000),
    "pull": pull,
    "long poll": long_poll,
    "query": query,
    "runtime": runtime,
}


class Users:
    """One thread for each kind of request; each reconnects when its connection is closed."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._stop = threading.Event()
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()
        jobs = [(name, self._ask, step) for name, step in REQUESTS.items()]
        self._threads = [threading.Thread(target=self._run, args=job) for job in jobs]
        self._threads.append(threading.Thread(target=self._browse))
        for thread in self._threads:
            thread.start()

    def _count(self, name: str, outcome: str) -> None:
        with self._lock:
            self.outcomes[name, outcome] += 1

    def _run(
        self,
        name: str,
        ask: Callable[[str, Callable[[RawClient], int]], None],
        step: Callable[[RawClient], int],
    ) -> None:
        while not self._stop.wait(0.02):
            try:
                ask(name, step)
            except TimeoutError:
                self._count(name, "no response")
            except (HungUp, OSError):
                self._count(name, "closed")

    def _ask(self, name: str, step: Callable[[RawClient], int]) -> None:
        with self._live.to_broker() as client:
            while not self._stop.is_set():
                code = step(client)
                self._count(name, "done" if code == ResponseCode.SUCCESS else "refused")

    def _browse(self) -> None:
        address = f"{self._live.http.rstrip('/')}/metrics"
        while not self._stop.wait(0.02):
            try:
                with urllib.request.urlopen(address, timeout=60) as page:
                    self._count("page", str(page.status))
            except TimeoutError:
                self._count("page", "no response")
            except (urllib.error.URLError, OSError):
                self._count("page", "closed")

    def stop(self) -> Counter[tuple[str, str]]:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        return self.outcomes


def is_served(live: Live, name: str) -> bool:
    try:
        with live.to_broker() as client:
            return REQUESTS[name](client) in (
                ResponseCode.SUCCESS,
                ResponseCode.PULL_NOT_FOUND,
            )
    except (HungUp, OSError):
        return False


@pytest.mark.slow
def test_broker_short_of_memory_responds_to_every_request_and_recovers(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running(tmp_path, *SMALL_FILES, "--data", str(data), ephemeral=False) as live:
        with live.to_broker() as client:
            for _ in range(12):
                assert send(client, 1_000_000) == ResponseCode.SUCCESS
        with urllib.request.urlopen(f"{live.http.rstrip('/')}/metrics", timeout=60) as page:
            assert page.status == 200, "the dashboard is loaded"
        used = int(Path(f"/proc/{live.pid}/statm").read_text().split()[0])
        resource.prlimit(
            live.pid, resource.RLIMIT_AS, (used * resource.getpagesize(), resource.RLIM_INFINITY)
        )
        users = Users(live)
        time.sleep(SHORT_S)  # the load itself is the test; there is no condition to wait for
        outcomes = users.stop()
        assert live.process.poll() is None, live.log.read_text()[-3000:]
        unanswered = [name for name, outcome in outcomes if outcome == "no response"]
        assert not unanswered, outcomes
        assert {name for name, _ in outcomes} == {*REQUESTS, "page"}
        assert sum(outcomes["large send", how] for how in ("closed", "refused")), outcomes
        limit = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(live.pid, resource.RLIMIT_AS, limit)
        for name in REQUESTS:
            wait_for(lambda name=name: is_served(live, name), 30)
        log = live.log.read_text()
        assert "out_of_memory" in log or "MemoryError" in log
        assert len(log.splitlines()) < LINES_MAX
        assert "store_broken" not in log
