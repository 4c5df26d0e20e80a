"""Builds the slice of consumer groups.

Its tables come first: deleting a topic removes rows from them, and the handlers here need topics.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tianzhou.broker.groups.admin import AdminClients, AdminGroups
from tianzhou.broker.groups.admin_offsets import AdminOffsets, AdminReset
from tianzhou.broker.groups.consumer_offsets import ConsumerOffsets, Offsets
from tianzhou.broker.groups.groups import Filters, Groups, Readers, Sessions
from tianzhou.broker.groups.heartbeats import Clients
from tianzhou.broker.groups.lags import LagMetrics, Lags
from tianzhou.broker.groups.locks import Locks
from tianzhou.broker.groups.notices import Notices
from tianzhou.broker.metrics import Metric, Series, gauge, gauges
from tianzhou.broker.slice import Foundation, Slice
from tianzhou.broker.topics.topics import Topics
from tianzhou.record.ids import decode_host


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTables:
    """The state of consumer groups, without the handlers that change it."""

    groups: Groups
    offsets: ConsumerOffsets
    sessions: Sessions
    locks: Locks
    readers: Readers
    filters: Filters


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSlice:
    tables: GroupTables
    clients: Clients
    notices: Notices
    slice: Slice


def build_tables(base: Foundation) -> GroupTables:
    config, tables = base.config, base.store.tables
    is_replica = base.role_state.is_replica
    tables_of_groups = GroupTables(
        groups=Groups(tables.groups, config, base.clock, is_replica=is_replica),
        offsets=ConsumerOffsets(tables.consumer_offsets, base.clock),
        sessions=Sessions(),
        locks=Locks(config.lock_lease_ms),
        readers=Readers(),
        filters=Filters(sql_enabled=config.sql_filters),
    )
    tables_of_groups.groups.deleted.extend(
        (tables_of_groups.readers.group_deleted, tables_of_groups.sessions.abandoned.discard)
    )
    return tables_of_groups


def build(base: Foundation, tables: GroupTables, topics: Topics) -> GroupSlice:
    config, store, clock, stats = base.config, base.store, base.clock, base.stats
    groups, offsets, sessions = tables.groups, tables.offsets, tables.sessions
    host = decode_host(base.writer.form.store_host)
    address = f"{host.address}:{host.port}"
    notices = Notices(sessions, groups, base.role_state, clock.monotonic_s)
    topics.announced.append(notices.topics_changed)
    clients = Clients(
        config=config,
        topics=topics,
        groups=groups,
        sessions=sessions,
        locks=tables.locks,
        filters=tables.filters,
        notices=notices,
        clock=clock,
    )
    serves = (
        clients,
        Offsets(store=store, log=store, topics=topics, groups=groups, offsets=offsets),
        AdminGroups(groups, offsets, sessions, stats),
        AdminOffsets(
            config=config,
            address=address,
            store=store,
            topics=topics,
            groups=groups,
            offsets=offsets,
            sessions=sessions,
            stats=stats,
            clock=clock,
        ),
        AdminReset(
            config=config,
            store=store,
            topics=topics,
            groups=groups,
            offsets=offsets,
            sessions=sessions,
        ),
        AdminClients(config, store, sessions, clock),
    )
    adopts = (groups.adopt, clients.adopt, tables.filters.adopt)
    lags = Lags(store, topics, offsets, sessions)
    metrics = (*_metrics(tables), *LagMetrics(lags, clock).declare())
    contribution = Slice(serves=serves, watches=(notices,), metrics=metrics, adopts=adopts)
    return GroupSlice(tables=tables, clients=clients, notices=notices, slice=contribution)


def _metrics(tables: GroupTables) -> tuple[Metric, ...]:
    sessions = tables.sessions

    def clients() -> Iterator[Series]:
        yield ("producer",), sum(map(len, sessions.producers.values()))
        yield ("consumer",), sum(len(group.clients) for group in sessions.consumers.values())

    return (
        gauge("groups", "Consumer groups of this broker", lambda: len(tables.groups.all())),
        gauges("clients", "Live members of groups, by role", ("role",), clients),
    )
