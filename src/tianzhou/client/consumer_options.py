"""How a consumer consumes. Defaults are RocketMQ's, where it has any."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tianzhou.base.errors import UsageError
from tianzhou.client.core.assignment import Strategy, average
from tianzhou.client.core.offsets import StartFrom, StartPosition, start_rule
from tianzhou.client.core.window import FlowLimits
from tianzhou.client.options import check_types

_ABOVE_ZERO: Final = (
    "long_poll_s", "suspend_s", "consume_timeout_s", "rebalance_interval_s", "commit_interval_s",
    "lock_interval_s", "release_timeout_s", "stop_timeout_s",
)  # fmt: skip
_INT32_MAX: Final = 2**31 - 1
_AT_LEAST_ONE: Final = ("concurrency", "batch_size", "pull_count", "pull_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    broadcasting: bool = False
    """Every consumer of the group gets every message, keeps its own offsets, and retries nothing.
    Otherwise the group shares the queues among its members."""
    orderly: bool = False
    """One message of a queue at a time; one that fails is tried again in place."""
    start_from: StartFrom = StartPosition.LAST
    """For queues that the group has not consumed before. As with Java, `LAST` begins at the first
    message where the broker still has that in memory: a queue that was just made loses nothing."""
    strategy: Strategy = average
    """How the queues are shared; all members of a group must have the same."""
    auto_ack: bool = True
    """In `async for`: asking for the next message acknowledges the one before. Otherwise each
    needs `ack()` or `retry()`."""
    concurrency: int = 20
    """Listener calls at once: coroutines on the event loop, functions on threads of their own."""
    batch_size: int = 1
    """Messages in one call of a batch listener, at most."""
    max_reconsume_times: int = -1
    """Deliveries after the first before a message becomes a dead letter. -1: what the group has on
    the broker (16 by default); in ordered consumption without end."""
    suspend_s: float = 1.0
    """Before a message is tried again in place."""
    consume_timeout_s: float = 15 * 60
    """A message whose listener takes longer goes back to the broker, so that it holds up nobody."""
    flow: FlowLimits = FlowLimits()
    pull_count: int = 256
    """Messages in one pull, at most; brokers have limits of their own."""
    pull_bytes: int = 256 * 1024
    long_poll_s: float = 15.0
    """How long the broker may hold a pull that finds nothing."""
    rebalance_interval_s: float = 20.0
    commit_interval_s: float = 5.0
    lock_interval_s: float = 20.0
    """How often locks of ordered consumption are renewed; brokers keep them for 60 seconds."""
    release_timeout_s: float = 5.0
    """How long a queue that goes to somebody else waits for messages in work. Ordered consumption
    waits without end, because the next owner must not overtake."""
    stop_timeout_s: float = 30.0
    """How long stopping waits for messages in work."""
    offsets_directory: Path | None = None
    """Where broadcast offsets are kept. None: `.rocketmq_offsets` in the home directory."""
    trace: bool = False
    """Tell `RMQ_SYS_TRACE_TOPIC` what became of each message."""
    spans: bool = False
    """Run the listener in OpenTelemetry spans that are linked to those of the producers. Needs the
    extra `tracing`. Only for listeners: loops and pull consumers use `spans.processing`."""

    def __post_init__(self) -> None:
        check_types(self, besides=("start_from",))
        if not callable(self.strategy):
            raise UsageError(f"strategy {self.strategy!r} is not a function of an Occasion")
        for name in _ABOVE_ZERO:
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be above 0")
        for name in _AT_LEAST_ONE:
            if not 1 <= getattr(self, name) <= _INT32_MAX:
                raise UsageError(
                    f"{name} is {getattr(self, name)}; it must be from 1 to {_INT32_MAX}"
                )
        if self.max_reconsume_times < -1:
            raise UsageError(f"max_reconsume_times is {self.max_reconsume_times}; -1 or more")
        start_rule(self.start_from)


def refuse_spans(options: ConsumerOptions, group: str) -> None:
    """Raise UsageError if a consumer without a listener has `spans`: the client cannot know where
    the caller's processing of a message ends."""
    if options.spans:
        raise UsageError(
            f"spans=True has no effect for the consumer of {group}, which has no listener; leave "
            "it out and process each message in a block `with tianzhou.client.spans.processing("
            f"message, group={group!r}):`"
        )
