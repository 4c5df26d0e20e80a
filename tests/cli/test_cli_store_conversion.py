"""`tianzhou store to-raft` and `import`: plans, questions, refusals and results."""

from pathlib import Path

import pytest

from cli.conftest import Said, run_command
from tianzhou.base.kinds import queue_key
from tianzhou.cmd.clock import SystemClock
from tianzhou.record.chunk import Entry, build
from tianzhou.store.config import StoreConfig
from tianzhou.store.files import RealFiles
from tianzhou.store.store import MessageStore

KEY = queue_key("orders", 0)
ONE = "n0=127.0.0.1:10912"
MEMBER = ("--raft-group", "g", "--raft-id", "n0", "--raft-peers", ONE)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The store of a broker that has stopped."""
    root = tmp_path / "data"
    config = StoreConfig(commit_log_file_bytes=65536, commit_log_preallocate_bytes=4096)
    store = MessageStore(RealFiles(), str(root), config, SystemClock())
    for number in range(200):
        body = b"%d" % number + b"x" * 900
        store.append(build([Entry(KEY, body)], store_host=bytes(8), record_crc=True))
    store.close()
    return root


def to_raft(directory: Path, *more: str, stdin: str = "") -> Said:
    return run_command("store", "to-raft", str(directory), *MEMBER, *more, stdin=stdin)


def test_to_raft_shows_a_plan_and_asks(directory: Path) -> None:
    said = to_raft(directory, stdin="n\n")
    assert said.code != 0
    assert "4 log files" in said.err
    assert "Make it n0 of the Raft group g?" in said.err
    assert "nothing was changed" in said.err
    assert not (directory / "raft").exists()
    said = to_raft(directory, stdin="y\n")
    assert said.code == 0
    assert "n0 of g" in said.out
    assert "tianzhou raft add g" in said.out


def test_to_raft_reports_what_it_did_as_json(directory: Path) -> None:
    found = to_raft(directory, "--yes", "--json").json
    assert found["already"] is False
    assert found["member"] == "n0"
    assert found["entries"] == 4
    assert found["end"] > found["start"] == 0
    assert to_raft(directory, "--yes", "--json").json["already"] is True


def test_to_raft_rejects_the_directory_of_another_member(directory: Path) -> None:
    to_raft(directory, "--yes")
    other = ("--raft-group", "other", "--raft-id", "n0", "--raft-peers", ONE, "--yes")
    said = run_command("store", "to-raft", str(directory), *other)
    assert said.code != 0
    assert "belongs to n0 of group g already" in said.err


def test_to_raft_rejects_unknown_members_and_directories(tmp_path: Path, directory: Path) -> None:
    wrong = ("--raft-group", "g", "--raft-id", "n7", "--raft-peers", ONE, "--yes")
    said = run_command("store", "to-raft", str(directory), *wrong)
    assert "'n7' must be one of the peers (n0)" in said.err
    (tmp_path / "empty").mkdir()
    said = to_raft(tmp_path / "empty", "--yes")
    assert "is it a store directory?" in said.err


def test_broker_without_the_group_is_refused_after_to_raft(directory: Path) -> None:
    to_raft(directory, "--yes")
    ports = ("--nameserver-port", "0", "--broker-port", "0", "--http-port", "0")
    for words in (("broker", "--port", "0"), ("up", *ports)):
        said = run_command(*words, "--data", str(directory))
        assert said.code != 0
        assert "belongs to n0 of the Raft group g" in said.err


def test_import_copies_a_store_and_reports_it_as_json(directory: Path, tmp_path: Path) -> None:
    target = tmp_path / "new"
    found = run_command("store", "import", str(directory), str(target), "--json").json
    assert (found["records"], found["damage"], found["raft"]) == (200, [], None)
    assert run_command("store", "verify", str(target)).code == 0
    said = run_command("store", "import", str(directory), str(target))
    assert said.code != 0
    assert "is not empty" in said.err


def test_import_makes_the_first_member_of_a_group(directory: Path, tmp_path: Path) -> None:
    target = tmp_path / "new"
    said = run_command("store", "import", str(directory), str(target), *MEMBER, "--json")
    assert said.json["raft"] == "g"
    assert (target / "raft/group").exists()
    assert not Path(f"{target}.importing").exists()


def test_import_with_damage_ends_with_code_1(directory: Path, tmp_path: Path) -> None:
    path = directory / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[2500] ^= 1
    path.write_bytes(data)
    said = run_command("store", "import", str(directory), str(tmp_path / "new"))
    assert said.code == 1
    assert "damaged:" in said.out
    assert "199 messages" in said.out


def test_import_needs_all_options_of_a_member(directory: Path, tmp_path: Path) -> None:
    said = run_command("store", "import", str(directory), str(tmp_path / "new"), *MEMBER[:2])
    assert said.code != 0
    assert "must be one of the peers" in said.err
    assert not (tmp_path / "new").exists()
