"""Settings of servers as users give them: file, environment, `--set` and options, as processes."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clients import server_process
from clients.server_process import TIANZHOU, ServerProcess
from tianzhou.client.sync.admin import Admin

pytestmark = pytest.mark.slow

Start = Callable[..., ServerProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start servers in one directory, and stop all of them after the test."""
    started: list[ServerProcess] = []

    def run(*words: str) -> ServerProcess:
        started.append(server_process.run(list(words), tmp_path / "server"))
        return started[-1]

    yield run
    for server in started:
        server.end()


def broker_settings(nameserver: str, name: str = "broker-a") -> dict[str, str]:
    with Admin(nameserver=nameserver) as admin:
        return dict(admin.brokers.config(name))


def test_up_reads_settings_from_all_sources(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = tmp_path / "up.toml"
    conf.write_text('name = "east"\nretention_hours = 24\nflush_interval_ms = 100\nport = 1\n')
    monkeypatch.setenv("TIANZHOU_RETENTION_HOURS", "48")
    monkeypatch.setenv("TIANZHOU_FLUSH_INTERVAL_MS", "200")
    monkeypatch.setenv("TIANZHOU_NAMESERVER", "192.0.2.1:9876")  # a variable for clients only
    server = start(
        "up",
        "-c",
        str(conf),
        "--set",
        "flush_interval_ms=300",
        "--set",
        "listen_port=1",
        "--set",
        "scan_interval_ms=77",
        "--broker-port",
        "0",
        "--nameserver-port",
        "0",
        "--data",
        str(tmp_path / "data"),
        "--no-http",
    )
    assert server.facts["brokerName"] == "east"
    found = broker_settings(server.facts["nameserver"], "east")
    assert found["fileReservedTime"] == "48"
    assert found["flushIntervalCommitLog"] == "300"
    assert found["namesrvAddr"] == server.facts["nameserver"]


def test_data_directory_can_be_a_setting(start: Start, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathRootDir={tmp_path}/kept\nlistenPort=0\nnamesrvAddr=192.0.2.1:9876\n")
    server = start("up", "-c", str(conf), "--nameserver-port", "0", "--no-http")
    assert server.facts["data"] == f"{tmp_path}/kept"
    assert Path(server.facts["data"], "commitlog").is_dir()


def test_up_passes_its_settings_to_all_replicas(start: Start, tmp_path: Path) -> None:
    server = start(
        "up",
        "--replicas",
        "3",
        "--set",
        "flush_interval_ms=300",
        "--set",
        "scan_interval_ms=77",
        "--set",
        "raft_election_ms=1500",
        "--broker-port",
        "0",
        "--nameserver-port",
        "0",
        "--data",
        str(tmp_path / "data"),
        "--no-http",
    )
    found = broker_settings(server.facts["nameserver"])
    assert found["flushIntervalCommitLog"] == "300"


def test_broker_and_nameserver_read_settings_from_the_environment(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIANZHOU_LISTEN_PORT", "0")
    names = start("nameserver", "--set", "broker_timeout_ms=5000")
    monkeypatch.setenv("TIANZHOU_NAMESERVERS", names.facts["nameserver"])
    monkeypatch.setenv("TIANZHOU_HA_LISTEN_PORT", "0")
    broker = start(
        "broker", "-p", "0", "--set", "name=west", "--data", str(tmp_path / "data"), "--no-http"
    )
    assert broker.facts["nameserver"] == names.facts["nameserver"]
    assert broker_settings(names.facts["nameserver"], "west")["brokerName"] == "west"


def test_setting_precedence_is_our_variable_then_file_then_rocketmq_variable(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("listenPort=0\nhaListenPort=0\nnamesrvAddr=192.0.2.2\n")
    words = ("broker", "-c", str(conf), "--data", str(tmp_path / "data"), "--no-http")
    monkeypatch.setenv("NAMESRV_ADDR", "192.0.2.1:9876")
    first = start(*words)
    assert first.facts["nameserver"] == "192.0.2.2:9876"
    first.end()
    monkeypatch.setenv("TIANZHOU_NAMESERVER", "192.0.2.3")
    second = start(*words)
    assert second.facts["nameserver"] == "192.0.2.3:9876"
    second.end()
    assert start(*words, "-n", "192.0.2.4").facts["nameserver"] == "192.0.2.4:9876"


@pytest.mark.parametrize("command", ["up", "broker", "nameserver"])
def test_unknown_setting_is_rejected_with_a_suggestion(command: str, tmp_path: Path) -> None:
    name = {"nameserver": "scan_intervall_ms"}.get(command, "flush_mod")
    done = subprocess.run(
        [TIANZHOU, command, "--set", f"{name}=1"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    meant = {"nameserver": "scan_interval_ms"}.get(command, "flush_mode")
    said = f"tianzhou: unknown setting {name!r} in --set (did you mean {meant!r}?)\n"
    assert (done.returncode, done.stderr) == (2, said)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--set", "nameservers=127.0.0.1:1"), "`tianzhou broker -n` uses another one"),
        (("--set", "raft_election_ms=1500"), "add --replicas 3"),
        (("--set", "dLegerGroup=g", "--replicas", "3"), "--raft-group` joins one"),
        (("--set", "port=x"), "port = 'x': must be a whole number (from --set)"),
    ],
)
def test_up_rejects_settings_that_cannot_work(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [TIANZHOU, "up", *words], capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_misspelt_environment_variable_is_logged(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIANZHOU_LISTEN_PROT", "0")
    server = start("nameserver", "-p", "0", "--log-json")
    events = [json.loads(line) for line in server.log().splitlines()]
    (unknown,) = [event for event in events if event["event"] == "setting.unknown"]
    assert unknown["did_you_mean"] == "TIANZHOU_LISTEN_PORT"
