"""Routes, and the selection of queues.

A route is the queues of a topic, for writing and for reading, and the addresses of their brokers.
The order of queues is RocketMQ's: brokers by name, then queue ids. Consumers of one group, whatever
they are written in, divide this list among themselves and must see the same one.

A message without a key goes to the next queue in turn, or to the fastest broker. A broker that
failed or was slow is avoided for a while, if there is another: `FaultAvoidance`.
"""

import enum
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

import msgspec

from tianzhou.base.errors import UsageError
from tianzhou.base.java import string_hash
from tianzhou.record.message import Message
from tianzhou.wire.names import MASTER_ID, PERM_INHERIT, PERM_READ, PERM_WRITE
from tianzhou.wire.queues import MessageQueue
from tianzhou.wire.routes import ClusterTable, QueueData, TopicRouteData

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

    def has_master(self, broker_name: str) -> bool:
        return MASTER in self.brokers.get(broker_name, {})

    def any_replica(self, broker_name: str, broker_id: int = MASTER) -> tuple[int, str] | None:
        """Return this replica, or else another one, preferably the master: its id and address."""
        replicas = self.brokers.get(broker_name, {})
        if not replicas:
            return None
        found = broker_id if broker_id in replicas else min(replicas)
        return found, replicas[found]

    def any_address(self, broker_name: str) -> str | None:
        """Return the address of the master, or else of a slave."""
        found = self.any_replica(broker_name)
        return None if found is None else found[1]


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


def light_route(topic: str, table: ClusterTable) -> TopicRoute:
    """The route of a light queue, which NameServers do not know: any broker may have it."""
    brokers = {
        name: dict(broker.broker_addrs)
        for name, broker in sorted(table.broker_addr_table.items())
        if broker.broker_addrs
    }
    return TopicRoute(topic, (), _queues(topic, [(name, 1) for name in brokers]), brokers)


def _writable(
    data: TopicRouteData,
    queue_datas: Iterable[QueueData],
    brokers: Mapping[str, Mapping[int, str]],
) -> list[tuple[str, int]]:
    if data.order_topic_conf is not msgspec.UNSET and data.order_topic_conf:
        return ordered_queues(data.order_topic_conf)
    return [
        (queue.broker_name, queue.write_queue_nums)
        for queue in queue_datas
        if queue.perm & PERM_WRITE and MASTER in brokers.get(queue.broker_name, {})
    ]


def ordered_queues(text: str) -> list[tuple[str, int]]:
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


# Selection

Selector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
"""A user's function that selects one of the queues for a message."""

Pick = Callable[[TopicRoute], MessageQueue]
"""Selects the queue of a message that cannot go to any queue."""

_WEIGHT: Final = 0.2
"""Weight of the newest latency in the average; about the last ten count."""


class QueueChoice(enum.Enum):
    """How a producer distributes messages without a key over the queues of a topic.

    LEAST_LATENCY avoids slow brokers for a while after each slow response.

        ProducerOptions(queue_choice=QueueChoice.LEAST_LATENCY)
    """

    ROUND_ROBIN = "round robin"
    LEAST_LATENCY = "least latency"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultAvoidance:
    """For how long a producer avoids a broker that was slow or failed, if there is another one.

    A broker whose response took at least `latency_max_ms[i]` milliseconds gets no message without a
    key for `not_available_duration_ms[i]` milliseconds; the highest such `i` counts. The default
    tables are those of RocketMQ 5. Raises UsageError for tables that do not fit together.

        like_rocketmq_4 = FaultAvoidance(
            latency_max_ms=(50, 100, 550, 1_000, 2_000, 3_000, 15_000),
            not_available_duration_ms=(0, 0, 30_000, 60_000, 120_000, 180_000, 600_000),
            failure_ms=30_000,
        )
        ProducerOptions(fault_avoidance=like_rocketmq_4)
    """

    latency_max_ms: Sequence[int] = (50, 100, 550, 1_800, 3_000, 5_000, 15_000)
    not_available_duration_ms: Sequence[int] = (0, 0, 2_000, 5_000, 6_000, 10_000, 30_000)
    failure_ms: int = 10_000
    """The latency that a failure counts as."""

    def __post_init__(self) -> None:
        for name in ("latency_max_ms", "not_available_duration_ms"):
            table: object = getattr(self, name)
            if not isinstance(table, Sequence) or not all(
                isinstance(value, int) and value >= 0 for value in cast("Sequence[object]", table)
            ):
                raise UsageError(f"{name} is {table!r}; write milliseconds such as (50, 100, 550)")
            object.__setattr__(self, name, tuple(cast("Sequence[int]", table)))
        latencies, durations = self.latency_max_ms, self.not_available_duration_ms
        if list(latencies) != sorted(set(latencies)):
            raise UsageError(f"latency_max_ms is {latencies}; each must be above the one before")
        if len(latencies) != len(durations):
            raise UsageError(
                f"latency_max_ms has {len(latencies)} values and not_available_duration_ms "
                f"{len(durations)}; each latency needs its duration"
            )
        if not isinstance(cast("object", self.failure_ms), int) or self.failure_ms < 0:
            raise UsageError(f"failure_ms is {self.failure_ms!r}; it must be 0 or more")


_BY_DEFAULT: Final = FaultAvoidance()


class Latencies:
    """Latencies of brokers, by name. Times are arguments, in seconds.

    Owner: the event loop of the producer.
    """

    def __init__(self, avoidance: FaultAvoidance | None = _BY_DEFAULT) -> None:
        """None: no broker is avoided because of its latency."""
        rules = avoidance or FaultAvoidance(latency_max_ms=(), not_available_duration_ms=())
        self._bounds, self._durations = rules.latency_max_ms, rules.not_available_duration_ms
        self._failure_ms = rules.failure_ms
        self._until: dict[str, float] = {}
        self._average_ms: dict[str, float] = {}

    def took(self, broker_name: str, latency_ms: float, now_s: float) -> None:
        average = self._average_ms.get(broker_name, latency_ms)
        self._average_ms[broker_name] = average + _WEIGHT * (latency_ms - average)
        index = bisect_right(self._bounds, latency_ms) - 1
        if index >= 0 and self._durations[index]:
            self._until[broker_name] = now_s + self._durations[index] / 1000
        elif self._until:  # it has recovered
            self._until.pop(broker_name, None)

    def failed(self, broker_name: str, now_s: float) -> None:
        self.took(broker_name, self._failure_ms, now_s)

    def is_good(self, broker_name: str, now_s: float) -> bool:
        until = self._until.get(broker_name)
        return until is None or until <= now_s

    def average_ms(self, broker_name: str) -> float:
        """Zero for a broker that was never used, so that it is tried."""
        return self._average_ms.get(broker_name, 0.0)

    @property
    def is_calm(self) -> bool:
        """Whether no broker is in trouble, so that none needs to be avoided."""
        return not self._until


class Rotation:
    """Round-robin over the queues of each topic. `begin` returns a random first index."""

    def __init__(
        self, choice: QueueChoice, latencies: Latencies, begin: Callable[[int], int]
    ) -> None:
        self._is_by_latency = choice is QueueChoice.LEAST_LATENCY
        self._latencies = latencies
        self._begin = begin
        self._next: dict[str, int] = {}

    def choose(
        self, queues: Sequence[MessageQueue], avoid: Collection[str], now_s: float
    ) -> MessageQueue:
        """Return the next queue, if possible of a broker that is neither avoided nor in trouble."""
        assert queues
        topic, count = queues[0].topic, len(queues)
        index = self._next.get(topic)
        if index is None:
            index = self._begin(count)
        self._next[topic] = index + 1
        if self._is_by_latency:
            queues = self._fastest(queues, avoid, now_s)
        elif not avoid and self._latencies.is_calm:
            return queues[index % count]
        turned = [queues[(index + step) % len(queues)] for step in range(len(queues))]
        others = [queue for queue in turned if queue.broker_name not in avoid]
        is_good = self._latencies.is_good
        good = (queue for queue in others if is_good(queue.broker_name, now_s))
        return next(good, (others or turned)[0])

    def _fastest(
        self, queues: Sequence[MessageQueue], avoid: Collection[str], now_s: float
    ) -> Sequence[MessageQueue]:
        """Return the queues of the best broker."""
        known = self._latencies

        def rank(name: str) -> tuple[bool, bool, float]:
            return name in avoid, not known.is_good(name, now_s), known.average_ms(name)

        best = min(dict.fromkeys(queue.broker_name for queue in queues), key=rank)
        return [queue for queue in queues if queue.broker_name == best]


def queue_for_key(queues: Sequence[MessageQueue], sharding_key: str) -> MessageQueue:
    """Return the queue of a sharding key: the one that Java's SelectMessageQueueByHash selects, so
    that both kinds of producers may write to a topic. Every producer must use this function."""
    return queues[abs(string_hash(sharding_key)) % len(queues)]


def pick_of(
    message: Message, queue: MessageQueue | None, select: Selector | None = None
) -> Pick | None:
    """Return what selects the queue of a message; None if it is the next in turn."""
    try:
        key = message.sharding_key
        is_of_topic = queue is None or queue.topic == message.topic
    except AttributeError:
        check_message(message)
        raise UsageError(
            f"queue {repr(queue)[:42]} is of type {type(queue).__name__}; it must be a "
            "MessageQueue, such as one of `await producer.queues(topic)`"
        ) from None
    if queue is not None:
        if not is_of_topic:
            raise UsageError(f"queue {queue} is not of topic {message.topic!r}")
        if select is not None:
            raise UsageError("queue and select exclude each other; give one")
        return Fixed(queue)
    if select is not None:
        if not callable(select):
            raise UsageError(f"select {select!r} must be a function of the queues and the message")
        return lambda route: _selected(message, select(route.write_queues, message))
    if key is None:
        return None
    return lambda route: queue_for_key(route.write_queues, key)


def pick_of_batch(messages: Sequence[Message], queue: MessageQueue | None) -> Pick | None:
    """Like `pick_of`, for a batch, which goes to the queue of its sharding key. Raises UsageError
    if its messages have different keys."""
    keyed = messages[0]
    if queue is None:
        for message in messages:
            if message.sharding_key is None or message.sharding_key == keyed.sharding_key:
                continue
            if keyed.sharding_key is not None:
                raise UsageError(
                    "a batch goes to one queue; this one has messages with the sharding keys "
                    f"{keyed.sharding_key!r} and {message.sharding_key!r}: send a batch for each "
                    "key, or pass its queue"
                )
            keyed = message
    return pick_of(keyed, queue)


def check_message(message: object) -> None:
    """Raises UsageError if the argument is not a message."""
    if not isinstance(message, Message):
        raise UsageError(
            f"message {repr(message)[:42]} is of type {type(message).__name__}; it must be a "
            "Message, such as Message('orders', b'two apples')"
        )


def _selected(message: Message, found: object) -> MessageQueue:
    """Return the selector's choice if it is a queue of the message's topic."""
    if not isinstance(found, MessageQueue) or found.topic != message.topic:
        raise UsageError(f"the selector chose {found!r}, which is not a queue of {message.topic!r}")
    return found


class Fixed:
    """Picks one queue, whatever the route contains."""

    __slots__ = ("_queue",)

    def __init__(self, queue: MessageQueue) -> None:
        self._queue = queue

    def __call__(self, _route: TopicRoute) -> MessageQueue:
        return self._queue


def at_address(address: str) -> Pick:
    """Return what selects a queue of the broker at an address, or else the first queue."""

    def pick(route: TopicRoute) -> MessageQueue:
        near = (
            queue for queue in route.write_queues if route.address(queue.broker_name) == address
        )
        return next(near, route.write_queues[0])

    return pick
