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
from raw_client import Answer, RawClient, send_v2

from tianzhou.testing.kit.patience import Patience
from tianzhou.wire._generated_codes import RequestCode, ResponseCode

BODY: Final = b"x" * 8_000
SMALL: Final = (
    "--no-http",
    *("--set", "commit_log_file_bytes=65536"),
    *("--set", "consume_queue_file_bytes=20000"),
)
"""Files whose size does not matter are small, so that no fault of the broker fills the disk."""
RECOVERS_S: Final = 30.0
"""A refusal of the store is looked at again every ten seconds."""


def ask(client: RawClient, key: str = "") -> Answer:
    """Send a message; the response."""
    properties = f"KEYS\x01{key}\x02" if key else ""
    header = send_v2("orders", properties=properties)
    return client.ask(RequestCode.SEND_MESSAGE_V2, header, BODY)


def limit(live: Live, kind: int, soft: int) -> None:
    _, hard = resource.prlimit(live.pid, kind)
    resource.prlimit(live.pid, kind, (soft, hard))


def send_until(client: RawClient, *, refused: bool, within_s: float, key: str = "") -> int:
    """Send until the outcome changes; how many were stored."""
    patience, stored = Patience(within_s), 0
    while not patience.is_over():
        code = ask(client, key).code
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


@pytest.mark.slow
def test_a_broker_without_memory_for_a_file_refuses_and_recovers(tmp_path: Path) -> None:
    """The first message with a key needs a key index file, whose slots take 20 MB of memory."""
    data = tmp_path / "data"
    with running(tmp_path, *SMALL, "--data", str(data), ephemeral=False) as live:
        (index,) = data.rglob("index")
        with live.to_broker() as client:
            stored = send_until(client, refused=False, within_s=10)
            used = int(Path(f"/proc/{live.pid}/statm").read_text().split()[0])
            limit(live, resource.RLIMIT_AS, used * resource.getpagesize())
            stored += send_until(client, refused=True, within_s=60, key="order")
            answers = [ask(client, key="order") for _ in range(20)]
            assert {answer.code for answer in answers} == {ResponseCode.SERVICE_NOT_AVAILABLE}
            assert "out of memory" in answers[0].remark
            assert list(index.iterdir()) == [], "attempts leave no file behind"
            limit(live, resource.RLIMIT_AS, resource.RLIM_INFINITY)
            stored += send_until(client, refused=False, within_s=RECOVERS_S, key="order")
        wait_for(lambda: len(list(index.iterdir())) == 1)
        assert live.process.poll() is None
        assert "store_broken" not in live.log.read_text()
    found = verified(data)
    assert (found["sound"], found["records"]) == (True, stored), found
