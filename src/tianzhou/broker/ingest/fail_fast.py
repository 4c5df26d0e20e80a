"""Fail fast: sends that would wait too long are rejected with SYSTEM_BUSY before they are stored.

A producer that gets no response in time sends its message to another broker; if the first one
stores it later nevertheless, there are two. A producer that is rejected early has time to send
elsewhere, and nothing is stored twice. A send is rejected if

- it has waited longer than `send_wait_max_ms` in this broker (see `net/arrivals.py`): for the turn
  of its connection, in the kernel, or because the broker stood still; or
- messages that were stored before it have waited longer than `store_stall_max_ms` for the disk or
  for replicas, and it would wait behind them.

Asked once for the sends of one read. One-way sends are never rejected: no producer waits for them,
and none would send them again.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from tianzhou.base.clock import Clock
from tianzhou.broker.alarms import Alarm
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.stats import Stats
from tianzhou.net.rpc import RequestRejected
from tianzhou.replication.durability import Outcome
from tianzhou.wire._generated_codes import ResponseCode

ALARM_S: Final = 60.0
"""The alarm ends when no send was rejected for this long."""
CAUSES: Final = ("waited", "disk", "replicas")

Stall = Callable[[float], tuple[float, Outcome] | None]


class Rejection(NamedTuple):
    """Why sends are rejected now."""

    cause: str
    """The label in metrics, one of `CAUSES`."""
    reason: str

    @property
    def response(self) -> RequestRejected:
        """It starts as in RocketMQ, where clients and scripts look for the words in brackets."""
        tag = "TIMEOUT_CLEAN_QUEUE" if self.cause == "waited" else "PCBUSY_CLEAN_QUEUE"
        return RequestRejected(
            ResponseCode.SYSTEM_BUSY,
            f"[{tag}]broker busy: {self.reason}; nothing was stored; send to another broker now, "
            "or here again in a second",
        )


class FailFast:
    """Owner: the broker loop."""

    def __init__(self, config: BrokerConfig, stall: Stall, stats: Stats, clock: Clock) -> None:
        """`stall` is that of the log writer."""
        self._stall = stall
        self._stats = stats
        self._clock = clock
        self._began_ms = self._ended_ms = 0
        """When the first and the last of the sends were rejected that the alarm is about."""
        self._count = 0
        self._last_reason = ""
        self.adopt(config)

    def adopt(self, config: BrokerConfig) -> None:
        """Apply settings that changed while the broker runs."""
        self._name = config.name
        self._wait_max_ms = config.send_wait_max_ms if config.fail_fast else 0
        self._stall_max_ms = config.store_stall_max_ms if config.fail_fast else 0

    def rejection(self, waited_s: float) -> Rejection | None:
        """Why sends that have waited this long are rejected; None if they are accepted."""
        limit_ms = self._wait_max_ms
        if limit_ms and waited_s * 1000 > limit_ms:
            return Rejection(
                "waited",
                f"the send has waited {waited_s * 1000:.0f} ms, longer than send_wait_max_ms "
                f"(waitTimeMillsInSendQueue) = {limit_ms}",
            )
        limit_ms = self._stall_max_ms
        if limit_ms and (stalled := self._stall(limit_ms / 1000)) is not None:
            return _stalled(*stalled, limit_ms)
        return None

    def rejected(self, why: Rejection, count: int) -> None:
        """Count sends that were rejected."""
        self._stats.refusals.busy[why.cause] += count
        now_ms = self._clock.now_ms()
        if not self._is_recent(now_ms):
            self._began_ms, self._count = now_ms, 0
        self._ended_ms = now_ms
        self._count += count
        self._last_reason = why.reason

    def _is_recent(self, now_ms: int) -> bool:
        return bool(self._count) and now_ms - self._ended_ms < ALARM_S * 1000

    def alarms(self) -> Iterator[Alarm]:
        """An alarm while sends are rejected, and for a minute afterwards."""
        if self._is_recent(self._clock.now_ms()):
            yield Alarm(
                kind="sends_rejected_busy",
                text=f"it rejected {self._count} sends with SYSTEM_BUSY; the last one because "
                f"{self._last_reason}",
                remedy="producers send to other brokers meanwhile; if it lasts, look for a slow "
                "disk, a slow replica or too much load: tianzhou broker status "
                f"{self._name} --all",
                since_ms=self._began_ms,
            )


def _stalled(waited_s: float, outcome: Outcome, limit_ms: int) -> Rejection:
    is_disk = outcome is Outcome.FLUSH_DISK_TIMEOUT
    return Rejection(
        "disk" if is_disk else "replicas",
        f"messages that are stored have waited {waited_s * 1000:.0f} ms for "
        f"{'the disk' if is_disk else 'replicas'}, longer than store_stall_max_ms "
        f"(osPageCacheBusyTimeOutMills) = {limit_ms}",
    )
