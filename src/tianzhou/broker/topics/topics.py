"""The topics of this broker, with their queues and permissions."""

from collections.abc import Callable, Collection, Iterable
from typing import Final

import msgspec

from tianzhou.base.clock import Clock
from tianzhou.base.errors import UsageError
from tianzhou.broker import names
from tianzhou.broker.config import BrokerConfig
from tianzhou.net.rpc import RequestRejected
from tianzhou.record.light_queues import is_light
from tianzhou.store.errors import StoreError
from tianzhou.store.tables import Table
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire.names import PERM_INHERIT, PERM_READ, PERM_WRITE, SCHEDULE_TOPIC
from tianzhou.wire.tables import (
    DataVersion,
    TopicConfig,
    TopicConfigTable,
)

READ_WRITE: Final = PERM_READ | PERM_WRITE
QUEUES_MAX: Final = 1024
"""Queues of one topic. Each costs memory here and a pull in every consumer."""


class Topics:
    """Owner: the broker loop.

    Invariant: a topic is on the disk before a message is stored in it. The flush thread saves the
    topics that heartbeats create, so that no client waits for the disk; a message that arrives for
    one of them before that saves it at once.
    """

    def __init__(
        self,
        table: Table[TopicConfigTable],
        config: BrokerConfig,
        clock: Clock,
        delay_levels: int,
        *,
        is_replica: Callable[[], bool] = lambda: False,
        being_deleted: Collection[str] = (),
    ) -> None:
        """`is_replica` returns whether only another broker currently may create topics;
        `being_deleted` has the names that cannot be used yet, because their deletion is not
        committed."""
        self._table = table
        self._is_replica = is_replica
        self._config = config
        self._clock = clock
        stored = table.load()
        self._topics = dict(stored.topic_config_table)
        self.version: DataVersion = stored.data_version
        self._unsaved: set[str] = set()
        """Topics that the flush thread may have yet to save."""
        self._being_deleted = being_deleted
        self.changed: list[Callable[[], None]] = []
        """Called after every change, to register routes and drop caches."""
        self.announced: list[Callable[[frozenset[str]], None]] = []
        """Called with the topics whose routes changed, once the NameServers know the change."""
        self._rerouted: set[str] = set()
        """Topics whose queues or permission changed since the last registration began."""
        for topic in _built_in(config, delay_levels):
            self._topics.setdefault(topic.topic_name, topic)
        for name in self._topics:
            names.checked_topic(name)  # the table may have been edited by hand

    def adopt(self, config: BrokerConfig) -> None:
        """Apply settings that changed while the broker runs."""
        self._config = config

    def get(self, name: str) -> TopicConfig | None:
        """Return a topic by name. A light queue is not in the table, but is read like a topic with
        one queue, whether it exists or not: a consumer may wait for its first message."""
        found = self._topics.get(name)
        if found is None and is_light(name) and self._config.light_queues:
            return TopicConfig(
                topic_name=name, read_queue_nums=1, write_queue_nums=1, perm=PERM_READ
            )
        return found

    def unknown(self, name: str) -> RequestRejected:
        """The response to a request for a topic that does not exist."""
        why = ""
        if is_light(name) and not self._config.light_queues:
            why = "; light queues are off (light_queues)"
        return RequestRejected(
            ResponseCode.TOPIC_NOT_EXIST, f"topic {name[:128]} does not exist{why}"
        )

    def __len__(self) -> int:
        return len(self._topics)

    def all(self) -> dict[str, TopicConfig]:
        return self._topics

    def table(self) -> TopicConfigTable:
        return TopicConfigTable(data_version=self.version, topic_config_table=self._topics)

    def is_system(self, name: str) -> bool:
        return names.is_system(name, cluster=self._config.cluster, broker=self._config.name)

    def put(self, *topics: TopicConfig, wait: bool = True) -> None:
        """Create or update topics, all or none. Without `wait` the flush thread saves
        them."""
        for topic in topics:
            self._check(topic, fresh=len({t.topic_name for t in topics} - self._topics.keys()))
        if any(self._topics.get(topic.topic_name) != topic for topic in topics):
            before = self._topics
            self._topics = before | {topic.topic_name: topic for topic in topics}
            try:
                self._save(wait=wait)
            except StoreError:
                self._topics = before
                raise
            if not wait:
                self._unsaved.update(topic.topic_name for topic in topics)
            self._rerouted.update(
                topic.topic_name
                for topic in topics
                if _route(before.get(topic.topic_name)) != _route(topic)
            )

    def _check(self, topic: TopicConfig, *, fresh: int) -> None:
        name = names.checked_topic(topic.topic_name)
        if is_light(name):
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"{name} is the name of a light queue; messages create it, see light_queues",
            )
        if name in self._being_deleted:
            raise RequestRejected(
                ResponseCode.SYSTEM_BUSY,
                f"topic {name} is being deleted; retry after the group has committed that",
            )
        for count in (topic.read_queue_nums, topic.write_queue_nums):
            if not 0 <= count <= QUEUES_MAX:
                raise RequestRejected(
                    ResponseCode.INVALID_PARAMETER,
                    f"topic {name} can't have {count} queues; from 0 to {QUEUES_MAX}",
                )
        if fresh and len(self._topics) + fresh > self._config.topics_max:
            raise RequestRejected(
                ResponseCode.SYSTEM_BUSY,
                f"there are {len(self._topics)} topics already; topics_max allows "
                f"{self._config.topics_max}: delete some, or raise it",
            )

    def follow(self, master: TopicConfigTable) -> list[str]:
        """Adopt the master's table on a slave; returns the topics that this removed."""
        if master.data_version == self.version:
            return []
        removed = [name for name in self._topics if name not in master.topic_config_table]
        removed = [name for name in removed if not self.is_system(name)]
        kept = {name: topic for name, topic in self._topics.items() if self.is_system(name)}
        self._topics = kept | {
            name: topic for name, topic in master.topic_config_table.items() if _is_name(name)
        }
        self.version = master.data_version
        self._save_and_notify()
        return removed

    def touch(self) -> None:
        """Publish the table again although no topic changed, because the permission did."""
        self._save()

    def remove(self, name: str, *, wait: bool = True) -> bool:
        """Remove a topic from the table; returns whether it existed. Without `wait` the flush
        thread writes the table, before any work queued later."""
        if self._topics.pop(name, None) is None:
            return False
        self._rerouted.add(name)
        self._save(wait=wait)
        return True

    def announce(self, names: Iterable[str]) -> None:
        """Report these topics to their readers although they did not change here: another broker
        may have changed, to which no reader is connected yet. Those that did change are reported
        after the next registration."""
        unchanged = frozenset(names) - self._rerouted
        for report in self.announced:
            report(unchanged)

    def begin_registration(self) -> Callable[[], None]:
        """Called before the table is encoded for the NameServers. Returns the function to call when
        they have responded: a client that refreshes its route earlier gets the old one."""
        rerouted, self._rerouted = frozenset(self._rerouted), set()

        def registered() -> None:
            for report in self.announced if rerouted else ():
                report(rerouted)

        return registered

    def for_send(self, name: str, template: str, queues_asked: int) -> TopicConfig | None:
        """The topic; a new one is created from the template that the producer names."""
        found = self._topics.get(name)
        if found is not None:
            self._save_unsaved(name)
            return found
        if name.startswith(names.RETRY_PREFIX):
            return self.ensure(name, queues=1)
        model = self._topics.get(template)
        if not self._config.auto_create_topics or model is None or not model.perm & PERM_INHERIT:
            return None
        queues = max(1, min(queues_asked or model.write_queue_nums, model.write_queue_nums))
        return self.ensure(name, queues=queues, perm=model.perm & ~PERM_INHERIT)

    def ensure(self, name: str, *, queues: int, perm: int = READ_WRITE) -> TopicConfig:
        """The existing topic, or a new one, for a message. A replica creates nothing."""
        found = self._topics.get(name)
        if found is not None:
            self._save_unsaved(name)
        else:
            found = TopicConfig(
                topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm
            )
            if not self._is_replica():
                self.put(found)
        return found

    def _save_unsaved(self, name: str) -> None:
        """Save a topic before the first message is stored in it."""
        if self._unsaved and self._table.is_saved:
            self._unsaved.clear()
        if name in self._unsaved:
            self._table.save(self.table())
            self._unsaved.clear()

    def ensure_all(self, queues_of: dict[str, int], *, wait: bool = True) -> None:
        """Create those of these topics that do not exist, saved together. Topics without queues are
        left out. Without `wait` the flush thread saves them."""
        if self._is_replica():
            return
        self.put(
            *(
                TopicConfig(topic_name=name, read_queue_nums=count, write_queue_nums=count)
                for name, count in queues_of.items()
                if count > 0 and name not in self._topics
            ),
            wait=wait,
        )

    def _save(self, *, wait: bool = True) -> None:
        self.version = DataVersion(
            counter=self.version.counter + 1,
            state_version=self.version.state_version,
            timestamp=self._clock.now_ms(),
        )
        self._save_and_notify(wait=wait)

    def _save_and_notify(self, *, wait: bool = True) -> None:
        save = self._table.save if wait else self._table.save_later
        save(self.table())
        for notify in self.changed:
            notify()


def _route(topic: TopicConfig | None) -> tuple[int, int, int] | None:
    """What clients learn of a topic."""
    return topic and (topic.read_queue_nums, topic.write_queue_nums, topic.perm)


def _is_name(name: str) -> bool:
    """Whether a name is valid here; RocketMQ's masters may have topics with other names."""
    try:
        names.checked_topic(name)
    except UsageError:
        return False
    return True


def _built_in(config: BrokerConfig, delay_levels: int) -> list[TopicConfig]:
    """Topics that every RocketMQ broker has from its start; clients' own tools rely on some."""
    template = PERM_INHERIT | READ_WRITE
    made = [
        (names.SELF_TEST_TOPIC, 1, READ_WRITE),
        (names.BENCHMARK_TOPIC, QUEUES_MAX, READ_WRITE),
        (config.cluster, 16, template),
        (config.name, 1, template),
        (names.OFFSET_MOVED_TOPIC, 1, READ_WRITE),
        (SCHEDULE_TOPIC, delay_levels, READ_WRITE),
        (names.TRACE_TOPIC, 1, READ_WRITE),
        (config.cluster + names.REPLY_SUFFIX, 1, READ_WRITE),
        (names.HALF_TOPIC, 1, READ_WRITE),
        (names.OP_TOPIC, 1, READ_WRITE),
        (names.CHECKED_OUT_TOPIC, 1, READ_WRITE),
        (names.TIMER_TOPIC, 1, READ_WRITE),
    ]
    if config.auto_create_topics:
        made.append((names.TEMPLATE_TOPIC, config.default_topic_queues, template))
    return [
        TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
        for name, queues, perm in made
    ]


def with_perm(topic: TopicConfig, perm: int) -> TopicConfig:
    return msgspec.structs.replace(topic, perm=perm)
