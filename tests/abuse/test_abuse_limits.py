"""A broker that reaches its limit of descriptors or memory rejects what it cannot do, never fences
its store, and recovers by itself when there is room again."""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import pytest
from live import Live, running, wait_for
from raw_client import RawClient, Response, send_v2

from tianzhou.testing.kit.patience import Patience
from tianzhou.wire._generated_codes import RequestCode, ResponseCode

BODY: Final = b"x" * 8_000
SMALL: Final = (
    "--no-http",
    *("--set", "commit_log_file_bytes=65536"),
    *("--set", "consume_queue_file_bytes=20000"),
)
"""Small files, so that a bug of the broker cannot fill the disk."""
RECOVERS_S: Final = 30.0
"""The store retries every ten seconds after it rejected a write."""


def send(client: RawClient, key: str = "") -> Response:
    """Send a message; returns the response."""
    properties = f"KEYS\x01{key}\x02" if key else ""
    header = send_v2("orders", properties=properties)
    return client.ask(RequestCode.SEND_MESSAGE_V2, header, BODY)


def set_limit(live: Live, kind: int, soft: int) -> None:
    _, hard = resource.prlimit(live.pid, kind)
    resource.prlimit(live.pid, kind, (soft, hard))


def send_until(client: RawClient, *, refused: bool, within_s: float, key: str = "") -> int:
    """Send until the outcome changes; returns how many messages were stored."""
    patience, stored = Patience(within_s), 0
    while not patience.is_over():
        code = send(client, key).code
        stored += code == ResponseCode.SUCCESS
        if (code != ResponseCode.SUCCESS) == refused:
            return stored
        if not refused:
            time.sleep(0.1)
    raise AssertionError(f"sends were {'never' if refused else 'always'} refused")


def verify(data: Path) -> dict[str, object]:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("tianzhou")), "store", "verify", str(data), "--json"],
        capture_output=True,
        timeout=300,
        check=False,
    )
    return json.loads(done.stdout)


@pytest.mark.slow
def test_broker_without_free_descriptors_rejects_sends_and_recovers(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running(tmp_path, *SMALL, "--data", str(data), ephemeral=False) as live:
        with live.to_broker() as client:
            stored = send_until(client, refused=False, within_s=10)
            before, _ = resource.prlimit(live.pid, resource.RLIMIT_NOFILE)
            highest = max(map(int, os.listdir(f"/proc/{live.pid}/fd")))
            set_limit(live, resource.RLIMIT_NOFILE, highest + 1)
            stored += send_until(client, refused=True, within_s=60)
            assert stored > 20, "the store used its reserve first"
            set_limit(live, resource.RLIMIT_NOFILE, before)
            stored += send_until(client, refused=False, within_s=RECOVERS_S)
        assert live.process.poll() is None
        assert "store_broken" not in live.log.read_text()
    found = verify(data)
    assert (found["sound"], found["records"]) == (True, stored), found


@pytest.mark.slow
def test_broker_without_memory_for_an_index_file_rejects_sends_and_recovers(tmp_path: Path) -> None:
    """The first message with a key needs a key index file, whose slots take 20 MB of memory."""
    data = tmp_path / "data"
    with running(tmp_path, *SMALL, "--data", str(data), ephemeral=False) as live:
        (index,) = data.rglob("index")
        with live.to_broker() as client:
            stored = send_until(client, refused=False, within_s=10)
            used = int(Path(f"/proc/{live.pid}/statm").read_text().split()[0])
            set_limit(live, resource.RLIMIT_AS, used * resource.getpagesize())
            stored += send_until(client, refused=True, within_s=60, key="order")
            responses = [send(client, key="order") for _ in range(20)]
            assert {response.code for response in responses} == {ResponseCode.SERVICE_NOT_AVAILABLE}
            assert "out of memory" in responses[0].remark
            assert list(index.iterdir()) == [], "failed attempts leave no file behind"
            set_limit(live, resource.RLIMIT_AS, resource.RLIM_INFINITY)
            stored += send_until(client, refused=False, within_s=RECOVERS_S, key="order")
        wait_for(lambda: len(list(index.iterdir())) == 1)
        assert live.process.poll() is None
        assert "store_broken" not in live.log.read_text()
    found = verify(data)
    assert (found["sound"], found["records"]) == (True, stored), found
