"""Options of consumers. Defaults are RocketMQ's, where it has any."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tianzhou.base.errors import UsageError
from tianzhou.client.core.assigned_queue import FlowLimits
from tianzhou.client.core.assignment import Strategy, average
from tianzhou.client.core.offsets import (
    OffsetStore,
    StartFrom,
    StartPosition,
    checked_store,
    start_rule,
)
from tianzhou.client.options import check_types

if TYPE_CHECKING:
    from tianzhou.client.hooks import ConsumeHook

_ABOVE_ZERO: Final = (
    "long_poll_s",
    "suspend_s",
    "consume_timeout_s",
    "rebalance_interval_s",
    "commit_interval_s",
    "lock_interval_s",
    "release_timeout_s",
    "stop_timeout_s",
)
_INT32_MAX: Final = 2**31 - 1
_AT_LEAST_ONE: Final = ("concurrency", "batch_size", "pull_count", "pull_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """Options of push and lite pull consumers.

    Raises UsageError for invalid values.

        options = ConsumerOptions(start_from=StartPosition.FIRST, concurrency=4)
        PushConsumer("stock", subscribe={"orders": "*"}, options=options)
    """

    broadcasting: bool = False
    """Every consumer of the group gets every message, keeps its own offsets, and does not retry.
    Otherwise the members of the group share the queues."""
    orderly: bool = False
    """Deliver one message of a queue at a time; a failed message is retried in place."""
    start_from: StartFrom = StartPosition.LAST
    """Start position for queues that the group has not consumed before. As in Java, `LAST` starts
    at the first message if the broker still has it in memory: a new queue loses nothing."""
    strategy: Strategy = average
    """How queues are assigned; all members of a group must use the same strategy."""
    auto_ack: bool = True
    """In `async for`: asking for the next message acknowledges the previous one. Otherwise call
    `ack()` or `retry()` for each message."""
    concurrency: int = 20
    """Concurrent listener calls: coroutines on the event loop, functions in threads."""
    batch_size: int = 1
    """Maximum number of messages in one call of a batch listener."""
    max_reconsume_times: int = -1
    """Retries before a message becomes a dead letter. -1: the setting of the group on the broker
    (16 by default); no limit in ordered consumption."""
    suspend_s: float = 1.0
    """Pause before a message is retried in place."""
    consume_timeout_s: float = 15 * 60
    """A message whose listener takes longer is returned to the broker, and the offset advances."""
    flow: FlowLimits = FlowLimits()
    pull_count: int = 256
    """Maximum number of messages in one pull; brokers have limits of their own."""
    pull_bytes: int = 256 * 1024
    long_poll_s: float = 15.0
    """How long the broker may hold a pull that finds no message."""
    rebalance_interval_s: float = 20.0
    commit_interval_s: float = 5.0
    lock_interval_s: float = 20.0
    """How often locks of ordered consumption are renewed; brokers keep them for 60 seconds."""
    release_timeout_s: float = 5.0
    """How long a revoked queue waits for messages in flight. Ordered consumption waits without a
    limit, because the next owner must not overtake them."""
    stop_timeout_s: float = 30.0
    """How long `stop` waits for messages in flight."""
    offsets_directory: Path | None = None
    """Directory of broadcast offsets. None: `.rocketmq_offsets` in the home directory."""
    offsets_keep_days: float = 30.0
    """How long that directory keeps offsets of client ids that no process uses any more, such as
    those of earlier addresses of this machine. 0: without limit."""
    offset_store: OffsetStore | None = None
    """A store of your own for the offsets, instead of the brokers or the file. In clustering
    groups all members must use it; brokers get the offsets too, for tools that show the lag."""
    trace: bool = False
    """Record the outcome of each message in `RMQ_SYS_TRACE_TOPIC`."""
    spans: bool = False
    """Run the listener in OpenTelemetry spans that are linked to those of the producers. Needs the
    extra `tracing`. Only for listeners: loops and pull consumers use `spans.processing`."""
    hooks: "Sequence[ConsumeHook]" = ()
    """Called around each delivery; the first of them is called first."""

    def __post_init__(self) -> None:
        check_types(self, besides=("start_from", "hooks"))
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
        if self.offsets_keep_days and not self.offsets_keep_days >= 1:
            raise UsageError(
                f"offsets_keep_days is {self.offsets_keep_days}; it must be at least 1, or 0 to "
                "keep the offsets without limit"
            )
        if self.offset_store is not None:
            checked_store(self.offset_store)
        if self.hooks:
            from tianzhou.client.hooks import ConsumeHook, checked_hooks

            checked_hooks(self.hooks, ConsumeHook)
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
