"""`tianzhou broker clean`: shows what would be removed, asks, and removes it."""

import json
from base64 import b64encode
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from cli.conftest import Run
from tianzhou.testing import RunningBroker
from tianzhou.testing.kit.running import SMALL_STORE

FILE = 64 * 1024


@pytest.fixture
def mq_settings() -> dict[str, Any]:
    """Nothing expires by itself: not at this hour, and not soon."""
    store = replace(
        SMALL_STORE, commit_log_file_bytes=FILE, retention_hours=72, retention_at_hours=()
    )
    return {"store_config": store}


def large(number: int) -> str:
    """A line of which two fit into a file, although the producer compresses it."""
    return f"{number} {b64encode(Random(number).randbytes(22_000)).decode()}\n"


def fill(run: Run, files: int) -> None:
    """Messages that fill this many files, and begin one more."""
    lines = "".join(map(large, range(2 * files + 1)))
    assert run("produce", "orders", stdin=lines).code == 0


def bodies(run: Run) -> list[str]:
    said = run("consume", "orders", "--from", "earliest", "--until-end", "--format", "body")
    return sorted((line.split()[0] for line in said.out.splitlines()), key=int)


def log_files(mq: RunningBroker) -> int:
    return len(list(mq.directory.glob("store/commitlog/0*")))


def test_clean_shows_what_expired_and_removes_it_after_confirmation(
    run: Run, mq: RunningBroker
) -> None:
    run("topic", "create", "orders", "-q", "1")
    fill(run, 3)
    assert log_files(mq) >= 4
    fresh = run("broker", "clean")
    assert (fresh.code, "nothing to remove on broker-a" in fresh.out) == (0, True)
    mq.clock.advance(hours=73)
    before = log_files(mq)
    refused = run("broker", "clean", "broker-a", stdin="n\n")
    assert refused.code == 1
    assert "cancelled; nothing was changed" in refused.err
    assert "192 KiB" in refused.out
    assert mq.broker in refused.out
    assert log_files(mq) == before, "nothing was changed"
    done = run("broker", "clean", "broker-a", stdin="y\n")
    assert done.code == 0, done.err
    assert "removed 3 log files, 192 KiB" in done.out
    assert "keep the messages of the last 72 hours?" in done.err
    assert bodies(run) == ["6"]
    assert log_files(mq) < before
    assert run("broker", "clean", "--yes", "--json").json["removed"] is False


def test_clean_keeps_the_hours_that_are_given_and_the_setting(run: Run, mq: RunningBroker) -> None:
    run("topic", "create", "orders", "-q", "1")
    fill(run, 2)
    mq.clock.advance(hours=5)
    run("produce", "orders", stdin="".join(map(large, (90, 91, 92))))
    assert run("broker", "clean", "--keep", "6", "--yes", "--json").json["removed"] is False
    found = run("broker", "clean", "--keep", "4", "--yes", "--json").json
    (view,) = found["brokers"].values()
    assert (found["broker"], found["keep_hours"], found["removed"]) == ("broker-a", 4, True)
    assert (view["files"], view["size"], view["unused_topics"]) == (2, 2 * FILE, [])
    # The last file of the old messages also has the first of the new ones.
    assert bodies(run) == ["4", "90", "91", "92"]
    assert view["oldest_ms"] == mq.stored("orders")[0].store_timestamp
    assert run("broker", "config", "--like", "fileReserved", "--json").json == {
        "fileReservedTime": "72"
    }


def test_clean_keeps_files_of_messages_that_wait_for_delivery(run: Run, mq: RunningBroker) -> None:
    run("topic", "create", "orders", "-q", "1")
    run("produce", "orders", "later", "--delay", "2d")
    fill(run, 3)
    mq.clock.advance(hours=40)
    found = run("broker", "clean", "--keep", "1", "--yes", "--json").json
    (view,) = found["brokers"].values()
    assert (found["removed"], view["files"], view["held"]) == (False, 0, 3)
    assert "wait for delivery" in view["held_because"]
    assert "3: messages in them wait for delivery" in run("broker", "clean", "--keep", "1").out


def test_clean_removes_topics_that_no_longer_exist(run: Run, mq: RunningBroker) -> None:
    """RocketMQ's brokers leave their queues; a table may also have been restored from a backup."""
    run("topic", "create", "orders", "-q", "1")
    run("produce", "orders", stdin="x\n")
    mq.stop()
    (table,) = mq.directory.glob("store/config/topics.json")
    topics = json.loads(table.read_text())
    del topics["topicConfigTable"]["orders"]
    table.write_text(json.dumps(topics))
    mq.start()
    shown = run("broker", "clean", stdin="n\n")
    assert "unused topics: orders" in shown.out
    found = run("broker", "clean", "--yes", "--json").json
    (view,) = found["brokers"].values()
    assert view["unused_topics"] == ["orders"]
    assert run("broker", "clean", "--yes", "--json").json["removed"] is False


def test_clean_without_input_or_of_an_unknown_broker_changes_nothing(
    run: Run, mq: RunningBroker
) -> None:
    run("topic", "create", "orders", "-q", "1")
    fill(run, 2)
    mq.clock.advance(hours=73)
    before = log_files(mq)
    closed = run("broker", "clean", "--json")
    assert closed.code == 1
    assert "--yes" in json.loads(closed.err)["error"]["message"]
    assert log_files(mq) == before
    assert run("broker", "clean", "nope", "--yes").code == 4
    assert run("broker", "clean", "--keep", "-1").code == 2
