"""Everything that answers administrators, put together from the parts of a broker."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tianzhou.base.clock import Clock
from tianzhou.broker.access.cluster_proof import ClusterProof
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.fetch.pull import Pull
from tianzhou.broker.fetch.query import Query
from tianzhou.broker.groups.admin import AdminGroups
from tianzhou.broker.groups.admin_clients import AdminClients
from tianzhou.broker.groups.admin_offsets import AdminOffsets
from tianzhou.broker.groups.consumer_offsets import ConsumerOffsets
from tianzhou.broker.groups.groups import Groups
from tianzhou.broker.groups.heartbeats import Clients
from tianzhou.broker.groups.reset import AdminReset
from tianzhou.broker.groups.sessions import Sessions
from tianzhou.broker.observe.admin import AdminBroker
from tianzhou.broker.observe.messages import AdminMessages
from tianzhou.broker.observe.runtime_info import Runtime
from tianzhou.broker.rejections import Refusals
from tianzhou.broker.runtime_config import Group, RuntimeConfig
from tianzhou.broker.scheduled.delay import Delays
from tianzhou.broker.scheduled.timer import Timers
from tianzhou.broker.stats import Stats
from tianzhou.broker.topics.admin import AdminTopics
from tianzhou.broker.topics.permission import Permission
from tianzhou.broker.topics.removal import TopicRemoval
from tianzhou.broker.topics.topics import Topics
from tianzhou.broker.writing.log_writer import Writer
from tianzhou.net.rpc import Handler
from tianzhou.record.ids import decode_host
from tianzhou.store.store import MessageStore


@dataclass(slots=True, kw_only=True)
class Administration:
    """What administration looks at. Its handlers get what each of them uses."""

    config: BrokerConfig
    store: MessageStore
    clock: Clock
    topics: Topics
    groups: Groups
    offsets: ConsumerOffsets
    sessions: Sessions
    permission: Permission
    clients: Clients
    pull: Pull
    writer: Writer
    delays: Delays
    timers: Timers
    stats: Stats
    removal: TopicRemoval
    role: Callable[[], str]
    """What this broker is now, in RocketMQ's words."""
    group: Callable[[], Group | None]
    """Who manages master and slaves, if there are any."""
    proof: ClusterProof = field(init=False)
    runtime_config: RuntimeConfig = field(init=False)
    runtime: Runtime = field(init=False)

    def __post_init__(self) -> None:
        self.runtime_config, self.runtime = self._runtime_config(), self._runtime()
        self.proof = ClusterProof(self.config.cluster_credentials)

    def handlers(self) -> dict[int, Handler]:
        config, store, clock, stats = self.config, self.store, self.clock, self.stats
        topics, groups, offsets, sessions = self.topics, self.groups, self.offsets, self.sessions
        host = decode_host(self.writer.store_host)
        address = f"{host.address}:{host.port}"
        parts = (
            AdminTopics(config, store, topics, offsets, sessions, stats, clock, self.removal),
            AdminGroups(groups, offsets, sessions, stats),
            AdminOffsets(config, address, store, topics, groups, offsets, sessions, stats, clock),
            AdminReset(config, store, topics, groups, offsets, sessions),
            AdminClients(config, store, sessions, clock),
            AdminBroker(
                self.runtime_config,
                self.runtime,
                stats,
                store,
                clock,
                self.timers.progress,
                self.proof,
            ),
            AdminMessages(store, topics),
            Query(store, sessions),
            Refusals(),
        )
        handlers: dict[int, Handler] = {}
        for part in parts:
            handlers |= part.handlers()
        return handlers

    def _runtime_config(self) -> RuntimeConfig:
        runtime_config = RuntimeConfig(
            self.config, self.store.config, self.store.root, self.role, self.group
        )
        runtime_config.adopt += [self.topics.adopt, self.groups.adopt, self._adopt]
        return runtime_config

    def _adopt(self, config: BrokerConfig) -> None:
        self.clients.config = config
        if self.permission.bits != config.permission:
            self.permission.set(config.permission)

    def _runtime(self) -> Runtime:
        return Runtime(
            store=self.store,
            stats=self.stats,
            held_pulls=self.pull.holds.__len__,
            held_pulls_max=self.config.held_pulls_max,
            waiting_answers=self.writer.acks.__len__,
            delay_table=self.delays.table,
        )


@dataclass(slots=True)
class StatsTicks:
    """The service that lets statistics see time pass."""

    stats: Stats
    clock: Clock

    def tick(self) -> bool:
        self.stats.tick(self.clock.now_ms())
        return False

    def finish(self) -> None:
        """They begin anew with the next start."""
