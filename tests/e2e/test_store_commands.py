"""`tianzhou store` as an operator runs it, on directories that are valid, damaged or in use."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tianzhou.admin.commands import output, store_view
from tianzhou.base.kinds import queue_key
from tianzhou.cmd.clock import SystemClock
from tianzhou.record.chunk import Entry, build
from tianzhou.store.config import StoreConfig
from tianzhou.store.files import RealFiles
from tianzhou.store.store import MessageStore
from tianzhou.store.verify import Findings

TIANZHOU = str(Path(sys.executable).with_name("tianzhou"))
CONFIG = StoreConfig(
    commit_log_file_bytes=16384,
    consume_queue_file_bytes=400,
    index_slots=100,
    index_entries=400,
)
COUNT = 120


def make(root: Path) -> MessageStore:
    """Create a store with messages of three topics in several files."""
    store = MessageStore(RealFiles(), str(root), CONFIG, SystemClock())
    for number in range(COUNT):
        entry = Entry(
            queue_key(f"topic-{number % 3}", number % 2),
            b"body %d" % number * 20,
            b"KEYS\x01key-%d\x02TAGS\x01t\x02" % number,
        )
        store.append(build([entry], store_host=bytes(8), record_crc=True))
        store.dispatch_all()
    return store


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [TIANZHOU, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def run_json(*arguments: str | Path) -> dict[str, Any]:
    done = run(*arguments, "--json")
    return json.loads(done.stdout)


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    make(tmp_path / "store").close()
    return tmp_path / "store"


def test_inspect_reports_ranges_and_sizes(sound: Path) -> None:
    found = run_json("store", "inspect", sound)
    assert found["clean"] is True
    assert found["log_files"] > 1
    assert found["index_entries"] == COUNT
    ranges = {
        (q["topic"], q["queue_id"]): (q["min_offset"], q["max_offset"]) for q in found["queues"]
    }
    assert sum(end - start for start, end in ranges.values()) == COUNT
    assert ranges["topic-0", 0] == (0, COUNT // 6)


def test_inspect_prints_a_table(sound: Path) -> None:
    done = run("store", "inspect", sound)
    assert done.returncode == 0
    assert "topic-2" in done.stdout
    assert re.search(r"^last stop +clean\s*$", done.stdout, re.MULTILINE)
    assert re.search(r"^ topic-0 +0 +0 +\d+ +\d+\s*$", done.stdout, re.MULTILINE)


def test_findings_are_one_line_each_with_untrusted_text_escaped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Scripts read whole lines from a pipe; names in them come from untrusted files."""
    problem = "topic [red]x[/red]\x1b[2J" + " is very long" * 15
    output.show(store_view.verification(Findings(clean=True, problems=[problem])))
    assert problem.replace("\x1b", r"\x1b") in capsys.readouterr().out


def test_verify_finds_nothing_in_a_valid_directory(sound: Path) -> None:
    before = {p: p.read_bytes() for p in sound.rglob("*") if p.is_file()}
    done = run("store", "verify", sound)
    assert done.returncode == 0, done.stderr
    assert f"{COUNT} records read" in done.stdout
    assert "no problems found" in done.stdout
    assert {p: p.read_bytes() for p in sound.rglob("*") if p.is_file()} == before


def test_verify_reports_damage_and_fails(sound: Path) -> None:
    log = sound / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    at = data.index(b"body 7body 7")
    data[at] ^= 1
    log.write_bytes(data)
    done = run("store", "verify", sound, "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["records"] == COUNT - 1
    ((start, end, reason),) = found["damage"]
    assert start <= at < end
    assert "checksum" in reason


def test_verify_reports_a_wrong_queue_and_rebuild_fixes_it(sound: Path) -> None:
    queue = sound / "consumequeue" / "topic-1" / "1" / f"{0:020d}"
    original = queue.read_bytes()
    queue.write_bytes(original[20:40] + original[20:])
    done = run("store", "verify", sound)
    assert done.returncode == 1
    assert "queue 1 of topic-1 points at the wrong records" in done.stdout
    rebuilt = run_json("store", "rebuild", sound)
    assert rebuilt["records"] == COUNT
    assert queue.read_bytes() == original
    assert run("store", "verify", sound).returncode == 0


def test_verify_after_a_crash_reports_what_the_next_start_derives(tmp_path: Path) -> None:
    make(tmp_path / "store").abandon()
    done = run("store", "verify", tmp_path / "store")
    assert done.returncode == 0, done.stdout
    assert "messages are not in their queues yet" in done.stdout


def test_directory_in_use_is_rejected(tmp_path: Path) -> None:
    store = make(tmp_path / "store")
    for verb in ("verify", "rebuild"):
        done = run("store", verb, tmp_path / "store")
        assert done.returncode == 1
        assert "locked by another process" in done.stderr
    store.close()


@pytest.fixture
def read_only(sound: Path, tmp_path: Path) -> Iterator[Path]:
    """Make the directory read-only, like a mounted snapshot."""
    place = tmp_path / "snapshot"
    place.mkdir()
    commands = (["--bind", str(sound), str(place)], ["-o", "remount,bind,ro", str(place)])
    done = [subprocess.run(["mount", *command], capture_output=True) for command in commands]
    if any(one.returncode for one in done):
        pytest.skip("mounting needs root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_read_only_snapshot_can_be_inspected_and_verified(read_only: Path) -> None:
    assert run_json("store", "inspect", read_only)["sound"]
    found = run_json("store", "verify", read_only)
    assert (found["sound"], found["records"]) == (True, COUNT)
    done = run("store", "rebuild", read_only)
    assert done.returncode == 1
    assert "Read-only file system" in done.stderr


def test_directory_without_a_store_gives_a_short_error(tmp_path: Path) -> None:
    done = run("store", "inspect", tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "is it a store directory?" in done.stderr


# A log that is shorter than its checkpoint


@pytest.fixture
def short(sound: Path) -> Path:
    """A store that lost the last two files of its log."""
    for path in sorted((sound / "commitlog").iterdir())[-2:]:
        path.unlink()
    return sound


def test_rebuild_rejects_a_short_log_until_the_loss_is_accepted(short: Path) -> None:
    before = {p: p.read_bytes() for p in short.rglob("*") if p.is_file()}
    done = run("store", "rebuild", short)
    assert done.returncode == 1
    assert {p: p.read_bytes() for p in short.rglob("*") if p.is_file()} == before
    found = re.search(r"accept_loss_at=(\d+)", done.stderr.replace("\n", ""))
    assert found, done.stderr
    done = run("store", "rebuild", short, "--accept-loss-at", found[1])
    assert done.returncode == 0, done.stderr


def test_acknowledge_closes_the_findings_of_a_start(short: Path) -> None:
    refused = run("store", "rebuild", short).stderr.replace("\n", "")
    found = re.search(r"accept_loss_at=(\d+)", refused)
    assert found
    run("store", "rebuild", short, "--accept-loss-at", found[1])
    (incident,) = run_json("store", "acknowledge", short)["acknowledged"]
    assert incident["kind"] == "log_ended_early"
    assert run_json("store", "acknowledge", short) == {"acknowledged": []}
    assert "no incidents to acknowledge" in run("store", "acknowledge", short).stdout


def test_acknowledge_rejects_a_directory_without_a_store(tmp_path: Path) -> None:
    done = run("store", "acknowledge", tmp_path)
    assert done.returncode != 0
    assert "is not a store directory" in done.stderr
    assert list(tmp_path.iterdir()) == []
