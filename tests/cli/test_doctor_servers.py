"""`tianzhou doctor`: NameServers, brokers and topics with a fault each."""

import json
from contextlib import ExitStack
from typing import Any, Final

import pytest

from cli.conftest import Run, Said, run_command
from cli.planted import firewall, free_address, mute, registered, stranger
from e2e.admin_world import commit, give_up, send
from tianzhou.admin.doctor import reach
from tianzhou.admin.doctor.brokers import clock_findings, disk_findings, version_findings
from tianzhou.admin.doctor.reach import broker_finding, probe_brokers
from tianzhou.broker.config import BrokerConfig
from tianzhou.client.core.admin_results import BrokerPlace, BrokerStatus
from tianzhou.client.core.findings import Level, findings
from tianzhou.client.sync.admin import Admin
from tianzhou.net.blocking import BlockingPeer
from tianzhou.store.errors import StoreFenced
from tianzhou.store.store import MessageStore
from tianzhou.testing import RunningBroker
from tianzhou.testing.kit.stopwatch import Stopwatch
from tianzhou.wire._generated_codes import RequestCode

WALLS: Final = 12


def problems(said: Said) -> list[dict[str, Any]]:
    assert said.code in (0, 6), said.err
    told = json.loads(said.out)
    found = [row for row in told["findings"] if row["level"] == "problem"]
    assert (len(found), said.code) == (told["problems"], 6 if found else 0)
    assert all(row["fix"] for row in told["findings"] if row["level"] != "fine")
    return found


def test_doctor_of_a_healthy_cluster_finds_nothing(run: Run) -> None:
    run("topic", "create", "orders")
    assert problems(run("doctor", "--topic", "orders", "--json")) == []
    said = run("doctor", "--topic", "orders")
    assert said.code == 0
    assert "8 queues on broker-a" in said.out
    assert "no problems" in said.out


def test_doctor_reports_a_nameserver_that_is_down() -> None:
    address = free_address()
    (found,) = problems(run_command("doctor", "-n", address, "--json"))
    assert "nothing listens" in found["said"]
    assert found["fix"].startswith("tianzhou nameserver")
    said = run_command("doctor", "-n", address)
    assert (said.code, "1 problem" in said.out) == (6, True)
    assert run_command("doctor", "-n", "nonsense:port").code == 2
    assert run_command("doctor", "-n", address, "--observe", "-1").code == 2


def test_doctor_reports_a_host_name_that_cannot_be_resolved() -> None:
    (found,) = problems(run_command("doctor", "-n", "no.such.host.invalid:9876", "--json"))
    assert "cannot be resolved" in found["said"]


def test_doctor_reports_a_server_of_another_protocol() -> None:
    with stranger() as address:
        (found,) = problems(run_command("doctor", "-n", address, "--json"))
    assert "does not speak RocketMQ's protocol" in found["said"]


@pytest.mark.slow
def test_doctor_reports_addresses_behind_a_firewall_in_parallel(
    mq: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The doctor reports what it observed and probes silent addresses in parallel."""
    monkeypatch.setattr(reach, "WITHIN_S", 1.0)
    with ExitStack() as stack:
        walls = [stack.enter_context(firewall()) for _ in range(WALLS)]
        with registered(mq.nameserver, "broker-b", walls[0]):
            (found,) = problems(run_command("doctor", "-n", mq.nameserver, "--json"))
        assert found["about"] == "broker broker-b"
        assert "as behind a firewall" in found["said"]
        watch = Stopwatch()
        said = run_command("doctor", "-n", ";".join([*walls, "127.0.0.1:1"]), "--json")
        assert watch.seconds() < WALLS
    *silent, refused = problems(said)
    assert len(silent) == WALLS
    assert "the connection timed out after 1 s" in silent[0]["said"]
    assert "allow TCP connections from here to port" in silent[0]["fix"]
    assert "nothing listens" in refused["said"]


@pytest.mark.slow
def test_doctor_reports_a_server_that_hangs(
    mq: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "WITHIN_S", 1.0)
    with mute() as address, registered(mq.nameserver, "broker-b", address):
        said = run_command("doctor", "-n", f"{address};{mq.nameserver}", "--json")
    server, broker = problems(said)
    assert "accepts connections but does not respond within" in server["said"]
    assert server["fix"].startswith("restart it: tianzhou nameserver")
    assert "accepts connections but does not respond: it hangs" in broker["said"]


def test_doctor_warns_about_a_loopback_address_for_remote_clients(mq: RunningBroker) -> None:
    """A client that used an address other than loopback is remote, or not the only client."""
    elsewhere = "10.0.0.5:9876"
    here = BrokerPlace("DefaultCluster", "broker-a", {0: mq.broker})
    found = broker_finding(here, mq.broker, elsewhere, probe_brokers([here])[mq.broker])
    assert found.level is Level.WARNING
    assert f"returns {mq.broker}, which responds here" in found.said
    assert found.fix.startswith("brokerIP1=ADDRESS")
    nowhere = free_address()
    there = BrokerPlace("DefaultCluster", "broker-a", {0: nowhere})
    found = broker_finding(there, nowhere, elsewhere, probe_brokers([there])[nowhere])
    assert found.level is Level.PROBLEM
    assert "which is this machine, not the broker's" in found.said
    # Who came by loopback is at the right machine.
    probes = probe_brokers([here])
    assert broker_finding(here, mq.broker, mq.nameserver, probes[mq.broker]).level is Level.FINE


def test_doctor_continues_when_one_broker_is_gone(run: Run, mq: RunningBroker) -> None:
    run("topic", "create", "orders")
    run("topic", "update", "orders", "--permission", "r")
    run("group", "create", "billing")
    with registered(mq.nameserver, "broker-b", free_address()):
        gone, topic, group = problems(
            run("doctor", "-t", "orders", "-g", "billing", "--observe", "0", "--json")
        )
    assert gone["about"] == "broker broker-b"
    assert (topic["about"], topic["said"]) == (
        "topic orders",
        "no client has permission to write it on broker-a",
    )
    assert group["said"].startswith("none of its consumers is connected")


def test_doctor_reports_a_broker_without_a_status(run: Run, mq: RunningBroker) -> None:
    with (
        RunningBroker(config=BrokerConfig(name="broker-b"), nameserver=mq) as other,
        other.faults.refuse([RequestCode.GET_BROKER_CONFIG], remark="not for you"),
    ):
        (found,) = problems(run("doctor", "--json"))
        assert found["about"] == "broker broker-b"
        assert "does not report its status" in found["said"]
        assert "not for you" in found["said"]
        assert found["fix"].endswith("tianzhou broker status broker-b")
    with mq.faults.refuse([RequestCode.GET_BROKER_CONFIG]):
        (found,) = problems(run("doctor", "--topic", "orders", "--json"))
    assert found["about"] == "broker broker-a"  # there is no other server to ask


def test_doctor_reports_a_broker_without_a_master(run: Run, mq: RunningBroker) -> None:
    with registered(mq.nameserver, "broker-b", mq.broker, broker_id=1):
        (found,) = problems(run("doctor", "--json"))
    assert found["about"] == "broker broker-b"
    assert "its group has no master" in found["said"]
    assert found["fix"].startswith("start its master (brokerId 0): tianzhou broker -n")


def test_doctor_reports_a_broken_store(run: Run, mq: RunningBroker) -> None:
    def fail(_broker: object, store: MessageStore) -> None:
        store._flusher.error = StoreFenced("syncing the commit log failed: I/O error")

    run("topic", "create", "orders")
    mq._look(fail)
    (found,) = problems(run("doctor", "--json"))
    assert (found["about"], "its store is fenced" in found["said"]) == ("broker broker-a", True)
    assert "tianzhou store verify DIR" in found["fix"]


def test_doctor_reports_a_broker_given_as_nameserver(mq: RunningBroker) -> None:
    (found,) = problems(run_command("doctor", "-n", mq.broker, "--json"))
    assert "this is a broker, not a NameServer" in found["said"]


def test_doctor_continues_with_one_of_two_nameservers(mq: RunningBroker) -> None:
    both = f"{free_address()};{mq.nameserver}"
    said = run_command("doctor", "-n", both, "--json")
    (found,) = problems(said)
    assert "nothing listens" in found["said"]
    assert f"{mq.broker} responds" in said.out


def test_doctor_reports_that_no_broker_is_registered(run: Run, mq: RunningBroker) -> None:
    mq.stop()
    mq.wait_until(
        lambda: "no broker is registered" in run("doctor", "--json").out, what="it is gone"
    )
    (found,) = problems(run("doctor", "--json"))
    assert found["fix"] == f"tianzhou broker -n {mq.nameserver}"


def test_doctor_reports_a_broker_address_that_cannot_be_reached(
    run: Run, mq: RunningBroker
) -> None:
    address = free_address()
    with registered(mq.nameserver, "broker-b", address):
        (found,) = problems(run("doctor", "--json"))
    assert found["about"] == "broker broker-b"
    assert f"returns {address}, which cannot be reached from here" in found["said"]
    assert "brokerIP1" in found["fix"]


def test_doctor_reports_a_broker_address_of_another_program(run: Run, mq: RunningBroker) -> None:
    with stranger() as address, registered(mq.nameserver, "broker-b", address):
        (found,) = problems(run("doctor", "--json"))
    assert "where another program listens" in found["said"]
    with registered(mq.nameserver, "broker-b", mq.nameserver):
        (found,) = problems(run("doctor", "--json"))
    assert "which is a NameServer" in found["said"]


def test_doctor_reports_a_drained_or_full_broker(run: Run, mq: RunningBroker) -> None:
    run("broker", "config", "--set", "brokerPermission=4")
    (found,) = problems(run("doctor", "--json"))
    assert found["fix"] == "tianzhou broker drain broker-a --undo"
    run("broker", "config", "--set", "brokerPermission=6")
    with mq.faults.full_disk():
        (found,) = problems(run("doctor", "--json"))
    assert "accepts no messages" in found["said"]


def test_doctor_reports_a_clock_that_is_ahead(run: Run, mq: RunningBroker) -> None:
    mq.clock.advance(minutes=10)
    assert "s ahead of this machine's" in run("doctor").out


def test_doctor_reports_a_missing_topic(run: Run) -> None:
    (found,) = problems(run("doctor", "--topic", "orders", "--json"))
    assert "the first message creates it" in found["said"]
    assert found["fix"] == "tianzhou topic create orders"
    run("broker", "config", "--set", "autoCreateTopicEnable=false")
    (found,) = problems(run("doctor", "--topic", "orders", "--json"))
    assert "none creates topics automatically" in found["said"]
    run("topic", "create", "orders")
    (found,) = problems(run("doctor", "--topic", "order", "--json"))
    assert "did you mean orders?" in found["said"]


def test_doctor_reports_a_topic_that_is_not_registered(run: Run, mq: RunningBroker) -> None:
    run("topic", "create", "orders")
    with BlockingPeer(mq.nameserver) as peer:
        peer.call(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders"})
    (found,) = problems(run("doctor", "--topic", "orders", "--json"))
    assert "broker-a has it, but has not registered it with this NameServer" in found["said"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("--permission", "r"), "no client has permission to write it"),
        (("--permission", "w"), "no client has permission to read it"),
        (("--read-queues", "2"), "write 8 queues and consumers read only 2"),
    ],
)
def test_doctor_reports_a_topic_with_wrong_settings(
    run: Run, change: tuple[str, str], told: str
) -> None:
    run("topic", "create", "orders")
    run("topic", "update", "orders", *change)
    (found,) = problems(run("doctor", "--topic", "orders", "--json"))
    assert told in found["said"]
    assert run(*found["fix"].split()[1:]).code == 0, "the command that fixes it"
    assert problems(run("doctor", "--topic", "orders", "--json")) == []


def status(name: str, *, used: float = 0.1, version: str = "V5_3_3", **facts: str) -> BrokerStatus:
    return BrokerStatus(
        name=name,
        address="10.0.0.1:10911",
        version=version,
        is_active=True,
        started_ms=1_000,
        put_per_second=0,
        get_per_second=0,
        put_today=0,
        disk_used_ratio=used,
        refusal="",
        facts=facts,
    )


def test_disk_findings_follow_the_configured_ratios() -> None:
    marks = {"diskMaxUsedSpaceRatio": "75", "diskSpaceWarningLevelRatio": "0.90"}
    assert [*disk_findings(status("a", used=0.5), marks)] == []
    assert [*disk_findings(status("a", used=-1), marks)] == []
    (near,) = disk_findings(status("a", used=0.8), marks)
    assert (near.level.value, "80% full" in near.said) == ("warning", True)
    (over,) = disk_findings(status("a", used=0.95), marks)
    assert (over.level.value, "refused" in over.said) == ("problem", True)


def test_clock_and_version_findings_report_differences() -> None:
    ran = status("a", runtime="[ 0 days, 0 hours, 1 minutes, 0 seconds ]")
    assert [*clock_findings(ran, now_ms=61_000)] == []
    (late,) = clock_findings(ran, now_ms=100_000)
    assert "39 s behind" in late.said
    assert [*version_findings([status("a"), status("b")])] == []
    (differ,) = version_findings([status("a"), status("b", version="V4_9_7")])
    assert "V4_9_7: b" in differ.said


def test_doctor_reports_everything_that_the_dashboard_shows(run: Run, mq: RunningBroker) -> None:
    """`broker status` reports the same in the same words; dead letters are not lag anywhere."""
    mq.create_topic("orders", queues=2)
    send(mq, "orders", b"1", b"2")
    commit(mq, "billing", "orders", offset=1)
    give_up(mq, "shipping", "orders")
    commit(mq, "shipping", "%DLQ%shipping", offset=0)
    commit(mq, "shipping", "orders", offset=2)
    offsets = mq._running().slices.groups.tables.offsets
    mq._do(lambda: offsets.put("CID_RMQ_SYS_TRANS", "orders", 0, 0))  # clients may not
    run("group", "update", "billing", "--no-consume")
    run("broker", "config", "--set", "brokerPermission=4")
    with Admin(nameserver=mq.nameserver) as admin:
        view = admin.views.cluster()
        assert admin.offsets.progress("shipping").lag == 0
        assert admin.offsets.progress("shipping", "%DLQ%shipping").lag == 2
        assert admin.brokers.traffic("broker-a").lags == {"billing": 1}
    shown = findings(view, mq.clock.now_ms())
    assert {(one.name, one.level.value) for one in shown} == {
        ("broker-a", "problem"),
        ("billing", "warning"),
    }
    told = json.loads(run("doctor", "--observe", "0", "--json").out)["findings"]
    wrong = {(row["about"], row["level"], row["said"]) for row in told if row["level"] != "fine"}
    assert wrong == {(f"{one.about} {one.name}", one.level.value, one.said) for one in shown}
    (alarm,) = run("broker", "status", "--json").json["alarms"]
    assert (alarm["kind"], alarm["level"]) == ("draining", "warning")
    assert alarm["since_ms"] <= mq.clock.now_ms()
    assert "tianzhou broker drain broker-a --undo" in run("broker", "status").out
    lags = {row["group"]: row["lag"] for row in run("group", "list", "--json").json}
    assert lags == {"billing": 1, "shipping": 0}


def test_doctor_reports_the_alarms_of_slaves(run: Run, mq: RunningBroker) -> None:
    with RunningBroker(config=BrokerConfig(name="broker-b"), nameserver=mq) as other:
        run("broker", "config", "broker-b", "--set", "brokerPermission=4")
        slave = other.broker
        with registered(mq.nameserver, "broker-a", slave, broker_id=1):
            told = json.loads(run("doctor", "--observe", "0", "--json").out)["findings"]
            said = [row["said"] for row in told if row["about"] == "broker broker-a"]
            assert [one for one in said if one.startswith(f"its replica 1 at {slave}: it is being")]
            status = run("broker", "status", "broker-a", "--json").json
            assert [(a["id"], a["kind"]) for a in status["alarms"]] == [(1, "draining")]
            shown = run("broker", "status", "broker-a").out
            assert f"replica 1 at {slave}: it is being drained" in shown
