"""What is measured of replicas: who is the master, and how far the others are behind.

A broker by itself is its own master and has no replicas; its families are there, and empty.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import Metric

from tianzhou.broker.observe.metric_families import gauge, gauges
from tianzhou.wire.raft_bodies import RaftView
from tianzhou.wire.replication_bodies import ReplicationView, SlaveView

_UNNAMED: Final = "unnamed"
"""Slaves of RocketMQ do not say who they are; those that are furthest behind stand for all."""


@dataclass(slots=True)
class ReplicationMetrics:
    look: Callable[[], ReplicationView]
    raft: Callable[[], RaftView | None]

    def families(self) -> Iterator[Metric]:
        look, raft = self.look(), self.raft()
        yield gauge("is_master", "1 while this broker takes the messages of its group",
                     int(look.role == "MASTER"))  # fmt: skip
        yield gauge("epoch", "Counts the masters of the group", look.epoch)
        yield gauge("log_end_offset", "Where the log ends", look.end)
        yield gauge("unconfirmed_bytes", "Appended, not held by as many as answers wait for",
                     max(0, look.end - look.confirmed))  # fmt: skip
        in_sync = sum(slave.is_in_sync for slave in look.slaves)
        yield gauge("replicas_in_sync", "Others that have all, or nearly all, of the log",
                     in_sync if raft is None else len(_near(raft)))  # fmt: skip
        yield from self._slaves(look)
        yield self._members(raft)

    def _slaves(self, look: ReplicationView) -> Iterator[Metric]:
        size = gauges("replica_lag_bytes", "Log that a slave has not confirmed", "replica")
        late = gauges(
            "replica_lag_seconds", "How long ago the first of it was written, about", "replica"
        )
        acked = gauges("replica_acked_offset", "Up to where a slave has the log", "replica")
        near = gauges("replica_in_sync", "1 while a slave has nearly all of the log", "replica")
        rows: dict[str, SlaveView] = {}
        for slave in sorted(look.slaves, key=lambda slave: (slave.lag_bytes, slave.lag_ms)):
            rows[_UNNAMED if slave.broker_id < 0 else str(slave.broker_id)] = slave
        for name, slave in sorted(rows.items()):
            size.add_metric([name], slave.lag_bytes)
            late.add_metric([name], slave.lag_ms / 1000)
            acked.add_metric([name], slave.acked)
            near.add_metric([name], int(slave.is_in_sync))
        yield from (size, late, acked, near)

    def _members(self, raft: RaftView | None) -> Metric:
        """Only the leader knows."""
        entries = gauges(
            "replica_lag_entries", "Entries that a member of a Raft group lacks", "replica"
        )
        if raft is not None and raft.is_leading:
            for peer in raft.peers:
                if peer.name != raft.member:
                    entries.add_metric([peer.name], max(0, raft.last - max(0, peer.match)))
        return entries


def _near(raft: RaftView) -> list[str]:
    """Members besides the leader that have everything that is committed."""
    return [
        peer.name
        for peer in raft.peers
        if raft.is_leading and peer.name != raft.member and peer.match >= raft.commit
    ]
