"""Builds the slice of sending."""

from collections.abc import Callable
from dataclasses import dataclass

from tianzhou.broker.groups.build import GroupTables
from tianzhou.broker.ingest.admission import Admission
from tianzhou.broker.ingest.fail_fast import CAUSES, FailFast
from tianzhou.broker.ingest.replies import Replies
from tianzhou.broker.ingest.retry import SendBack
from tianzhou.broker.ingest.send import Send
from tianzhou.broker.metrics import Metric, counter, counters, gauge, histogram
from tianzhou.broker.slice import Foundation, Slice
from tianzhou.broker.stats import Stats, by_group
from tianzhou.broker.topics.build import TopicSlice
from tianzhou.broker.writing.log_writer import Writer


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestSlice:
    admission: Admission
    send: Send
    slice: Slice


def build(
    base: Foundation,
    topics: TopicSlice,
    tables: GroupTables,
    *,
    timers_are_full: Callable[[], bool],
    halves_are_full: Callable[[], bool],
) -> IngestSlice:
    config, store, clock, writer = base.config, base.store, base.clock, base.writer
    permission, groups = topics.permission, tables.groups
    admission = Admission(
        config,
        topics.topics,
        groups,
        permission,
        clock=clock,
        body_bytes_max=store.config.message_bytes_max,
        delay_levels=len(store.config.delay_levels_ms),
        light_queues=base.light_queues,
        timers_are_full=timers_are_full,
        halves_are_full=halves_are_full,
    )
    fail_fast = FailFast(config, writer.stall, base.stats, clock)
    base.alarms.add(fail_fast.alarms)
    send = Send(
        config,
        topics.topics,
        admission,
        writer,
        fail_fast=fail_fast,
        refused=base.stats.refused,
    )
    permission.changed.insert(0, send.forget_targets)  # before name servers learn of the change
    base.role_state.changed.append(send.forget_targets)
    serves = (
        SendBack(
            store=store,
            topics=topics.topics,
            groups=groups,
            permission=permission,
            admission=admission,
            writer=writer,
            stats=base.stats,
        ),
        Replies(
            config=config,
            admission=admission,
            sessions=tables.sessions,
            writer=writer,
            clock=clock,
        ),
    )
    contribution = Slice(
        serves=serves,
        metrics=_metrics(base.stats, writer),
        adopts=(admission.adopt, base.light_queues.adopt, fail_fast.adopt),
    )
    return IngestSlice(admission=admission, send=send, slice=contribution)


def _metrics(stats: Stats, writer: Writer) -> tuple[Metric, ...]:
    return (
        counter("messages_in", "Messages stored", lambda: stats.puts.count),
        counter("message_bytes_in", "Their size in the log", lambda: stats.puts.size),
        counters(
            "topic_messages_in",
            "Messages stored, by topic",
            ("topic",),
            lambda: (((topic,), flow.count) for topic, flow in stats.topic_puts.items()),
            is_limited=True,
        ),
        counters(
            "group_messages_sent_back",
            "Messages that a consumer sent back for a retry",
            ("group", "topic"),
            lambda: by_group(stats.group_send_backs),
            is_limited=True,
        ),
        histogram(
            "append_seconds", "Writing a chunk of messages to the log", stats.put_latency.histogram
        ),
        histogram(
            "dispatch_delay_seconds",
            "From the append of a chunk until consumers can see it",
            writer.dispatch_delays.histogram,
        ),
        counters(
            "sends_rejected_busy",
            "Sends rejected with SYSTEM_BUSY because they would have waited too long, by cause",
            ("cause",),
            lambda: (((cause,), stats.refusals.busy[cause]) for cause in CAUSES),
        ),
        gauge(
            "waiting_sends",
            "Batches of sends whose responses wait for the disk",
            writer.acks.__len__,
        ),
    )
