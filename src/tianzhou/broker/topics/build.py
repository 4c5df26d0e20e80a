"""Builds the slice of topics."""

from dataclasses import dataclass

from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.groups.build import GroupTables
from tianzhou.broker.metrics import gauge
from tianzhou.broker.role import Permission
from tianzhou.broker.slice import Foundation, Slice
from tianzhou.broker.topics.admin import AdminTopics, TopicRemoval
from tianzhou.broker.topics.topics import Topics


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSlice:
    topics: Topics
    permission: Permission
    removal: TopicRemoval
    slice: Slice


def build(base: Foundation, tables: GroupTables) -> TopicSlice:
    config, store, clock, writer = base.config, base.store, base.clock, base.writer
    levels = len(store.config.delay_levels_ms)
    is_replica = base.role_state.is_replica
    being_deleted: set[str] = set()
    topics = Topics(
        store.tables.topics,
        config,
        clock,
        levels,
        is_replica=is_replica,
        being_deleted=being_deleted,
    )
    store.when_light_queue_expires(tables.offsets.remove_light_queue)
    permission = Permission(config.name, config.permission, base.role_state)
    permission.changed.append(topics.touch)
    removal = TopicRemoval(
        store,
        tables.offsets,
        base.stats,
        writer.settle,
        is_replicated=base.mode.replicates_tables,
        pending=being_deleted,
        written=writer.written,
    )
    admin = AdminTopics(
        config=config,
        store=store,
        topics=topics,
        offsets=tables.offsets,
        sessions=tables.sessions,
        stats=base.stats,
        clock=clock,
        removal=removal,
    )

    def adopt(changed: BrokerConfig) -> None:
        if permission.bits != changed.permission:
            permission.set(changed.permission)

    metrics = (gauge("topics", "Topics of this broker", topics.__len__),)
    contribution = Slice(serves=(admin,), metrics=metrics, adopts=(topics.adopt, adopt))
    return TopicSlice(topics=topics, permission=permission, removal=removal, slice=contribution)
