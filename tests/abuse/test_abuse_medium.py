"""A disk that fails under a running broker: lost bytes are damage, everything else is served."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Final

import pytest
from live import Live, running, wait_for
from raw_client import RawClient, pull_of, send_v2

TOPIC: Final = "Medium"
COUNT: Final = 400
BODY: Final = b"%04d" + b"x" * 1020
FILE_BYTES: Final = 128 * 1024
OPTIONS: Final = ("--set", f"commit_log_file_bytes={FILE_BYTES}", "--no-http")
SHIM: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>
/* While the file EIO_WHILE exists, reads from byte EIO_FROM to byte EIO_TO fail in files whose path
   contains EIO_IN. */
static int is_bad(int fd, size_t count, off_t at) {
    char connection[64], path[4096];
    const char *gate = getenv("EIO_WHILE");
    if (!gate || access(gate, F_OK)) return 0;
    snprintf(connection, sizeof connection, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(connection, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    off_t from = atol(getenv("EIO_FROM")), to = atol(getenv("EIO_TO"));
    return strstr(path, getenv("EIO_IN")) && at <= to && at + (off_t)count > from;
}
ssize_t pread64(int fd, void *data, size_t count, off_t at) {
    ssize_t (*real)(int, void *, size_t, off_t) = dlsym(RTLD_NEXT, "pread64");
    if (is_bad(fd, count, at)) { errno = EIO; return -1; }
    return real(fd, data, count, at);
}
ssize_t pread(int fd, void *data, size_t count, off_t at) { return pread64(fd, data, count, at); }
"""


def fill(client: RawClient) -> None:
    for number in range(COUNT):
        assert client.ask(310, send_v2(TOPIC, queue_id=0), BODY % number).code == 0


def pull_all(client: RawClient) -> set[int]:
    """Pull the queue; returns the numbers of all messages that the broker delivers."""
    found: set[int] = set()
    offset = 0
    while offset < COUNT:
        response = client.ask(11, pull_of(TOPIC, offset=offset, queue_id=0, maxMsgNums="32"))
        assert response.code in (0, 20), response.header
        for piece in response.body.split(b"x" * 1020)[:-1]:
            found.add(int(piece[-4:]))
        offset = int(response.header.ext["nextBeginOffset"])
    return found


def damaged_records(client: RawClient) -> int:
    table = json.loads(client.ask(28, {}).body)["table"]
    return int(table["damagedRecords"])


def log_file(live: Live) -> Path:
    (path,) = Path(live.data).rglob("commitlog/00000000000000000000")
    return path


@pytest.mark.slow
def test_broker_with_a_truncated_log_file_serves_the_rest(tmp_path: Path) -> None:
    with running(tmp_path, *OPTIONS) as live, live.to_broker() as client:
        fill(client)
        everything = set(range(COUNT))
        assert pull_all(client) == everything
        os.truncate(log_file(live), FILE_BYTES // 2)
        found = pull_all(client)
        lost = everything - found
        assert 40 < len(lost) < 80, "the lost messages are the second half of the first file"
        assert lost == set(range(min(lost), max(lost) + 1))
        assert damaged_records(client) == len(lost)
        assert client.ask(310, send_v2(TOPIC, queue_id=1), b"still here").code == 0
        assert live.process.poll() is None


def count_by_key(client: RawClient, key: str) -> int:
    """Query by key; returns how many messages were found."""
    ask = {
        "topic": TOPIC,
        "key": key,
        "maxNum": "32",
        "beginTimestamp": "0",
        "endTimestamp": str(1 << 60),
    }
    response = client.ask(12, ask)
    assert response.code in (0, 22), response.header
    return response.body.count(b"keyed")


def send_keyed(client: RawClient, *, queue_id: int, count: int) -> None:
    for _ in range(count):
        keyed = send_v2(TOPIC, queue_id=queue_id, properties="KEYS\x01order\x02")
        assert client.ask(310, keyed, b"keyed").code == 0


@pytest.mark.slow
def test_broker_with_truncated_index_files_serves_queries_from_the_rest(tmp_path: Path) -> None:
    """Small files, so that one is full and closed while another is being written."""
    small = ("--set", "index_slots=64", "--set", "index_entries=21")
    with running(tmp_path, *OPTIONS, *small) as live, live.to_broker() as client:
        send_keyed(client, queue_id=0, count=30)
        wait_for(lambda: count_by_key(client, "order") == 30)
        full, newest = sorted(Path(live.data).rglob("index/*"))[:2]
        os.truncate(full, 0)
        assert count_by_key(client, "order") == 10, "only those of the newest file"
        os.truncate(newest, 0)
        # Its entries have not been written yet; they are found in memory.
        assert count_by_key(client, "order") == 10
        send_keyed(client, queue_id=0, count=5)
        wait_for(lambda: count_by_key(client, "order") == 5)
        table = json.loads(client.ask(28, {}).body)["table"]
        assert table["damagedIndexFiles"] == "2"
        assert live.process.poll() is None


def prepare_read_errors(
    place: Path, monkeypatch: pytest.MonkeyPatch, *, within: str, first: int, last: int
) -> Path:
    """Make reads of these bytes fail in later processes, while the returned file exists."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: reads of a real process cannot be made to fail")
    source, shim, gate = place / "eio.c", place / "eio.so", place / "eio"
    source.write_text(SHIM, encoding="utf-8")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(shim))
    monkeypatch.setenv("EIO_WHILE", str(gate))
    monkeypatch.setenv("EIO_IN", within)
    monkeypatch.setenv("EIO_FROM", str(first))
    monkeypatch.setenv("EIO_TO", str(last))
    return gate


@pytest.mark.slow
def test_query_skips_an_index_file_with_read_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last entries of the full file can't be read; the newest file has no such entries."""
    slots, entries = 64, 21
    first = 40 + 4 * slots + 20 * 15
    gate = prepare_read_errors(
        tmp_path, monkeypatch, within="/index/2", first=first, last=first + 200
    )
    small = ("--set", f"index_slots={slots}", "--set", f"index_entries={entries}")
    with running(tmp_path, *OPTIONS, *small) as live, live.to_broker() as client:
        send_keyed(client, queue_id=0, count=30)
        wait_for(lambda: count_by_key(client, "order") == 30)
        gate.touch()
        for _ in range(3):
            assert count_by_key(client, "order") == 10, "only those of the newest file"
        table = json.loads(client.ask(28, {}).body)["table"]
        assert table["damagedIndexFiles"] == "1"
        log = live.log.read_text()
        assert log.count("index.damaged") == 1, "reported once"
        assert "Input/output error" in log
        send_keyed(client, queue_id=0, count=2)
        wait_for(lambda: count_by_key(client, "order") == 12)
        gate.unlink()
        assert count_by_key(client, "order") == 32, "the disk recovered, and nothing was truncated"
        assert live.process.poll() is None


@pytest.mark.slow
def test_broker_with_read_errors_in_the_log_serves_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = "/commitlog/00000000000000000000"
    gate = prepare_read_errors(tmp_path, monkeypatch, within=log, first=4096, last=8191)
    with running(tmp_path, *OPTIONS) as live, live.to_broker() as client:
        fill(client)
        gate.touch()
        lost = set(range(COUNT)) - pull_all(client)
        assert 3 <= len(lost) <= 6, "the lost records overlap the bytes from 4096 to 8191"
        assert damaged_records(client) == len(lost)
        gate.unlink()
        assert pull_all(client) == set(range(COUNT)), (
            "the disk recovered, and nothing was truncated"
        )
        live.process.send_signal(signal.SIGKILL)
        wait_for(lambda: live.process.poll() is not None)
