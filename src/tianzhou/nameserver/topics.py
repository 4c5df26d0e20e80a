"""The topics and the names of the brokers that hold their queues.

Two dictionaries hold the same pairs: by topic for clients, and by broker name for the removal of a
broker. Whether a broker is alive is not known here.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from tianzhou.base.errors import TianzhouError
from tianzhou.wire.names import PERM_READ_WRITE, PERM_WRITE
from tianzhou.wire.routes import QueueData
from tianzhou.wire.tables import TopicConfig

TOPICS_MAX: Final = 100_000
"""The names of all topics must fit into one response."""
ROWS_MAX: Final = 1_000_000
"""Pairs of topic and broker name, about 100 bytes each."""


class TableFull(TianzhouError):
    """An untrusted client, or a mistake, has filled the table."""


class TopicTable:
    """The queues of each topic by broker. Owner: the event loop of the NameServer.

    Invariant: broker in _rows[topic] if and only if topic in _of_broker[broker]; none is empty
    """

    def __init__(self, *, topics_max: int = TOPICS_MAX, rows_max: int = ROWS_MAX) -> None:
        self._rows: dict[str, dict[str, QueueData]] = {}
        self._of_broker: dict[str, set[str]] = {}
        self._topics_max = topics_max
        self._rows_max = rows_max

    # Queries

    def rows_of(self, topic: str) -> Mapping[str, QueueData]:
        """Return the queues of a topic by broker name; empty for an unknown topic."""
        return self._rows.get(topic, {})

    def names(self) -> tuple[str, ...]:
        return tuple(self._rows)

    def names_of(self, brokers: Iterable[str]) -> tuple[str, ...]:
        """Return the topics that any of these brokers holds."""
        found = (topic for name in brokers for topic in self._of_broker.get(name, ()))
        return tuple(dict.fromkeys(found))

    def names_with(self, wanted: Callable[[int], bool]) -> tuple[str, ...]:
        """Return the topics whose first row has this system flag; Java checks the first row
        only."""
        return tuple(
            topic
            for topic, rows in self._rows.items()
            if wanted(next(iter(rows.values())).topic_sys_flag)
        )

    def rows_of_broker(self, broker: str) -> dict[str, QueueData]:
        """Return all rows by topic."""
        return {topic: self._rows[topic][broker] for topic in self._of_broker.get(broker, ())}

    def has(self, topic: str, broker: str) -> bool:
        return topic in self._of_broker.get(broker, ())

    # Changes

    def check_room(self, broker: str, topics: Collection[str]) -> None:
        """Raise TableFull if these topics do not fit; nothing has changed then."""
        fresh = sum(topic not in self._rows for topic in topics)
        if len(self._rows) + fresh > self._topics_max:
            raise TableFull(f"{len(self._rows)} topics and {fresh} more exceed {self._topics_max}")
        held = self._of_broker.get(broker, set())
        rows = sum(map(len, self._of_broker.values())) + sum(t not in held for t in topics)
        if rows > self._rows_max:
            raise TableFull(f"{rows} pairs of topic and broker exceed {self._rows_max}")

    def put(self, topic: str, row: QueueData) -> None:
        self._rows.setdefault(topic, {})[row.broker_name] = row
        self._of_broker.setdefault(row.broker_name, set()).add(topic)

    def take_over(self, broker: str, configs: Iterable[TopicConfig], *, writable: bool) -> None:
        """Store the topics of a broker."""
        seen: dict[tuple[int, int, int, int], QueueData] = {}
        for config in configs:
            perm = config.perm if writable else config.perm & ~PERM_WRITE
            shape = perm, config.read_queue_nums, config.write_queue_nums, config.topic_sys_flag
            row = seen.get(shape)
            if row is None:
                # Most topics of a broker have equal queues, so they share one object.
                row = seen[shape] = QueueData(
                    broker_name=broker,
                    perm=perm,
                    read_queue_nums=config.read_queue_nums,
                    write_queue_nums=config.write_queue_nums,
                    topic_sys_flag=config.topic_sys_flag,
                )
            self.put(config.topic_name, row)

    def drop(self, topic: str, broker: str) -> None:
        rows = self._rows.get(topic)
        if rows is None or rows.pop(broker, None) is None:
            return
        if not rows:
            del self._rows[topic]
        held = self._of_broker[broker]
        held.discard(topic)
        if not held:
            del self._of_broker[broker]

    def drop_topic(self, topic: str) -> None:
        for broker in tuple(self._rows.get(topic, ())):
            self.drop(topic, broker)

    def drop_broker(self, broker: str) -> None:
        self.keep_only(broker, ())

    def keep_only(self, broker: str, topics: Collection[str]) -> None:
        for topic in tuple(self._of_broker.get(broker, ())):
            if topic not in topics:
                self.drop(topic, broker)

    def wipe_write(self, broker: str) -> int:
        """Remove the write permission of a broker; returns the number of its topics."""
        return self._change(broker, lambda perm: perm & ~PERM_WRITE)

    def add_write(self, broker: str) -> int:
        """Make all topics of a broker readable and writable: their earlier permissions are not
        known."""
        return self._change(broker, lambda _: PERM_READ_WRITE)

    def _change(self, broker: str, perm_from: Callable[[int], int]) -> int:
        topics = self._of_broker.get(broker, set())
        for topic in topics:
            row = self._rows[topic][broker]
            self._rows[topic][broker] = replace(row, perm=perm_from(row.perm))
        return len(topics)
