"""The default name of a broker: different for every broker, and permanent."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from cli.conftest import run_command
from clients import server_process
from clients.server_process import ServerProcess
from tianzhou.base.errors import UsageError
from tianzhou.broker.config import BrokerConfig
from tianzhou.cmd import broker_name
from tianzhou.replication.config import BrokerRole, ReplicationConfig

ALONE = ReplicationConfig()


def name_in(directory: Path, port: int = 10911) -> str:
    return broker_name.named(BrokerConfig(port=port), ALONE, directory).name


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "node 7.example.org")


def test_broker_name_of_a_new_directory_is_machine_and_port(tmp_path: Path) -> None:
    assert name_in(tmp_path / "one") == "node-7-10911"
    assert name_in(tmp_path / "two", port=10921) == "node-7-10921"
    first, second = (name_in(tmp_path / place, port=0) for place in ("three", "four"))
    assert first != second, "a port that the system chooses does not make names unique"
    assert first.startswith("node-7-")


def test_broker_name_is_kept_by_the_directory_for_any_port(tmp_path: Path) -> None:
    for port in (0, 10911, 0, 20000):
        assert name_in(tmp_path, port) == name_in(tmp_path)
    kept = tmp_path / "config" / "brokerName"
    assert kept.read_text() == f"{name_in(tmp_path)}\n"


def test_broker_name_of_an_existing_directory_is_the_old_default(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    assert name_in(tmp_path) == "broker-a"
    assert not (tmp_path / "config").exists(), "the directory is not changed before it is opened"


@pytest.mark.parametrize("words", [b"", b"two words\n", b"\xff\n", b"../../x\n"])
def test_broker_name_that_is_unreadable_reports_the_file(tmp_path: Path, words: bytes) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "brokerName").write_bytes(words)
    with pytest.raises(UsageError, match="brokerName contains no broker name"):
        name_in(tmp_path)


def test_broker_name_is_required_for_a_slave(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="set brokerName to that of its master"):
        broker_name.named(BrokerConfig(broker_id=1), ALONE, tmp_path)
    with pytest.raises(UsageError, match="set brokerName"):
        broker_name.named(BrokerConfig(), replace(ALONE, role=BrokerRole.SLAVE), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_two_brokers_without_names_serve_one_cluster(tmp_path: Path) -> None:
    names = server_process.run(["nameserver", "-p", "0"], tmp_path / "names")

    def start(place: str) -> ServerProcess:
        arguments = ["broker", "-n", names.nameserver, "-p", "0", "--data", "kept", "--no-http"]
        return server_process.run(arguments, tmp_path / place)

    one, other = start("one"), start("other")
    try:
        ours, theirs = (server.facts["brokerName"] for server in (one, other))
        assert ours != theirs
        shown = run_command("cluster", "--json", "-n", names.nameserver).json
        assert {row["broker"] for row in shown} == {ours, theirs}
        which = run_command("broker", "status", "-n", names.nameserver)
        assert (which.code, "there are several brokers; pass one of" in which.err) == (2, True)
        one.kill()
        one = start("one")
        assert one.facts["brokerName"] == ours, "another port, the same directory"
        assert other.stop() == 0
        found = run_command("broker", "status", "--json", "-n", names.nameserver).json
        assert found["broker"] == ours, "the only broker need not be named"
    finally:
        for server in (one, other, names):
            server.end()
