"""A broker whose process runs into its limits of descriptors or memory refuses what it can't do,
never fences its store, and goes on by itself when there is room again."""

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
from raw_client import RawClient, send_v2

from tianzhou.wire._generated_codes import RequestCode, ResponseCode

BODY: Final = b"x" * 8_000
SMALL: Final = ("--no-http", "--set", "commit_log_file_bytes=65536")
RECOVERS_S: Final = 30.0
"""A refusal of the store is looked at again every ten seconds."""


def send(client: RawClient) -> int:
    """The code of the answer."""
    return client.ask(RequestCode.SEND_MESSAGE_V2, send_v2("orders"), BODY).code


def limit(live: Live, kind: int, soft: int) -> None:
    _, hard = resource.prlimit(live.pid, kind)
    resource.prlimit(live.pid, kind, (soft, hard))


def send_until(client: RawClient, *, refused: bool, within_s: float) -> int:
    """Send until the outcome changes; how many were stored."""
    deadline, stored = time.monotonic() + within_s, 0
    while time.monotonic() < deadline:
        code = send(client)
        stored += code == ResponseCode.SUCCESS
        if (code != ResponseCode.SUCCESS) == refused:
            return stored
        if not refused:
            time.sleep(0.1)
    raise AssertionError(f"sends were {'never' if refused else 'always'} refused")


def verified(data: Path) -> dict[str, object]:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("tianzhou")), "store", "verify", str(data), "--json"],
        capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_broker_without_free_descriptors_refuses_and_recovers(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running(tmp_path, *SMALL, "--data", str(data), ephemeral=False) as live:
        with live.to_broker() as client:
            stored = send_until(client, refused=False, within_s=10)
            before, _ = resource.prlimit(live.pid, resource.RLIMIT_NOFILE)
            highest = max(map(int, os.listdir(f"/proc/{live.pid}/fd")))
            limit(live, resource.RLIMIT_NOFILE, highest + 1)
            stored += send_until(client, refused=True, within_s=60)
            assert stored > 20, "the reserve of the store was used first"
            limit(live, resource.RLIMIT_NOFILE, before)
            stored += send_until(client, refused=False, within_s=RECOVERS_S)
        assert live.process.poll() is None
        assert "store_broken" not in live.log.read_text()
    found = verified(data)
    assert (found["sound"], found["records"]) == (True, stored), found


@pytest.mark.xfail(
    strict=False,
    reason="dispatch allocates the slots of a new key index file (19 MiB) inside `Broker._settle`; "
    "a MemoryError there leaves sends without a response",
)
@pytest.mark.slow
def test_a_broker_without_memory_for_a_file_refuses_and_recovers(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running(tmp_path, *SMALL, "--data", str(data), ephemeral=False) as live:
        with live.to_broker() as client:
            stored = send_until(client, refused=False, within_s=10)
            used = int(Path(f"/proc/{live.pid}/statm").read_text().split()[0])
            limit(live, resource.RLIMIT_AS, used * resource.getpagesize())
            stored += send_until(client, refused=True, within_s=60)
            limit(live, resource.RLIMIT_AS, resource.RLIM_INFINITY)
            stored += send_until(client, refused=False, within_s=RECOVERS_S)
        wait_for(lambda: live.process.poll() is None)
        assert "store_broken" not in live.log.read_text()
    found = verified(data)
    assert (found["sound"], found["records"]) == (True, stored), found
