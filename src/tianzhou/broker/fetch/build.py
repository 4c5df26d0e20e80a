"""Builds the slice of reading."""

from dataclasses import dataclass

from tianzhou.broker.fetch.pull import Pull
from tianzhou.broker.fetch.query import Query
from tianzhou.broker.groups.build import GroupTables
from tianzhou.broker.slice import Foundation, Slice
from tianzhou.broker.topics.build import TopicSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSlice:
    pull: Pull
    slice: Slice


def build(base: Foundation, topics: TopicSlice, tables: GroupTables) -> FetchSlice:
    pull = Pull(
        base.config,
        base.store,
        topics=topics.topics,
        groups=tables.groups,
        offsets=tables.offsets,
        sessions=tables.sessions,
        permission=topics.permission,
        filters=tables.filters,
        stats=base.stats,
        readers=tables.readers,
        catch_up=base.writer.catch_up,
        monotonic_s=base.clock.monotonic_s,
    )
    base.writer.arrived.append(pull.arrived)
    counts = {"held_pulls": pull.waiters.__len__}
    contribution = Slice(
        serves=(Query(base.store, tables.sessions),), counts=counts, adopts=(pull.adopt,)
    )
    return FetchSlice(pull=pull, slice=contribution)
