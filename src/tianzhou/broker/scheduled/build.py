"""Builds the slice of messages that are delivered later."""

from dataclasses import dataclass

from tianzhou.broker.scheduled.delay import Delays
from tianzhou.broker.scheduled.recall import Recall
from tianzhou.broker.scheduled.timer import Timers
from tianzhou.broker.slice import Foundation, Slice
from tianzhou.broker.topics.permission import Permission


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledSlice:
    delays: Delays
    timers: Timers
    slice: Slice


def build(base: Foundation, permission: Permission) -> ScheduledSlice:
    config, store, clock, writer = base.config, base.store, base.clock, base.writer
    delays = Delays(store, writer, clock, save_every_ms=config.delay_progress_save_interval_ms)
    timers = Timers(store, writer, clock, save_every_ms=config.delay_progress_save_interval_ms)
    contribution = Slice(
        serves=(Recall(config, store, permission, timers, writer, clock),),
        services=(delays, timers),
        counts={"pending_timers": timers.__len__},
    )
    return ScheduledSlice(delays=delays, timers=timers, slice=contribution)
