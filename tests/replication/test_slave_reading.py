"""Old messages are read from a slave, by every reader, and none is lost or repeated on the way."""

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from ha_cluster import (
    GROUP,
    TOPIC,
    Group,
    Node,
    cluster_rows,
    until,
    until_equal,
    until_read_at_slave,
)

from tianzhou.admin.commands.replication import look_at
from tianzhou.client.bulk.brokers import Brokers
from tianzhou.client.bulk.reader import NotAtSlave, OffsetGone, QueueRange, QueueReader
from tianzhou.client.consumer_options import ConsumerOptions
from tianzhou.client.core.assigned_queue import FlowLimits
from tianzhou.client.core.offsets import StartPosition
from tianzhou.client.core.pulling import SLAVE_PAUSE_S
from tianzhou.client.options import ClientOptions
from tianzhou.client.sync import LitePullConsumer, PullConsumer, PushConsumer
from tianzhou.record.message import MessageView
from tianzhou.testing.chaos import looking
from tianzhou.testing.chaos.proxy import Proxies

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

OLD = {"accessMessageInMemoryMaxRatio": "0", "ha_silence_ms": "600000"}
"""Every message counts as old: no share of the memory is left for new ones. A slave whose link is
cut stays in sync for the master."""
COUNT = 2_000
PULL_COUNT = 16
LITTLE_AHEAD = ConsumerOptions(
    start_from=StartPosition.FIRST,
    pull_count=PULL_COUNT,
    flow=FlowLimits(queue_count=2 * PULL_COUNT),
)


@contextmanager
def replicated(
    directory: Path, *, queues: int = 1, link: Callable[[str], str] | None = None
) -> Generator[tuple[Group, Node, list[str]]]:
    """A master and a slave that have the same messages, and a route with both. `link` returns
    another address for the master's port for slaves."""
    with Group(directory, **OLD) as group:
        master = group.master
        slave = group.add(1, **OLD if link is None else linked(link(master.ha_address)))
        master.start()
        slave.start()
        group.create_topic(queues=queues)
        sent = group.send(COUNT)
        until_equal(master, slave)
        until_read_at_slave(group)
        yield group, slave, sent


def linked(address: str) -> dict[str, str]:
    """Settings of a slave that reaches its master at this address and soon notices a cut."""
    return {"haMasterAddress": address, "ha_silence_ms": "2000"}


def served_by(node: Node) -> int:
    """How many messages a broker has sent to readers."""
    return int(looking.runtime(node.address)["msgGetTotalTodayNow"])


# Readers: each yields bodies, a few at a time.


def by_pull(group: Group) -> Iterator[list[str]]:
    with PullConsumer("pullers", nameserver=group.nameserver) as consumer:
        for queue in consumer.queues(TOPIC):
            offset, end = consumer.first(queue), consumer.end(queue)
            while offset < end:
                found = consumer.pull(queue, offset, count_max=PULL_COUNT)
                offset = found.next_offset
                yield [message.body.decode() for message in found.messages]


def by_bounds(group: Group) -> Iterator[list[str]]:
    """Read until the end that each response states."""
    with PullConsumer("bounded", nameserver=group.nameserver) as consumer:
        for queue in consumer.queues(TOPIC):
            offset, is_over = 0, False
            while not is_over:
                found = consumer.pull(queue, offset, count_max=PULL_COUNT)
                offset, is_over = found.next_offset, found.next_offset >= found.end
                yield [message.body.decode() for message in found.messages]


def by_poll(group: Group) -> Iterator[list[str]]:
    with LitePullConsumer(
        "pollers", nameserver=group.nameserver, subscribe={TOPIC: "*"}, options=LITTLE_AHEAD
    ) as consumer:
        while True:
            yield [message.body.decode() for message in consumer.poll()]


def by_push(group: Group) -> Iterator[list[str]]:
    with PushConsumer(
        "pushed", nameserver=group.nameserver, subscribe={TOPIC: "*"}, options=LITTLE_AHEAD
    ) as consumer:
        for message in consumer:
            yield [message.body.decode()]


def by_range(group: Group) -> Iterator[list[str]]:
    """As tasks of Spark do, and so `tianzhou sql`, the archive and every other table of topics."""
    with Brokers(group.nameserver) as brokers:
        ends = brokers.max_offsets(brokers.route(TOPIC).read_queues)
        reader = QueueReader(brokers, "tasks", pull_count=PULL_COUNT)
        for queue, end in ends.items():
            yield from bodies_of(reader, QueueRange(queue, 0, end))


def bodies_of(reader: QueueReader, wanted: QueueRange) -> Iterator[list[str]]:
    for run in reader.read(wanted):
        yield [MessageView(run.data, start).body.decode() for start in run.starts]


Read = Callable[[Group], Iterator[list[str]]]
READERS: Final[list[Read]] = [by_pull, by_bounds, by_poll, by_push, by_range]


def collect(bodies: Iterator[list[str]], count: int, *, found: Sequence[str] = ()) -> list[str]:
    """Read until this many messages have arrived."""
    gathered = list(found)
    for some in bodies:
        gathered += some
        if len(gathered) >= count:
            break
    return gathered


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges are returned in small parts, so that a test can act between two of them."""
    from tianzhou.client.bulk import reader

    monkeypatch.setattr(reader, "CHUNK_RECORDS", 2 * PULL_COUNT)


def test_every_reader_gets_old_messages_from_the_slave(tmp_path: Path) -> None:
    with replicated(tmp_path, queues=2) as (group, slave, sent):
        for read in READERS:
            before = served_by(slave)
            assert sorted(collect(read(group), COUNT)) == sorted(sent), read.__name__
            # The first response of each queue comes from the master, and advises the slave.
            assert served_by(slave) - before > COUNT * 0.9, read.__name__
        rates = {row["id"]: row["read_per_second"] for row in cluster_rows(group)}
        assert set(rates) == {0, 1}
        assert all(isinstance(rate, float) for rate in rates.values()), rates


def test_range_reads_a_single_message_at_the_master(tmp_path: Path) -> None:
    """The pull that gets the advice must not read megabytes of old log at the master."""
    with replicated(tmp_path) as (group, _, sent):
        before = served_by(group.master)
        assert sorted(collect(by_range(group), COUNT)) == sorted(sent)
        assert served_by(group.master) - before == 1


@pytest.mark.parametrize("read", READERS)
def test_kill_of_the_slave_neither_loses_nor_repeats_messages(read: Read, tmp_path: Path) -> None:
    with replicated(tmp_path) as (group, slave, sent):
        before, bodies = served_by(slave), read(group)
        found = collect(bodies, COUNT // 4)
        assert served_by(slave) > before
        slave.server.kill()
        assert Counter(collect(bodies, COUNT, found=found)) == Counter(sent)


def test_slave_that_lags_is_neither_the_end_nor_a_loss(tmp_path: Path) -> None:
    """Its link to the master is cut: it lacks what was sent since. The master has not noticed, and
    the slave keeps its readers, because for it the master is gone."""
    with (
        Proxies() as proxies,
        replicated(tmp_path, link=lambda to: proxies.link("to master", to).address) as made,
    ):
        group, slave, sent = made
        proxies.links[0].cut()
        until(lambda: not is_connected(slave), "the slave has noticed")
        sent += group.send(COUNT, first=COUNT)
        for read in READERS:
            before = served_by(slave)
            assert Counter(collect(read(group), 2 * COUNT)) == Counter(sent), read.__name__
            assert served_by(slave) - before > COUNT * 0.9, read.__name__


def is_connected(slave: Node) -> bool:
    look = look_at(slave.address)
    return look is not None and look.is_connected


def test_slave_that_hangs_is_left_for_the_master(tmp_path: Path) -> None:
    with replicated(tmp_path) as (group, slave, sent):
        options = ClientOptions(call_timeout_s=1.0)
        with Brokers(group.nameserver, options) as brokers:
            (queue,) = brokers.route(TOPIC).read_queues
            reader = QueueReader(brokers, "tasks", pull_count=PULL_COUNT)
            bodies = bodies_of(reader, QueueRange(queue, 0, COUNT))
            found = collect(bodies, COUNT // 4)
            slave.server.pause()
            try:
                begun = time.monotonic()
                assert collect(bodies, COUNT, found=found) == sent
                # One timeout: for a while the advice of the master to ask the slave is ignored.
                assert time.monotonic() - begun < SLAVE_PAUSE_S
            finally:
                slave.server.resume()


def test_messages_that_are_damaged_at_the_slave_come_from_the_master(tmp_path: Path) -> None:
    with replicated(tmp_path) as (group, slave, sent):
        for number in (100, 500, COUNT - 1):
            damage(slave, sent[number])
        for read in READERS:
            assert Counter(collect(read(group), COUNT)) == Counter(sent), read.__name__


def damage(node: Node, body: str) -> None:
    """Flip a bit of a message in the log of a running broker."""
    for path in (node.data / "commitlog").iterdir():
        with path.open("r+b") as log:
            at = log.read().find(body.encode())
            if at >= 0:
                log.seek(at)
                log.write(bytes([body.encode()[0] ^ 1]))
                return
    raise AssertionError(f"{body[:20]!r} is not in the log")


def test_range_that_only_a_slave_could_serve_fails_and_loses_nothing(tmp_path: Path) -> None:
    """Also with `failOnDataLoss = false`: the master may have the messages when it returns."""
    with replicated(tmp_path) as (group, _, sent):
        gone: list[OffsetGone] = []
        group.master.server.kill()
        with Brokers(group.nameserver, retry_s=1.0) as brokers:
            until(
                lambda: set(brokers.route(TOPIC, refresh=True).brokers[GROUP]) == {1},
                "the master is not registered",
            )
            (queue,) = brokers.route(TOPIC).read_queues
            reader = QueueReader(brokers, "tasks", on_gone=gone.append)
            assert collect(bodies_of(reader, QueueRange(queue, 0, COUNT)), COUNT) == sent
            with pytest.raises(NotAtSlave, match=f"offset {COUNT} at the slave"):
                collect(bodies_of(reader, QueueRange(queue, COUNT - 5, COUNT + 5)), COUNT)
        assert gone == []
