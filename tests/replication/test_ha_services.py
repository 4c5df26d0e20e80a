"""What a master does without being asked goes on at the slave that takes its place."""

import json
from datetime import timedelta
from pathlib import Path

from ha_cluster import TOPIC, Group, Node, promote, read_all, until, until_equal

from tianzhou.client import TransactionState
from tianzhou.client.sync import Producer
from tianzhou.record.message import Message

BEFORE = {"delayed, before", "timed, before", "decided"}
AFTER = {"delayed, after", "timed, after", "undecided"}


def progress_of(node: Node, name: str) -> dict[str, object]:
    path = node.data / "config" / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def test_delays_timers_and_transactions_go_on_at_the_promoted_slave(tmp_path: Path) -> None:
    decisions = [TransactionState.UNKNOWN]
    with (
        Group(tmp_path, messageDelayLevel="1s 6s", transactionTimeOut="500",
              transactionCheckInterval="500") as group,
    ):  # fmt: skip
        master, slave = group.master, group.add(1)
        master.start()
        slave.start()
        group.create_topic()
        with Producer(
            "producers", nameserver=group.nameserver, check=lambda _: decisions[-1]
        ) as producer:
            producer.send(Message(TOPIC, b"delayed, before", delay_level=1))
            producer.send(Message(TOPIC, b"timed, before", delay=timedelta(seconds=1)))
            with producer.transaction(Message(TOPIC, b"decided")):
                pass
            until(lambda: set(read_all(group)) == BEFORE, "the first master delivered them")
            producer.send(Message(TOPIC, b"delayed, after", delay_level=2))
            producer.send(Message(TOPIC, b"timed, after", delay=timedelta(seconds=6)))
            with producer.transaction(Message(TOPIC, b"undecided")) as left:
                left.leave_undecided()
            until_equal(master, slave)
            until(lambda: progress_of(slave, "timerProgress").get("scanned") == 2,
                  "the slave knows how far the master came")  # fmt: skip
            master.server.kill()
            promote(group)
            decisions.append(TransactionState.COMMIT)
            until(lambda: set(read_all(group)) == BEFORE | AFTER, "all is delivered", wait_s=60)
        assert sorted(read_all(group)) == sorted(BEFORE | AFTER)
