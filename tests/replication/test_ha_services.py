"""Background services of a master continue at the slave that replaces it."""

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


def test_delays_timers_and_transactions_continue_at_the_promoted_slave(tmp_path: Path) -> None:
    decisions = [TransactionState.UNKNOWN]
    with (
        Group(
            tmp_path,
            messageDelayLevel="1s 6s",
            transactionTimeOut="500",
            transactionCheckInterval="500",
        ) as group,
    ):
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
            until(
                lambda: progress_of(slave, "timerProgress").get("scanned") == 2,
                "the slave knows how far the master came",
            )
            master.server.kill()
            promote(group)
            decisions.append(TransactionState.COMMIT)
            until(lambda: set(read_all(group)) == BEFORE | AFTER, "all is delivered", wait_s=60)
        assert sorted(read_all(group)) == sorted(BEFORE | AFTER)


def test_switch_delivers_nothing_twice(tmp_path: Path) -> None:
    """The slave fetches the progress of its master once more, however recent its last fetch."""
    with Group(tmp_path, messageDelayLevel="1s", metadata_ms="600000") as group:
        master, slave = group.master, group.add(1)
        master.start()
        group.create_topic()
        slave.start()
        until(lambda: TOPIC in str(progress_of(slave, "topics")), "the slave has asked")
        sent = [b"delayed", b"timed", b"delayed, after", b"timed, after"]
        with Producer("producers", nameserver=group.nameserver) as producer:
            for level, timed in ((sent[0], sent[1]), (sent[2], sent[3])):
                producer.send(Message(TOPIC, level, delay_level=1))
                producer.send(Message(TOPIC, timed, delay=timedelta(seconds=1)))
                want = {body.decode() for body in sent[: sent.index(timed) + 1]}
                until(lambda want=want: set(read_all(group)) == want, "they came")
                if timed == sent[1]:
                    until_equal(master, slave)
                    promote(group, "--switch")
        assert sorted(read_all(group)) == sorted(body.decode() for body in sent)
