"""Builds the slice of sending."""

from dataclasses import dataclass

from tianzhou.broker.groups.build import GroupTables
from tianzhou.broker.ingest.admission import Admission
from tianzhou.broker.ingest.replies import Replies
from tianzhou.broker.ingest.retry import SendBack
from tianzhou.broker.ingest.send import Send
from tianzhou.broker.slice import Foundation, Slice
from tianzhou.broker.topics.build import TopicSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestSlice:
    admission: Admission
    send: Send
    slice: Slice


def build(base: Foundation, topics: TopicSlice, tables: GroupTables) -> IngestSlice:
    config, store, clock, writer = base.config, base.store, base.clock, base.writer
    permission, groups = topics.permission, tables.groups
    admission = Admission(
        config,
        topics.topics,
        groups,
        permission,
        clock,
        body_bytes_max=store.config.message_bytes_max,
        delay_levels=len(store.config.delay_levels_ms),
    )
    send = Send(config, topics.topics, admission, writer)
    send.refused = base.stats.refused
    permission.changed.insert(0, send.forget_targets)  # before name servers learn of the change
    base.role_state.changed.append(send.forget_targets)
    serves = (
        SendBack(store, topics.topics, groups, permission, admission, writer, base.stats),
        Replies(config, admission, tables.sessions, writer, clock),
    )
    counts = {"waiting_sends": writer.acks.__len__}
    contribution = Slice(serves=serves, counts=counts, adopts=(admission.adopt,))
    return IngestSlice(admission=admission, send=send, slice=contribution)
