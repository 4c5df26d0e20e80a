"""Logs and directories: untrusted text cannot forge log lines; a full disk is handled."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from live import Live, running, wait_for
from raw_client import heartbeat_of, pull_of, send_v2

from tianzhou.cmd.logs import JsonFormatter, TextFormatter
from tianzhou.net.log_guard import LINES_MAX, RateLimit

NOT_AVAILABLE = 14
HOSTILE = "x\r\n2026-01-01 00:00:00,000 INFO    forged\x1b[2J\x00\x9b31m\u2028" + 1_000 * "y"


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("place", ["field", "message", "error"])
def test_s48_untrusted_text_never_forges_a_log_line(as_json: bool, place: str) -> None:
    error = ValueError(HOSTILE) if place == "error" else None
    record = logging.LogRecord(
        "tianzhou",
        logging.INFO,
        "p",
        1,
        HOSTILE if place == "message" else "event.happened",
        (),
        (type(error), error, None) if error else None,
    )
    if place == "field":
        record.topic = HOSTILE
    text = (JsonFormatter() if as_json else TextFormatter()).format(record)
    assert not set(text) & set("\r\x1b\x00\x9b\u2028")
    assert not [line for line in text.split("\n")[1:] if not line.startswith("    ")]
    assert len(text) < 20_000


def test_s48_server_escapes_untrusted_text_in_its_log(live: Live) -> None:
    with live.to_nameserver() as client:
        # Changes of key-value entries are logged with namespace and key.
        client.ask(100, {"namespace": HOSTILE, "key": "k", "value": "v"})
        client.ask(102, {"namespace": HOSTILE, "key": "k"})
    wait_for(lambda: b"kv.put" in live.log.read_bytes())
    text = live.log.read_bytes()
    assert not set(text) & {0x1B, 0x00, 0x0D}
    assert not [line for line in text.split(b"\n") if line.endswith(b"forged")]


def test_s49_flood_of_requests_logs_few_lines(live: Live) -> None:
    size = live.log.stat().st_size
    with live.to_nameserver() as client:
        for number in range(3_000):
            client.ask(100, {"namespace": "flood", "key": str(number), "value": "v"})
            client.ask(102, {"namespace": "flood", "key": str(number)})
    assert live.log.stat().st_size - size < 100 * 1024


def test_s49_log_limit_counts_each_event_and_peer_separately() -> None:
    limit = RateLimit()

    def passes(event: str, peer: str, at: float) -> logging.LogRecord | None:
        record = logging.makeLogRecord({"msg": event, "peer": peer, "created": at})
        return record if limit.filter(record) else None

    lines = [passes("a", f"10.0.0.1:{port}", 0.0) for port in range(99)]
    assert sum(line is not None for line in lines) == LINES_MAX
    assert passes("b", "10.0.0.1:1", 0.0)
    assert passes("a", "10.0.0.2:1", 0.0)
    later = passes("a", "10.0.0.1:1", 10.0)
    assert later is not None
    assert vars(later)["left_out"] == 99 - LINES_MAX
    for number in range(100_000):
        passes(f"event{number}", "", 11.0)
    assert len(limit._windows) <= 1_024


def test_s49_log_files_are_rotated(tmp_path: Path) -> None:
    file = tmp_path / "broker.log"
    code = (
        "import sys, logging, pathlib; from tianzhou.cmd import logs\n"
        "logs.FILE_BYTES_MAX, logs.FILES_KEPT = 10_000, 2\n"
        "logs.set_up(as_json=False, file=pathlib.Path(sys.argv[1]))\n"
        "for n in range(5_000): logging.getLogger('tianzhou').info(f'event {n}')\n"
    )
    subprocess.run([sys.executable, "-c", code, str(file)], check=True, timeout=300)
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes.keys() == {"broker.log", "broker.log.1", "broker.log.2"}
    assert max(sizes.values()) <= 10_000
    assert "event 4999" in file.read_text()


def run_up(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "from tianzhou.cmd.main import main; main()",
            "up",
            "--nameserver-port",
            "0",
            "--broker-port",
            "0",
            *options,
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_s50_second_broker_on_one_store_fails_to_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running(tmp_path, "--data", str(data), ephemeral=False) as live:
        second = run_up("--data", str(data))
        assert second.returncode == 1
        assert str(data) in second.stderr
        with live.to_broker() as client:
            client.send_message("Still")


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757, 0o1777])
def test_s50_directory_writable_by_others_is_rejected(tmp_path: Path, mode: int) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(mode)
    refused = run_up("--data", str(data))
    assert refused.returncode == 2
    assert "is writable by other users" in refused.stderr
    assert "chmod go-w" in refused.stderr
    assert not os.listdir(data)


def test_s50_files_are_private_to_their_owner(live: Live) -> None:
    for path in (live.data, *live.data.rglob("*")):
        assert not path.stat().st_mode & 0o077, path


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m,mode=700", "tmpfs", str(place)],
        capture_output=True,
    )
    if mount.returncode:
        pytest.skip("mounting needs root; tests/crash/test_full_disk.py covers it without")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.slow
def test_full_disk_rejects_sends_and_still_serves_pulls_and_heartbeats(
    tmp_path: Path, small_disk: Path
) -> None:
    ballast = small_disk / "ballast"
    with (
        running(tmp_path, "--data", str(small_disk / "data"), ephemeral=False) as live,
        live.to_broker() as client,
    ):
        client.send_message("Disk", body=b"first")
        assert client.ask(11, pull_of("Disk", sysFlag="6")).code == 0
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while file.write(bytes(2**18)):
                pass
        refused = None
        for _ in range(200):
            response = client.ask(310, send_v2("Disk"), bytes(2**20))
            if response.code:
                refused = response
                break
        assert refused is not None
        assert refused.code == NOT_AVAILABLE, refused
        assert refused.remark.startswith("disk full: ")
        assert refused.remark.endswith("retry at another broker now, or here in 10 s")
        # A new topic needs disk space as well.
        assert client.ask(310, send_v2("NewOnFullDisk"), b"x").code == NOT_AVAILABLE
        assert client.ask(34, {}, heartbeat_of(producers=("p",))).code == 0
        found = client.ask(11, pull_of("Disk"))
        assert found.code == 0
        assert b"first" in found.body
        ballast.unlink()
        wait_for(lambda: client.ask(310, send_v2("Disk"), b"again").code == 0, 40)
    assert live.process.returncode == 0
