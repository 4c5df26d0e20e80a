"""Metrics, health and the watchdog of a broker process, read over HTTP."""

import contextlib
import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from clients.server_process import ServerProcess, run, up
from clients.waiting import wait_until
from tianzhou.client.sync import Message, Producer
from tianzhou.net.blocking import BlockingPeer
from tianzhou.testing.chaos.processes import spare_ports
from tianzhou.wire._generated_codes import RequestCode

pytestmark = pytest.mark.slow

WITHIN_S = 10.0


def get(server: ServerProcess, path: str) -> tuple[int, str, str]:
    """Status, content type and text of a response, whatever its status."""
    try:
        with urllib.request.urlopen(server.facts["http"] + path, timeout=60) as answer:
            return answer.status, answer.headers["content-type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["content-type"], error.read().decode()


def get_json(server: ServerProcess, path: str) -> tuple[int, Any]:
    status, kind, text = get(server, path)
    assert kind == "application/json"
    return status, json.loads(text)


def values(server: ServerProcess) -> dict[tuple[str, str], float]:
    """Metric values by name and last label."""
    status, kind, text = get(server, "/metrics")
    assert (status, kind.split(";")[0]) == (200, "text/plain")
    return {
        (sample.name, next(reversed([*sample.labels.values()]), "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    found = up(tmp_path_factory.mktemp("up"), "--ephemeral", "--sync-flush", "--http-port", "0")
    yield found
    found.end()


def test_metrics_count_sent_messages(server: ServerProcess) -> None:
    before = values(server)["tianzhou_messages_in_total", ""]
    with Producer("shop", nameserver=server.nameserver) as producer:
        for _ in range(25):
            producer.send(Message("orders", b"two apples"))
    wait_until(
        lambda: values(server)["tianzhou_messages_in_total", ""] == before + 25,
        within_s=WITHIN_S,
        what="25 messages are counted",
    )
    found = values(server)
    assert found["tianzhou_topic_messages_in_total", "orders"] >= 25
    # Every response waited for the disk, and consumers saw nothing before.
    assert found["tianzhou_flush_seconds_count", ""] >= 1
    assert found["tianzhou_dispatch_delay_seconds_sum", ""] > 0
    assert found["tianzhou_unflushed_bytes", ""] == 0
    assert found["tianzhou_disk_free_bytes", ""] > 0
    # The heartbeat of the event loop: ten times a second, and rarely late.
    assert found["tianzhou_loop_delay_seconds_count", ""] > 0


def test_healthy_broker_is_ready_until_it_is_drained(server: ServerProcess) -> None:
    assert get_json(server, "/healthz") == (200, {"status": "alive", "reasons": []})
    assert get_json(server, "/readyz") == (200, {"status": "ready", "reasons": []})
    with BlockingPeer(server.broker) as peer:
        for bits, status in (("4", 503), ("6", 200)):
            change = f"brokerPermission={bits}".encode()
            assert peer.call(RequestCode.UPDATE_BROKER_CONFIG, {}, change)[0].code == 0
            found, report = get_json(server, "/readyz")
            assert found == status
            assert ("drain" in " ".join(report["reasons"])) == (status == 503)
            assert get_json(server, "/healthz")[0] == 200


def test_broker_without_a_registration_is_not_ready(tmp_path: Path) -> None:
    alone = run(
        [
            "broker",
            "-n",
            "127.0.0.1:1",
            "--port",
            "0",
            "--data",
            str(tmp_path / "data"),
            "--http-port",
            "0",
        ],
        tmp_path,
    )
    try:
        status, report = get_json(alone, "/readyz")
        assert (status, report["status"]) == (503, "not ready")
        assert "no NameServer knows this broker" in report["reasons"][0]
        assert get_json(alone, "/healthz")[0] == 200
    finally:
        alone.end()


def test_consumer_that_hangs_is_reported_in_log_and_metrics(tmp_path: Path) -> None:
    """A group with a member that does not read one of its queues."""
    names = run(["nameserver", "--port", "0"], tmp_path / "names")
    settings = tmp_path / "broker.toml"
    settings.write_text("consumer_stuck_after_ms = 1000\n")
    broker = run(
        [
            "broker",
            "-n",
            names.nameserver,
            "--port",
            "0",
            "-c",
            str(settings),
            "--data",
            str(tmp_path / "data"),
            "--http-port",
            "0",
        ],
        tmp_path / "broker",
    )
    try:
        with (
            Producer("shop", nameserver=names.nameserver) as producer,
            BlockingPeer(broker.broker) as member,
        ):
            for _ in range(8):
                producer.send(Message("orders", b"two apples"))
            heartbeat = {
                "clientID": "hangs@1",
                "consumerDataSet": [
                    {
                        "groupName": "billing",
                        "messageModel": "CLUSTERING",
                        "subscriptionDataSet": [{"topic": "orders", "subString": "*"}],
                    }
                ],
            }
            body = json.dumps(heartbeat).encode()
            assert member.call(RequestCode.HEART_BEAT, {}, body)[0].code == 0
            found = ("tianzhou_watchdog_findings", "unowned")
            wait_until(lambda: values(broker)[found] > 0, within_s=20, what="the event is reported")
        assert "group.unowned" in broker.log()
        assert "no member has read queue" in broker.log()
        assert "tianzhou group show billing" in broker.log()
        # Its connection is closed: a group without members raises no alarm.
        wait_until(lambda: values(broker)[found] == 0, within_s=20, what="the event is cleared")
        assert "group.goes_on" in broker.log()
    finally:
        broker.end()
        names.end()


def started(directory: Path, nameserver: str, broker_id: int) -> ServerProcess:
    """A master, or a slave of it, with ports for clients and for replication."""
    role = "SLAVE" if broker_id else "ASYNC_MASTER"
    settings = {
        "brokerName": "pair",
        "brokerId": broker_id,
        "brokerRole": role,
        "listenPort": spare_ports(2),
        "vip_port": "false",
        "metadata_ms": 300,
        "ha_retry_ms": 500,
    }
    directory.mkdir()
    conf = directory / "broker.conf"
    conf.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return run(
        [
            "broker",
            "-n",
            nameserver,
            "-c",
            str(conf),
            "--data",
            str(directory / "data"),
            "--http-port",
            "0",
        ],
        directory,
    )


def test_master_reports_the_lag_of_a_stopped_slave(tmp_path: Path) -> None:
    with contextlib.ExitStack() as ends:
        names = run(["nameserver", "--port", "0"], tmp_path / "names")
        ends.callback(names.end)
        master = started(tmp_path / "0", names.nameserver, 0)
        ends.callback(master.end)
        slave = started(tmp_path / "1", names.nameserver, 1)
        ends.callback(slave.end)

        def lag() -> float:
            return values(master).get(("tianzhou_replica_lag_bytes", "1"), -1)

        wait_until(lambda: lag() == 0, within_s=20, what="the slave follows")
        assert values(master)["tianzhou_replicas_in_sync", ""] == 1
        assert [values(one)["tianzhou_is_master", ""] for one in (master, slave)] == [1, 0]
        slave.process.send_signal(signal.SIGSTOP)
        try:
            with Producer("shop", nameserver=names.nameserver) as producer:
                producer.send(Message("orders", b"two apples"))
            wait_until(lambda: lag() > 0, within_s=20, what="the slave is behind")
            assert values(master)["tianzhou_replica_lag_seconds", "1"] >= 0
        finally:
            slave.process.send_signal(signal.SIGCONT)
        wait_until(lambda: lag() == 0, within_s=20, what="the slave has caught up")
