"""Builds the slice of reading."""

from dataclasses import dataclass

from tianzhou.broker.fetch.pull import Pull, PullAdmission
from tianzhou.broker.fetch.query import AdminMessages, Query
from tianzhou.broker.groups.build import GroupTables
from tianzhou.broker.metrics import Metric, counter, counters, gauge, histogram
from tianzhou.broker.slice import Foundation, Slice
from tianzhou.broker.stats import Stats, by_group
from tianzhou.broker.topics.build import TopicSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSlice:
    pull: Pull
    slice: Slice


def build(base: Foundation, topics: TopicSlice, tables: GroupTables) -> FetchSlice:
    admission = PullAdmission(
        topics.topics,
        tables.groups,
        tables.sessions,
        permission=topics.permission,
        filters=tables.filters,
    )
    pull = Pull(
        base.config,
        base.store,
        admission=admission,
        offsets=tables.offsets,
        stats=base.stats,
        readers=tables.readers,
        catch_up=base.writer.catch_up,
        monotonic_s=base.clock.monotonic_s,
        group=base.mode,
    )
    base.writer.arrived.append(pull.arrived)
    contribution = Slice(
        serves=(Query(base.store, tables.sessions), AdminMessages(base.store, topics.topics)),
        metrics=_metrics(base.stats, pull),
        adopts=(pull.adopt,),
    )
    return FetchSlice(pull=pull, slice=contribution)


def _metrics(stats: Stats, pull: Pull) -> tuple[Metric, ...]:
    return (
        counter("messages_out", "Messages delivered to consumers", lambda: stats.gets.count),
        counter("message_bytes_out", "Their size in the log", lambda: stats.gets.size),
        counters(
            "group_messages_out",
            "Messages delivered to a group",
            ("group", "topic"),
            lambda: by_group(stats.group_gets),
            is_limited=True,
        ),
        counters(
            "pulls",
            "Pulls that were answered, by whether they found messages",
            ("result",),
            lambda: ((("found",), stats.found_count), (("nothing",), stats.missed_count)),
        ),
        histogram("read_seconds", "Finding the messages of a pull", stats.get_latency.histogram),
        gauge("held_pulls", "Pulls that wait for a message", pull.waiters.__len__),
    )
