"""Messages that RocketMQ's C++ consumer fails are retried, with growing delays."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from clients import server_process
from clients.cpp_client import Clients, clients_of

SETTINGS = """
brokerClusterName=DefaultCluster
brokerName=broker-a
listenPort=0
# A first retry waits for delay level 3, which is ten seconds by default: too long for a test.
messageDelayLevel=1s 1s 1s 2s 3s 4s 5s
"""


@pytest.fixture
def impatient(cpp_python: Path, tmp_path: Path) -> Iterator[Clients]:
    """Clients of a NameServer and a broker in two processes, with short delays."""
    names = server_process.run(["nameserver", "-p", "0"], tmp_path / "names")
    settings = tmp_path / "broker.conf"
    settings.write_text(SETTINGS)
    broker = server_process.run(
        ["broker", "-n", names.nameserver, "-c", str(settings), "--data", str(tmp_path / "data")],
        tmp_path / "broker",
    )
    made = clients_of(names, cpp_python, tmp_path)
    yield made
    made.end()
    broker.end()
    names.end()


def test_failed_message_is_retried_until_it_succeeds(impatient: Clients) -> None:
    producer = impatient.producer()
    producer.send("sync", "cpp-failing", "zero")
    # The client looks up its retry topic when it starts, and then only after ten seconds. The
    # first heartbeat of the group creates that topic.
    herald = impatient.push("cpp-failing-readers", "cpp-failing")
    herald.wait_lines("got", 1)
    herald.close()
    consumer = impatient.push("cpp-failing-readers", "cpp-failing", failures=2)
    # One at a time: the client fails all messages of a response when one of them fails.
    for count, body in enumerate(("one", "two"), start=1):
        producer.send("sync", "cpp-failing", body, tags="t", keys=f"k-{body}")
        rows = consumer.wait_lines("got", 3 * count, within_s=25)[-3:]
        assert [row["body"] for row in rows] == [body] * 3
        assert [row["failed"] for row in rows] == [True, True, False]
        assert [row["reconsumed"] for row in rows] == [0, 1, 2]
        # A consumer sees the original topic, although the message comes from the retry topic.
        assert {row["topic"] for row in rows} == {"cpp-failing"}
        assert {(row["tags"], row["keys"]) for row in rows} == {("t", f"k-{body}")}
        first, second, third = (row["got_ms"] for row in rows)
        assert second - first >= 1_000
        assert third - second >= 2_000
