"""Routes: which queues a topic has, for writing and for reading, and where their brokers are.

The order of queues is RocketMQ's: brokers by name, then queue ids. Consumers of one group, whatever
they are written in, divide this list among themselves and must see the same one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from tianzhou.wire.names import MASTER_ID, PERM_INHERIT, PERM_READ, PERM_WRITE
from tianzhou.wire.queues import MessageQueue
from tianzhou.wire.routes import QueueData, TopicRouteData

MASTER: Final = MASTER_ID
"""The broker id of the replica that accepts writes."""


def queue_order(queue: MessageQueue) -> tuple[str, str, int]:
    """Return the key by which Java sorts queues."""
    return queue.topic, queue.broker_name, queue.queue_id


DEFAULT_TOPIC_QUEUES: Final = 4
"""Queues that a producer requests for a topic that the broker creates at the first message."""


@dataclass(frozen=True, slots=True)
class TopicRoute:
    topic: str
    write_queues: tuple[MessageQueue, ...]
    """Queues of brokers that have a master; other brokers accept no messages."""
    read_queues: tuple[MessageQueue, ...]
    brokers: Mapping[str, Mapping[int, str]]
    """Addresses by broker name and broker id."""
    is_borrowed: bool = False
    """Whether the topic does not exist yet, and this is the route of the default topic."""

    def address(self, broker_name: str, broker_id: int = MASTER) -> str | None:
        return self.brokers.get(broker_name, {}).get(broker_id)

    def any_address(self, broker_name: str, broker_id: int = MASTER) -> str | None:
        """Return the address of this replica, or else of another one, preferably the master."""
        replicas = self.brokers.get(broker_name, {})
        if broker_id in replicas or not replicas:
            return replicas.get(broker_id)
        return replicas[min(replicas)]


def route_of(topic: str, data: TopicRouteData) -> TopicRoute:
    """Convert the response of a NameServer."""
    brokers = {broker.broker_name: dict(broker.broker_addrs) for broker in data.broker_datas}
    queue_datas = sorted(data.queue_datas, key=lambda queue: queue.broker_name)
    readable = [
        (queue.broker_name, queue.read_queue_nums)
        for queue in queue_datas
        if queue.perm & PERM_READ and brokers.get(queue.broker_name)
    ]
    return TopicRoute(
        topic,
        _queues(topic, _writable(data, queue_datas, brokers)),
        _queues(topic, readable),
        brokers,
    )


def _writable(
    data: TopicRouteData,
    queue_datas: Iterable[QueueData],
    brokers: Mapping[str, Mapping[int, str]],
) -> list[tuple[str, int]]:
    if data.order_topic_conf is not msgspec.UNSET and data.order_topic_conf:
        return _order_conf(data.order_topic_conf)
    return [
        (queue.broker_name, queue.write_queue_nums)
        for queue in queue_datas
        if queue.perm & PERM_WRITE and MASTER in brokers.get(queue.broker_name, {})
    ]


def _order_conf(text: str) -> list[tuple[str, int]]:
    """Parse `broker-a:8;broker-b:8`: the queues of an ordered topic stay the same while a broker is
    down. Invalid parts, on which Java's clients would fail, are skipped."""
    found: list[tuple[str, int]] = []
    for part in text.split(";"):
        name, _, count = part.strip().rpartition(":")
        if name and count.isdecimal():
            found.append((name, int(count)))
    return found


def _queues(topic: str, counts: Iterable[tuple[str, int]]) -> tuple[MessageQueue, ...]:
    return tuple(
        MessageQueue(topic=topic, broker_name=name, queue_id=queue_id)
        for name, count in counts
        for queue_id in range(count)
    )


def borrowed_route(topic: str, default: TopicRouteData, queue_count: int) -> TopicRoute:
    """Return the route of a topic that its first message will create, on brokers that have the
    default topic; each of them creates at most as many queues as the default topic has."""
    inherited = tuple(
        msgspec.structs.replace(
            queue,
            read_queue_nums=min(queue.read_queue_nums, queue_count),
            write_queue_nums=min(queue.write_queue_nums, queue_count),
        )
        for queue in default.queue_datas
        if queue.perm & PERM_INHERIT
    )
    route = route_of(topic, msgspec.structs.replace(default, queue_datas=inherited))
    return TopicRoute(topic, route.write_queues, route.read_queues, route.brokers, True)


def addresses_of(routes: Iterable[TopicRoute], *, masters_only: bool) -> set[str]:
    """Return the addresses of all brokers in the routes."""
    return {
        address
        for route in routes
        for replicas in route.brokers.values()
        for broker_id, address in replicas.items()
        if broker_id == MASTER or not masters_only
    }
