"""`tianzhou cluster`, `broker status`, `broker config` and `bench`."""

import json

import pytest

import tianzhou
from cli.conftest import Run, run_command
from tianzhou.testing import RunningBroker


def test_cluster_lists_brokers_with_versions(run: Run, mq: RunningBroker) -> None:
    (row,) = run("cluster", "--json").json
    assert (row["broker"], row["address"], row["error"]) == ("broker-a", mq.broker, "")
    assert row["tianzhou_version"] == tianzhou.__version__
    assert f"{tianzhou.__version__} ({row['version']})" in run("cluster").out
    assert f"{tianzhou.__version__} ({row['version']})" in run("broker", "status").out
    assert "serves" in run("cluster").out
    mq.kill()
    mq.wait_until(
        lambda: run("cluster", "--json").json[0]["missing_since_ms"], what="the broker is gone"
    )
    assert "missing since" in run("cluster").out
    assert run("broker", "forget", "broker-a", "--json").json == {
        "broker": "broker-a",
        "forgotten": True,
    }
    assert run("cluster", "--json").json == []
    assert "tianzhou broker -n" in run("cluster").out


def test_nameserver_option_wins_over_the_environment(
    mq: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", mq.nameserver)
    assert run_command("topic", "list", "--json").code == 0
    monkeypatch.setenv("TIANZHOU_NAMESERVER", "127.0.0.1:1")  # ours wins over RocketMQ's
    assert run_command("topic", "list").code == 3
    assert run_command("topic", "list", "-n", mq.nameserver).code == 0


def test_nameserver_option_without_a_port_uses_9876(mq: RunningBroker) -> None:
    done = run_command("topic", "list", "-n", "localhost.invalid")
    assert done.code == 3
    assert "localhost.invalid:9876" in done.err


def test_broker_status_shows_one_broker(run: Run, mq: RunningBroker) -> None:
    run("topic", "create", "orders")
    run("produce", "orders", stdin="x\n")
    found = run("broker", "status", "broker-a", "--json", "--all").json
    assert (found["address"], found["takes_messages"], found["sent_today"]) == (mq.broker, True, 1)
    assert "putTps" in found["facts"]
    assert "accepted" in run("broker", "status").out
    with mq.faults.full_disk():
        assert "rejected: " in run("broker", "status").out
        assert "rejects messages" in run("cluster").out
    wrong = run("broker", "status", "broker-z")
    assert wrong.code == 4
    assert "it knows: broker-a" in wrong.err
    assert run("topic", "create", "pears", "-b", "broker-z").code == 4


def test_broker_config_shows_and_changes_settings(run: Run) -> None:
    assert run("broker", "config", "--like", "autoCreateTopic", "--json").json == {
        "autoCreateTopicEnable": "true"
    }
    changed = run("broker", "config", "--set", "autoCreateTopicEnable=false")
    assert "runs with autoCreateTopicEnable=false" in changed.out
    assert run("broker", "config", "--like", "autoCreateTopic", "--json").json == {
        "autoCreateTopicEnable": "false"
    }
    assert run("broker", "config", "--set", "nonsense").code == 2
    none = run("broker", "config", "--like", "zebra")
    assert (none.code, "contains 'zebra'" in none.err) == (4, True)
    refused = run("broker", "config", "--set", "listenPort=1")
    assert refused.code == 5
    assert "listenPort cannot change while the broker runs: the broker listens" in refused.err
    unknown = run("broker", "config", "--set", "fileReservdTime=5")
    assert unknown.code != 0
    assert "did you mean fileReservedTime?" in unknown.err
    shorter = run("broker", "config", "--set", "retention_hours=5", "--set", "deleteWhen=03")
    assert "runs with retention_hours=5, deleteWhen=03 until it restarts" in shorter.out
    assert run("broker", "config", "--like", "fileReserved", "--json").json == {
        "fileReservedTime": "5"
    }
    outside = run("broker", "config", "--set", "fileReservedTime=-1")
    assert "must be from 0 to 87600" in outside.err


def test_broker_drain_reports_json(run: Run, mq: RunningBroker) -> None:
    run("topic", "create", "orders", "-q", "1")
    run("produce", "orders", stdin="x\n")
    done = run("broker", "drain", "--json").json
    assert (done["broker"], done["drained"], done["takes_messages"]) == ("broker-a", True, False)
    assert "rejected: drained" in run("broker", "status").out
    assert "rejects messages: drained" in run("cluster").out
    assert not run("broker", "status", "--json").json["takes_messages"]
    back = run("broker", "drain", "--undo", "--json").json
    assert back == {"broker": "broker-a", "address": mq.broker, "takes_messages": True}
    assert run("broker", "status", "--json").json["takes_messages"]
    run("group", "create", "billing")
    assert run("group", "reset", "billing", "orders", "--to-earliest", "-y").code == 0
    late = run("broker", "drain", "--timeout", "0", "--json")
    assert (late.code, json.loads(late.out)["unread"]) == (1, {"billing": 1})
    assert "allow writes again with --undo" in late.err


def test_bench_measures_and_cleans_up(run: Run) -> None:
    found = run("bench", "--count", "1100", "--size", "100", "--in-flight", "16", "--json").json
    assert (found["count"], found["size"]) == (1100, 100)
    assert {step["step"]: step["messages"] for step in found["steps"]} == {
        "send, one at a time": 1000,
        "send, 16 in flight": 1100,
        "send, batches of 200": 1100,
        "read, one pull at a time": 3200,
    }
    for step in found["steps"]:
        assert step["per_second"] > 0
        assert 0 < step["ms_p50"] <= step["ms_p99"]
    assert run("topic", "list", "--json").json == []
    assert run("bench", "--count", "0").code == 2
    assert run_command("bench", "-n", "127.0.0.1:1").code == 3


def test_bench_accepts_bodies_of_any_size(run: Run) -> None:
    """A batch of 200 such messages would be more than a broker takes."""
    shown = run("bench", "--count", "10", "--size", "500000").out
    assert "send, batches of 4" in shown
    assert "messages/s" in shown


def test_bench_ephemeral_starts_and_stops_its_own_broker(run: Run) -> None:
    """Works with nothing but the package installed."""
    found = run_command("bench", "--ephemeral", "--count", "20", "--json").json
    assert len(found["steps"]) == 4
    gone = run_command("cluster", "-n", found["nameserver"])
    assert gone.code == 3, "it has ended with the command"
    assert "omit -n" in run("bench", "--ephemeral").err


def test_raft_commands_of_a_single_broker_exit_with_code_4(run: Run) -> None:
    for words in (("status", "broker-a"), ("transfer", "broker-a", "n1"), ("status", "nope")):
        said = run("raft", *words)
        assert said.code == 4
        assert "tianzhou cluster" in said.err
