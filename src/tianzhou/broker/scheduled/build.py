"""Builds the slice of messages that are delivered later."""

from dataclasses import dataclass

from tianzhou.broker.metrics import gauge
from tianzhou.broker.role import Permission
from tianzhou.broker.scheduled.delay import Delays
from tianzhou.broker.scheduled.timer import TimerRequests, Timers
from tianzhou.broker.slice import Foundation, Slice


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
        serves=(
            TimerRequests(
                config=config,
                store=store,
                permission=permission,
                timers=timers,
                writer=writer,
                clock=clock,
            ),
        ),
        services=(delays, timers),
        metrics=(
            gauge("pending_timers", "Messages that wait for their delivery time", timers.__len__),
        ),
    )
    return ScheduledSlice(delays=delays, timers=timers, slice=contribution)
