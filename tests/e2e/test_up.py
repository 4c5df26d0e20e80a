"""`tianzhou up`, `nameserver` and `broker` as processes: start, stop, rejected starts."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clients import server_process
from clients.server_process import STOP_S, TIANZHOU, ServerProcess
from clients.waiting import wait_until
from crash.broker_load import QUEUES, TOPICS, Load
from crash.broker_reader import Reader, pull_of
from tianzhou.net.blocking import BlockingPeer
from tianzhou.wire.routes import decode_route

READY_S = 1.0
"""From start to ready, in CPU time: on a busy machine the process gets only a share of the time; on
an idle one both are nearly the same."""
TICK_HZ = os.sysconf("SC_CLK_TCK")
RSS_BYTES_MAX = 80_000_000

Start = Callable[..., ServerProcess]


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Start]:
    """Start servers in one directory, and stop all of them after the test."""
    started: list[ServerProcess] = []

    def start(*options: str) -> ServerProcess:
        started.append(server_process.up(tmp_path / "server", *options))
        return started[-1]

    yield start
    for server in started:
        server.end()


def run_rejected(*arguments: str, cwd: Path, code: int = 1) -> str:
    """Run a command that must fail; returns its error. Exit code 2 means invalid arguments."""
    done = subprocess.run(
        [TIANZHOU, *arguments], capture_output=True, text=True, timeout=300, cwd=cwd
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def rss_bytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^VmRSS:\s+(\d+) kB$", text, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def bodies(server: ServerProcess) -> list[bytes]:
    with Reader(server.broker) as reader:
        return [
            view.body
            for topic in TOPICS
            for queue_id in range(QUEUES)
            for view in reader.messages(topic, queue_id, 0)
        ]


# Starting


def test_ready_file_has_the_addresses_of_all_servers(up: Start) -> None:
    server = up()
    facts = server.facts
    assert facts.keys() >= {"nameserver", "broker", "brokerName", "cluster", "pid", "data"}
    assert facts["brokerName"] == "broker-a"
    assert facts["cluster"] == "DefaultCluster"
    assert facts["pid"] == server.process.pid
    assert Path(facts["data"]).is_dir()
    with Reader(facts["nameserver"]) as reader:
        answer, body = reader.ask(106, {})
    assert answer.code == 0
    assert facts["broker"].encode() in body


def test_ready_file_appears_atomically(tmp_path: Path) -> None:
    """The file is renamed into place, so a reader never sees a part of it."""
    ready, kept = tmp_path / "ready.json", tmp_path / "kept"
    ready.write_text("old")
    kept.hardlink_to(ready)
    arguments = ["up", "--nameserver-port", "0", "--broker-port", "0", "--ephemeral"]
    process = subprocess.Popen(
        [TIANZHOU, *arguments, "--ready-file", str(ready)],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: ready.read_text() != "old", within_s=30, what="a new ready file")
        assert json.loads(ready.read_text())["pid"] == process.pid
        assert kept.read_text() == "old"
        assert {path.name for path in tmp_path.iterdir()} == {"kept", "ready.json"}
    finally:
        process.terminate()
        process.wait(STOP_S * 3)


def cpu_s(pid: int) -> float:
    """The CPU time that a process has used, in all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK_HZ


def test_up_starts_quickly_and_uses_little_memory(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """The dashboard is loaded after clients are already served."""
    used: list[float] = []
    for number in range(3):
        ports = ["--nameserver-port", "0", "--broker-port", "0", "--http-port", "0"]
        server = ServerProcess(["up", *ports, "--ephemeral"], tmp_path / str(number))
        server.wait_ready()
        ready_s = server.ready_after_s
        used.append(cpu_s(server.process.pid))
        with urllib.request.urlopen(server.facts["http"], timeout=60) as page:
            assert page.status == 200
        rss = rss_bytes(server.process.pid)
        assert server.stop() == 0
        assert rss < RSS_BYTES_MAX, f"{rss / 1e6:.0f} MB"
        record_property("rss_bytes", rss)
        sys.stdout.write(
            f"ready after {ready_s:.2f} s, {used[-1]:.2f} s of work, {rss / 1e6:.0f} MB\n"
        )
    record_property("ready_cpu_s", min(used))
    assert min(used) < READY_S, used


def test_up_on_a_public_address_logs_a_warning(up: Start) -> None:
    server = up("--host", "0.0.0.0")
    lines = [line for line in server.log().splitlines() if "without a password" in line]
    assert len(lines) == 1
    assert "0.0.0.0" in lines[0]


def test_up_serves_on_ipv6(up: Start) -> None:
    server = up("--host", "::1")
    assert server.nameserver.startswith("[::1]:")
    with BlockingPeer(server.nameserver) as peer:
        answer, body = peer.call(105, {"topic": "TBW102"})
    assert answer.code == 0, answer.remark
    address = decode_route(body).broker_datas[0].broker_addrs[0]
    assert address == server.broker
    with BlockingPeer(address) as peer:
        assert peer.call(28)[0].code == 0


def test_up_on_a_local_address_logs_no_warning(up: Start) -> None:
    assert "without a password" not in up().log()


def test_up_logs_json_on_request(up: Start) -> None:
    server = up("--log-json", "--host", "0.0.0.0")
    assert server.stop() == 0
    rows = [json.loads(line) for line in server.log().splitlines()]
    assert {"broker.registered", "server.exposed", "server.ready"} <= {row["event"] for row in rows}
    assert all({"time", "level", "event"} <= row.keys() for row in rows)


# Rejected starts


def test_second_up_on_the_same_data_is_rejected(up: Start) -> None:
    server = up()
    ports = ("--nameserver-port", "0", "--broker-port", "0")
    data = server.facts["data"]
    said = run_rejected("up", *ports, "--data", data, cwd=server.log_path.parent)
    assert said.startswith("tianzhou: ")
    assert data in said
    assert "already runs" in said
    # The first one is not affected.
    assert bodies(server) == []
    assert server.stop() == 0


def test_port_in_use_is_named_in_the_error(up: Start, tmp_path: Path) -> None:
    server = up()
    for name, other in (("nameserver", "broker"), ("broker", "nameserver")):
        port = server.facts[name].rpartition(":")[2]
        ports = (f"--{name}-port", port, f"--{other}-port", "0")
        said = run_rejected("up", *ports, "--ephemeral", cwd=tmp_path)
        assert said.splitlines()[-1].startswith("tianzhou: ")
        assert port in said


def test_all_invalid_settings_are_listed(tmp_path: Path) -> None:
    settings = tmp_path / "broker.conf"
    wrong = {
        "listenPort": "70000",
        "flushConsumerOffsetInterval": "soon",
        "brokerName": "a/b",
        "brokerIP1": "10.0.0.1:80",
        "flushDiskType": "SOMETIMES",
        "brokerRole": "KING",
        "raft_election_ms": "1",
        "innerClientAuthenticationCredentials": "a:hush",
    }
    settings.write_text("".join(f"{name}={value}\n" for name, value in wrong.items()))
    said = run_rejected("broker", "-n", "nonsense:port", "-c", str(settings), cwd=tmp_path, code=2)
    for name in (*wrong, "nameservers"):
        assert f"{name} = " in said
    assert "hush" not in said


@pytest.mark.parametrize(
    "arguments",
    [("broker", "-p"), ("nameserver", "-p"), ("up", "--broker-port"), ("up", "--nameserver-port")],
    ids=" ".join,
)
def test_invalid_port_is_rejected(tmp_path: Path, arguments: tuple[str, str]) -> None:
    """The system would take 99999 for 34463."""
    assert "99999 is not in the range" in run_rejected(*arguments, "99999", cwd=tmp_path, code=2)


def test_invalid_host_is_named_in_the_error(tmp_path: Path) -> None:
    said = run_rejected("nameserver", "-p", "0", "--host", "no.such.invalid", cwd=tmp_path, code=1)
    assert "cannot listen on 'no.such.invalid': not an address of this machine" in said


# Stopping


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_under_load_keeps_everything_acknowledged(up: Start, number: signal.Signals) -> None:
    """With producers at full rate: acknowledged messages are kept, and nothing needs a repair."""
    server = up()
    data = Path(server.facts["data"])
    assert (data / "abort").exists()
    load = Load()
    with load.in_flight(server.broker, 500):
        with Reader(server.broker) as reader:
            reader.commit(TOPICS[0], 1, 2)
        assert server.stop(number, within_s=STOP_S) == 0
    assert not (data / "abort").exists()
    saved = json.loads((data / "config" / "consumerOffset.json").read_text())
    assert saved["offsetTable"][f"{TOPICS[0]}@kill-readers"] == {"1": 2}
    assert "Traceback" not in server.log()
    again = up()
    kept = {int(body.partition(b"|")[0]) for body in bodies(again)}
    assert load.acked.keys() <= kept
    with Reader(again.broker) as reader:
        assert reader.committed(TOPICS[0], 1) == 2


def test_stop_does_not_wait_for_pulls_or_slow_readers(up: Start) -> None:
    server = up()
    load = Load()
    with load.in_flight(server.broker, 2_000):
        place = max(load.acked.values(), key=lambda place: place.offset)
        with Reader(server.broker) as waiting, Reader(server.broker) as deaf:
            waiting.tell(11, pull_of("SELF_TEST_TOPIC", 0, 0, wait_ms=15_000))
            for _ in range(1_000):
                deaf.tell(11, pull_of(place.topic, place.queue_id, 0))
            assert server.stop(within_s=STOP_S) == 0
    assert not (Path(server.facts["data"]) / "abort").exists()
    assert "Traceback" not in server.log()


def test_stop_deletes_ephemeral_data(up: Start) -> None:
    server = up("--ephemeral")
    data = Path(server.facts["data"])
    assert (data / "commitlog").is_dir() or (data / "config").is_dir() or any(data.iterdir())
    assert server.stop() == 0
    assert not data.exists()


# Separate processes


def brokers_of(nameserver: str) -> bytes:
    with Reader(nameserver) as reader:
        return reader.ask(106, {})[1]


def test_nameserver_and_broker_run_as_separate_processes(tmp_path: Path) -> None:
    names = server_process.run(["nameserver", "-p", "0"], tmp_path / "names")
    settings = tmp_path / "broker.conf"
    settings.write_text(
        "brokerName=broker-z\nbrokerClusterName=c9\nlistenPort=0\nnoSuchSetting=1\n"
    )
    arguments = ["broker", "-n", names.nameserver, "-c", str(settings)]
    broker = server_process.run([*arguments, "--data", "kept"], tmp_path / "broker")
    try:
        assert broker.facts["brokerName"] == "broker-z"
        assert "noSuchSetting" in broker.log()
        assert "listenPort" not in broker.log()
        table = brokers_of(names.nameserver)
        assert b"broker-z" in table
        assert b"c9" in table
        load = Load()
        with load.in_flight(broker.broker, 50):
            assert broker.stop() == 0
        # The broker unregistered; clients need not wait two minutes until it expires.
        assert b"broker-z" not in brokers_of(names.nameserver)
        broker = server_process.run([*arguments, "--data", "kept"], tmp_path / "broker")
        assert b"broker-z" in brokers_of(names.nameserver)
        assert len(bodies(broker)) >= len(load.acked)
    finally:
        broker.end()
        names.end()


def test_broker_registers_with_a_nameserver_that_starts_later_or_restarts(tmp_path: Path) -> None:
    """Long before the next regular registration."""
    port = str(server_process.spare_port())
    arguments = ["broker", "-n", f"127.0.0.1:{port}", "-p", "0", "--data", "kept"]
    broker = server_process.run(arguments, tmp_path / "broker")
    name = broker.facts["brokerName"].encode()
    try:
        for _ in range(2):
            names = server_process.run(["nameserver", "-p", port], tmp_path / "names")
            try:
                wait_until(
                    lambda: name in brokers_of(f"127.0.0.1:{port}"),
                    within_s=10,
                    what="the broker is registered",
                )
            finally:
                names.kill()
    finally:
        broker.end()
    # Logged once, not with every attempt.
    assert 1 <= broker.log().count("registration.failed") <= 3


def test_hanging_nameserver_does_not_prevent_a_clean_stop(tmp_path: Path) -> None:
    names = server_process.run(["nameserver", "-p", "0"], tmp_path / "names")
    arguments = ["broker", "-n", names.nameserver, "-p", "0", "--data", "kept"]
    broker = server_process.run(arguments, tmp_path / "broker")
    names.process.send_signal(signal.SIGSTOP)
    try:
        assert broker.stop(within_s=STOP_S) == 0
        assert not (Path(broker.facts["data"]) / "abort").exists()
    finally:
        names.kill()


def test_start_without_assertions_is_rejected(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-O", TIANZHOU, "up", "--ephemeral"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ},
    )
    assert done.returncode == 1
    assert "-O" in done.stderr
