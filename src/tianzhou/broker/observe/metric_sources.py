"""What metrics are read from, gathered where the broker is put together. Nothing is measured here,
and nothing of Prometheus is imported: a broker whose numbers nobody asks for need not have it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tianzhou.base.clock import Clock
from tianzhou.base.probe import Histogram
from tianzhou.broker.alarms import Alarm
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.groups.groups import Groups
from tianzhou.broker.groups.lags import Lags
from tianzhou.broker.groups.sessions import Sessions
from tianzhou.broker.observe.watchdog import Watchdog
from tianzhou.broker.stats import Stats
from tianzhou.broker.topics.topics import Topics
from tianzhou.broker.writing.log_writer import Writer
from tianzhou.store.store import MessageStore
from tianzhou.wire.raft_bodies import RaftView
from tianzhou.wire.replication_bodies import ReplicationView


@dataclass(slots=True, kw_only=True)
class MetricSources:
    """Read at a scrape. Everything belongs to others."""

    config: BrokerConfig
    store: MessageStore
    clock: Clock
    stats: Stats
    writer: Writer
    lags: Lags
    topics: Topics
    groups: Groups
    sessions: Sessions
    watchdog: Watchdog
    replication: Callable[[], ReplicationView]
    raft: Callable[[], RaftView | None]
    """None: it is no member of a Raft group."""
    alarms: Callable[[], list[Alarm]]
    counts: dict[str, Callable[[], int]]
    """What is one number of somebody, by the name of its metric. The server adds its own."""
    missing_brokers: Callable[[], dict[str, int]] = dict[str, int]
    """Missing brokers of the cluster, with the time at which each disappeared; set by the
    server."""
    loop_delays: Histogram = field(default_factory=Histogram)
    """How late the heartbeat of the event loop was."""
