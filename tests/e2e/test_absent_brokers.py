"""Brokers that vanish, and two brokers with one name: real processes, killed with SIGKILL."""

import json
import subprocess
import urllib.request
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import run_command
from clients import server_process
from clients.server_process import TIANZHOU, ServerProcess
from clients.waiting import wait_until
from e2e.broker_cluster import Cluster
from tianzhou.client.core.findings import findings
from tianzhou.client.sync import Message, Producer
from tianzhou.client.sync.admin import Admin
from tianzhou.net.blocking import BlockingPeer
from tianzhou.wire._generated_codes import RequestCode

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster(tmp_path: Path) -> Generator[Cluster]:
    found = Cluster(tmp_path)
    try:
        yield found
    finally:
        found.end()


def doctor(cluster: Cluster) -> list[dict[str, Any]]:
    said = cluster.tell("doctor", "--observe", "0", "--json")
    return [row for row in json.loads(said.out)["findings"] if row["level"] != "fine"]


def commit(address: str, group: str, topic: str) -> None:
    fields = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": "0"}
    with BlockingPeer(address) as peer:
        answer, _ = peer.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    assert answer.code == 0


def test_killed_broker_is_reported_missing_until_it_returns_or_is_forgotten(
    cluster: Cluster,
) -> None:
    one, other = cluster.start("broker-a"), cluster.start("broker-b")
    assert cluster.tell("topic", "create", "orders", "-q", "4").code == 0
    with Producer("shop", nameserver=cluster.nameserver) as producer:
        for number in range(16):
            producer.send(Message("orders", b"%d" % number))
    commit(one.broker, "billing", "orders")
    assert doctor(cluster) == []

    other.kill()
    wait_until(
        lambda: any(row["missing_since_ms"] for row in cluster.tell("cluster", "--json").json),
        within_s=10,
        what="the NameServer reports it as missing",
    )
    alive, gone = cluster.tell("cluster", "--json").json
    assert (alive["broker"], alive["missing_since_ms"]) == ("broker-a", None)
    assert (gone["broker"], gone["address"]) == ("broker-b", other.broker)
    assert gone["topics"] == {"orders": 4}
    assert "missing since" in cluster.tell("cluster").out

    (problem,) = [row for row in doctor(cluster) if row["about"] == "broker broker-b"]
    assert problem["level"] == "problem"
    assert f"and was at {other.broker}" in problem["said"]
    assert "its 4 queues of 1 topic (orders) can be neither read nor written" in problem["said"]
    assert "which 1 group (billing) may be waiting for" in problem["said"]
    assert "tianzhou broker forget broker-b" in problem["fix"]
    with Admin(nameserver=cluster.nameserver) as admin:
        shown = findings(admin.views.cluster(), int(gone["missing_since_ms"]))
    assert [one.name for one in shown if "broker_missing" in one.kinds] == ["broker-b"]

    # The remaining brokers learn of it with their next registration, and raise an alarm.
    wait_until(
        lambda: (
            [
                a["kind"]
                for a in cluster.tell("broker", "status", "broker-a", "--json").json["alarms"]
            ]
            == ["broker_missing"]
        ),
        within_s=10,
        what="broker-a raises an alarm",
    )
    with urllib.request.urlopen(f"{one.facts['http']}/metrics") as page:
        metrics = page.read().decode()
    assert 'tianzhou_broker_missing_since_seconds{broker="broker-b"}' in metrics
    assert 'tianzhou_alarms{kind="broker_missing"} 1.0' in metrics
    wait_until(lambda: "alarm.began" in one.log(), within_s=10, what="the alarm is logged")

    cluster.start("broker-b")  # with another port, right after the crash
    assert {row["missing_since_ms"] for row in cluster.tell("cluster", "--json").json} == {None}
    wait_until(
        lambda: "alarm.ended" in one.log(), within_s=10, what="the end of the alarm is logged"
    )

    cluster.brokers["broker-b"].kill()
    wait_until(
        lambda: cluster.tell("broker", "forget", "broker-b").code == 0,
        within_s=10,
        what="the broker is forgotten",
    )
    assert len(cluster.tell("cluster", "--json").json) == 1
    again = cluster.tell("broker", "forget", "broker-b")
    assert (again.code, "tianzhou cluster" in again.err) == (4, True)


def test_broker_killed_with_its_nameserver_is_missing_after_a_restart(
    tmp_path: Path, cluster: Cluster
) -> None:
    """As when a machine loses power: no server notices that the broker is gone."""
    cluster.names.end()
    names = ["nameserver", "--data", str(tmp_path / "remembered"), "-p"]
    cluster.names = server_process.run([*names, "0"], tmp_path / "names")
    port = cluster.nameserver.rpartition(":")[2]
    cluster.start("broker-a")
    other = cluster.start("broker-b")
    file = tmp_path / "remembered" / "remembered.json"
    wait_until(
        lambda: file.exists() and "broker-b" in str(json.loads(file.read_text())["present"]),
        within_s=30,
        what="the NameServer has saved it",
    )
    cluster.names.kill()
    other.kill()
    cluster.names = server_process.run([*names, port], tmp_path / "names")
    wait_until(
        lambda: (
            [
                row["broker"]
                for row in cluster.tell("cluster", "--json").json
                if row["missing_since_ms"]
            ]
            == ["broker-b"]
        ),
        within_s=90,
        what="the NameServer reports it as missing",
    )
    assert [row["about"] for row in doctor(cluster)] == ["broker broker-b"]


def test_broker_that_stops_cleanly_is_not_missing(cluster: Cluster) -> None:
    cluster.start("broker-a")
    other = cluster.start("broker-b")
    assert other.stop() == 0
    assert [row["broker"] for row in cluster.tell("cluster", "--json").json] == ["broker-a"]
    assert doctor(cluster) == []


def test_doctor_reports_a_missing_broker_when_no_other_is_left(cluster: Cluster) -> None:
    cluster.start("broker-a").kill()
    wait_until(
        lambda: len(doctor(cluster)) == 2, within_s=10, what="the NameServer reports it as missing"
    )
    nothing, gone = doctor(cluster)
    assert "no broker is registered" in nothing["said"]
    assert (gone["about"], "has been missing" in gone["said"]) == ("broker broker-a", True)


@pytest.mark.parametrize("first", ["broker", "up"])
def test_second_broker_with_the_name_of_a_live_one_exits_with_an_error(
    tmp_path: Path, first: str
) -> None:
    """The broker of `tianzhou up` has no epoch, that of `tianzhou broker` has one."""
    if first == "up":
        up = server_process.up(tmp_path / "up")
        nameserver, holder, servers = up.nameserver, up.broker, [up]
    else:
        cluster = Cluster(tmp_path)
        one = cluster.start("broker-a")
        nameserver, holder, servers = cluster.nameserver, one.broker, [one, cluster.names]
    try:
        assert run_command("topic", "create", "orders", "-n", nameserver).code == 0
        done = subprocess.run(
            [
                TIANZHOU,
                "broker",
                "-n",
                nameserver,
                "-p",
                "0",
                "--set",
                "brokerName=broker-a",
                "--data",
                str(tmp_path / "second"),
                "--no-http",
            ],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 1, done.stderr
        said = done.stderr.strip().splitlines()[-1]
        assert said.startswith(f"tianzhou: NameServer {nameserver} refuses this broker: the name")
        assert f"'broker-a' with id 0 belongs to the broker at {holder}, which is alive" in said
        assert "set another brokerName" in said
        assert not (tmp_path / "second" / "abort").exists(), "its directory is closed cleanly"
        shown = run_command("topic", "show", "orders", "--json", "-n", nameserver)
        assert shown.code == 0, shown.err
        doctor_run = run_command("doctor", "--observe", "0", "--json", "-n", nameserver)
        (problem,) = [r for r in json.loads(doctor_run.out)["findings"] if r["level"] == "problem"]
        assert problem["about"] == "broker broker-a"
        assert "refuses a second broker of this name" in problem["said"]
        assert "another brokerName" in problem["fix"]
    finally:
        for server in servers:
            server.end()


def test_running_broker_whose_name_is_taken_raises_an_alarm_and_keeps_serving(
    tmp_path: Path,
) -> None:
    """Each had its own NameServer; then one NameServer replaces the other."""
    ports = [str(server_process.spare_port()) for _ in range(2)]
    names = [server_process.run(["nameserver", "-p", p], tmp_path / f"n{p}") for p in ports]
    both = f"127.0.0.1:{ports[0]};127.0.0.1:{ports[1]}"

    def start(place: str, nameservers: str) -> ServerProcess:
        arguments = ["broker", "-n", nameservers, "-p", "0", "--data", str(tmp_path / place / "d")]
        return server_process.run(
            [*arguments, "--no-http", "--set", "brokerName=twin"], tmp_path / place
        )

    one = start("one", f"127.0.0.1:{ports[0]}")
    servers = [one, *names]
    try:
        names[1].kill()
        names[0].kill()
        other = start("other", both)  # no NameServer is running that could reject it
        servers.append(other)
        servers.append(server_process.run(["nameserver", "-p", ports[0]], tmp_path / "again"))
        wait_until(
            lambda: "name_taken" in one.log() + other.log(),
            within_s=20,
            what="one of the two is rejected",
        )
        assert one.process.poll() is None
        assert other.process.poll() is None
        served = run_command("cluster", "--json", "-n", f"127.0.0.1:{ports[0]}").json
        assert len(served) == 1
        refused = other if served[0]["address"] == one.broker else one
        with BlockingPeer(refused.broker) as peer:
            answer, body = peer.call(RequestCode.VIEW_BROKER, {})
        assert answer.code == 0
        assert "name_taken" in {alarm["kind"] for alarm in json.loads(body)["alarms"]}
    finally:
        for server in servers:
            server.end()
