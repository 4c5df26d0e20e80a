"""Administration of the broker: settings, state, statistics, manual cleaning, tables for slaves.

The state is one table of text, which `mqadmin clusterList` and `brokerStatus` show. Its names are
RocketMQ's, also where it has two spellings for a thing. There are no thread pools here, so their
queues are empty; what waits instead is shown under them: held pulls for the pull queue, responses
that wait for the disk for the send queue.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

import tianzhou
from tianzhou.base.clock import Clock
from tianzhou.base.kinds import queue_key
from tianzhou.broker.access.cluster_proof import ClusterProof
from tianzhou.broker.runtime_config import RuntimeConfig
from tianzhou.broker.scheduled.timer_progress import TimerProgress
from tianzhou.broker.stats import BUCKETS_MS, DAY, HOUR, MINUTE, Durations, Flow, Stats, Window
from tianzhou.net.rpc import Handler, Reply, Request, RequestRejected
from tianzhou.record.message import MessageView
from tianzhou.store.retention import Cleaning, Hold
from tianzhou.store.store import MessageStore
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_admin import (
    CleaningRequest,
    GetBrokerConfigResponse,
    ViewStatsRequest,
)
from tianzhou.wire.admin_bodies import Acknowledged, BrokerStats, CleaningView, StatsWindow
from tianzhou.wire.codec import VERSION
from tianzhou.wire.names import SCHEDULE_TOPIC
from tianzhou.wire.replication_bodies import LOG_END, TIMERS
from tianzhou.wire.tables import DelayOffsetTable, KVTable

VERSION_NAME: Final = "V5_3_3"
"""What `VERSION` is called; tools show it."""

_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB")
_POOLS: Final = ("send", "pull", "litePull", "query", "ack", "endTransaction")
KEEP_HOURS_MAX: Final = 24 * 365 * 10
"""As for the retention."""
log: Final = logging.getLogger("tianzhou.broker")


@dataclass(slots=True)
class Runtime:
    store: MessageStore
    stats: Stats
    held_pulls: Callable[[], int]
    waiting_answers: Callable[[], int]
    waiting_ms: Callable[[], int]
    """How long the first of them has waited."""
    delay_table: Callable[[], DelayOffsetTable]
    """How far the delivery of each delay level has come."""
    held_pulls_max: int

    def table(self, now_ms: int) -> dict[str, str]:
        self.stats.tick(now_ms)
        return {
            **self._life(now_ms),
            **self._rates(),
            **self._totals(),
            **self._store_state(),
            **self._queues(),
            **self._delays(),
        }

    def _life(self, now_ms: int) -> dict[str, str]:
        return {
            "bootTimestamp": str(self.stats.started_ms),
            "runtime": _span_text(now_ms - self.stats.started_ms),
            "brokerVersion": str(VERSION),
            "brokerVersionDesc": VERSION_NAME,
            "tianzhouVersion": tianzhou.__version__,
            "brokerActive": str(not self.store.is_broken).lower(),
            "startAcceptSendRequestTimeStamp": "0",
        }

    def _rates(self) -> dict[str, str]:
        stats = self.stats
        found, missed = stats.found_rates(), stats.missed_rates()
        transferred = _three(stats.transferred_rates())
        return {
            "putTps": _three(stats.put_rates()),
            "getFoundTps": _three(found),
            "getMissTps": _three(missed),
            "getTotalTps": _three([f + m for f, m in zip(found, missed, strict=True)]),
            "getTransferredTps": transferred,
            "getTransferedTps": transferred,  # how RocketMQ 4 spells it
        }

    def _totals(self) -> dict[str, str]:
        stats = self.stats
        puts, times = stats.puts, stats.put_latency.ranges
        (put_yesterday, got_yesterday), (put_today, got_today) = (
            stats.mornings.yesterday,
            stats.mornings.today,
        )
        return {
            "putMessageTimesTotal": str(puts.count),
            "putMessageSizeTotal": str(puts.size),
            "putMessageAverageSize": str(puts.size / puts.count if puts.count else 0.0),
            "putMessageEntireTimeMax": str(times.longest_ms),
            "putMessageDistributeTime": _ranges(times),
            "putLatency99": str(times.percentile(0.99)),
            "putLatency999": str(times.percentile(0.999)),
            "getMessageEntireTimeMax": str(stats.get_latency.ranges.longest_ms),
            "msgPutTotalYesterdayMorning": str(put_yesterday),
            "msgPutTotalTodayMorning": str(put_today),
            "msgPutTotalTodayNow": str(puts.count),
            "msgGetTotalYesterdayMorning": str(got_yesterday),
            "msgGetTotalTodayMorning": str(got_today),
            "msgGetTotalTodayNow": str(stats.gets.count),
        }

    def _store_state(self) -> dict[str, str]:
        marks = self.store.watermarks
        return {
            "commitLogMinOffset": str(marks.minimum),
            "commitLogMaxOffset": str(marks.appended),
            "dispatchBehindBytes": str(marks.appended - marks.dispatched),
            "dispatchMaxBuffer": "0",
            "remainHowManyDataToFlush": _size_text(marks.appended - marks.flushed),
            "remainHowManyDataToCommit": _size_text(0),
            "remainTransientStoreBufferNumbs": "0",
            "pageCacheLockTimeMills": "0",
            "earliestMessageTimeStamp": str(first_store_time(self.store, marks.minimum)),
            "writeRefusedBecause": self.store.refusal,
            "damagedRecords": str(len(self.store.damaged)),
            "damagedIndexFiles": str(len(self.store.index.damaged) if self.store.index else 0),
            **self._disk(),
        }

    def _disk(self) -> dict[str, str]:
        try:
            usage, parts = self.store.usage, self.store.usages_of_parts()
        except OSError:
            # The directory was moved away, or its disk fails. RocketMQ reports -1 then.
            return {"commitLogDiskRatio": "-1", "consumeQueueDiskRatio": "-1"}
        return {
            "commitLogDirCapacity": (
                f"Total : {_size_text(usage.total)}, Free : {_size_text(usage.free)}."
            ),
            "commitLogDiskRatio": str(usage.used_ratio),
            "consumeQueueDiskRatio": str(parts.get("queues", usage).used_ratio),
            **{f"{part}DiskRatio": str(found.used_ratio) for part, found in parts.items()},
        }

    def _queues(self) -> dict[str, str]:
        table: dict[str, str] = {}
        for pool in _POOLS:
            table[f"{pool}ThreadPoolQueueSize"] = "0"
            table[f"{pool}ThreadPoolQueueCapacity"] = "0"
            table[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
        table |= {
            "sendThreadPoolQueueSize": str(self.waiting_answers()),
            "sendThreadPoolQueueHeadWaitTimeMills": str(self.waiting_ms()),
            "sendsRejectedBusy": str(self.stats.refusals.busy.total()),
            "pullThreadPoolQueueSize": str(self.held_pulls()),
            "pullThreadPoolQueueCapacity": str(self.held_pulls_max),
            "EndTransactionQueueSize": "0",
            "EndTransactionThreadPoolQueueCapacity": "0",
        }
        # Timed messages live in the log and a plain table; nothing is read ahead of its time.
        for name in ("ReadBehind", "OffsetBehind", "CongestNum"):
            table[f"timer{name}"] = "0"
        return table | {"timerEnqueueTps": "0.0", "timerDequeueTps": "0.0"}

    def _delays(self) -> dict[str, str]:
        return {
            f"scheduleMessageOffset_{level}": (
                f"{offset},{self.store.max_offset(queue_key(SCHEDULE_TOPIC, level - 1))}"
            )
            for level, offset in sorted(self.delay_table().offset_table.items())
        }


def _three(rates: list[float]) -> str:
    return " ".join(str(round(rate, 4)) for rate in rates)


def _span_text(ms: int) -> str:
    """As RocketMQ writes it."""
    minutes, seconds = divmod(max(ms, 0) // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _size_text(size: int) -> str:
    if size < 1024:
        return f"{size} B"
    power = min((size.bit_length() - 1) // 10, len(_UNITS))
    return f"{size / 1024**power:.1f} {_UNITS[power - 1]}"


def _ranges(times: Durations) -> str:
    names = [f"<={BUCKETS_MS[0]}ms"]
    names += [f"{low}~{high}ms" for low, high in pairwise(BUCKETS_MS)]
    names.append(f"{BUCKETS_MS[-1]}ms~")
    return " ".join(f"[{name}]:{n}" for name, n in zip(names, times.buckets, strict=True))


class _Statistic(NamedTuple):
    find: Callable[[Stats, str], Flow | None]
    of_size: bool = False


def _topic_puts(stats: Stats, key: str) -> Flow | None:
    return stats.topic_puts.get(key)


def _group_gets(stats: Stats, key: str) -> Flow | None:
    topic, _, group = key.partition("@")
    return stats.group_gets.get((topic, group))


def _send_backs(stats: Stats, key: str) -> Flow | None:
    topic, _, group = key.partition("@")
    return stats.group_send_backs.get((topic, group))


def _all_puts(stats: Stats, _key: str) -> Flow | None:
    return stats.puts


def _all_gets(stats: Stats, _key: str) -> Flow | None:
    return stats.gets


STATISTICS: Final[Mapping[str, _Statistic]] = {
    "TOPIC_PUT_NUMS": _Statistic(_topic_puts),
    "TOPIC_PUT_SIZE": _Statistic(_topic_puts, of_size=True),
    "GROUP_GET_NUMS": _Statistic(_group_gets),
    "GROUP_GET_SIZE": _Statistic(_group_gets, of_size=True),
    "SNDBCK_PUT_NUMS": _Statistic(_send_backs),
    "BROKER_PUT_NUMS": _Statistic(_all_puts),
    "BROKER_GET_NUMS": _Statistic(_all_gets),
}
"""By RocketMQ's names. Keys are a topic, `topic@group`, or the cluster, which is ignored."""


@dataclass(slots=True, kw_only=True)
class AdminBroker:
    runtime_config: RuntimeConfig
    runtime: Runtime
    stats: Stats
    store: MessageStore
    clock: Clock
    timers: Callable[[], TimerProgress]
    """The progress of timers."""
    proof: ClusterProof
    """Authorizes changes to the guarantees of the group."""

    def handlers(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_BROKER_CONFIG: self.change_settings,
            RequestCode.GET_BROKER_CONFIG: self.settings,
            RequestCode.GET_BROKER_RUNTIME_INFO: self.state,
            RequestCode.VIEW_BROKER_STATS_DATA: self.statistic,
            RequestCode.ACKNOWLEDGE_INCIDENTS: self.acknowledge,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.clean_by_hand,
            RequestCode.GET_ALL_DELAY_OFFSET: self.delay_offsets,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self.request_modes,
        }

    def change_settings(self, request: Request) -> Reply:
        changed = self.runtime_config.change(
            request.body, self.clock.now_ms(), before_shared=lambda: self.proof.check(request)
        )
        for key, value in changed.items():
            log.info(
                "setting.changed",
                extra={"setting": key, "value": value, "peer": request.peer.remote},
            )
        return Reply()

    def settings(self, _request: Request) -> Reply:
        version = fastjson.encode(self.runtime_config.version).decode()
        ext = GetBrokerConfigResponse(version=version).to_ext()
        return Reply(ext=ext, body=self.runtime_config.text())

    def state(self, _request: Request) -> Reply:
        table = self.runtime.table(self.clock.now_ms())
        return Reply(body=fastjson.encode(KVTable(table=table)))

    def statistic(self, request: Request) -> Reply:
        asked = ViewStatsRequest.from_ext(request.header.ext)
        now_ms = self.clock.now_ms()
        self.stats.tick(now_ms)
        known = STATISTICS.get(asked.stats_name)
        flow = known.find(self.stats, asked.stats_key) if known else None
        if known is None or flow is None:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR,
                f"there is no statistic {asked.stats_name[:64]} of {asked.stats_key[:256]}",
            )

        def over(window: Window) -> StatsWindow:
            grown = flow.growth(window, now_ms, of_size=known.of_size)
            return StatsWindow(sum=grown.total, tps=grown.per_second, avgpt=grown.per_call)

        body = BrokerStats(stats_minute=over(MINUTE), stats_hour=over(HOUR), stats_day=over(DAY))
        return Reply(body=fastjson.encode(body))

    def acknowledge(self, request: Request) -> Reply:
        """Close the incidents that starts of this broker reported; the response lists them."""
        closed = self.store.incidents.acknowledge(self.clock.now_ms())
        for incident in closed:
            facts = {"kind": incident.kind, "said": incident.text, "peer": request.peer.remote}
            log.info("incident.acknowledged", extra=facts)
        return Reply(
            body=fastjson.encode(
                Acknowledged(acknowledged=tuple(incident.text for incident in closed))
            )
        )

    # Cleaning, as RocketMQ's tools ask for it

    def clean(self, _request: Request) -> Reply:
        """Clean the log and its queues, if that is due."""
        self.store.clean()
        return Reply()

    def clean_by_hand(self, request: Request) -> Reply:
        """Delete expired files now, at any hour."""
        removed = self.store.clean(by_hand=True)
        log.info("log.cleaned", extra={"files": removed, "peer": request.peer.remote})
        return Reply()

    # Tables for slaves and tools

    def delay_offsets(self, _request: Request) -> Reply:
        """The progress of delays; and for Tianzhou's slaves that of timers, and the end of the
        log."""
        timers = msgspec.json.encode(self.timers()).decode()
        ext = {LOG_END: str(self.store.log.end), TIMERS: timers}
        return Reply(ext=ext, body=fastjson.encode(self.runtime.delay_table()))

    def request_modes(self, _request: Request) -> Reply:
        """An empty table: every group pulls."""
        return Reply(body=fastjson.encode({"messageRequestModeMap": {}}))


@dataclass(slots=True, kw_only=True)
class AdminCleaning:
    """Removes old log files for an operator, who sees before which ones.

    The master, or leader, knows what its replicas still need. It decides for all of them: another
    member removes files only below the offset that the master named.
    """

    store: MessageStore
    clock: Clock
    proof: ClusterProof
    hold: Callable[[], Hold | None]
    """What another replica still needs."""
    may_administer: Callable[[str], None]
    unused_topics: Callable[[], list[str]]

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.VIEW_CLEANING: self.view, RequestCode.CLEAN_LOG: self.clean}

    def view(self, request: Request) -> Reply:
        _, body = self._decide(request)
        return Reply(body=fastjson.encode(body))

    def clean(self, request: Request) -> Reply:
        self.proof.check(request)
        cleaning, body = self._decide(request)
        log.info(
            "log.cleaned",
            extra={
                "files": cleaning.files,
                "until": cleaning.until,
                "keep_hours": body.keep_hours,
                "peer": request.peer.remote,
            },
        )
        self.store.remove_oldest(cleaning.files)
        return Reply(body=fastjson.encode(body))

    def _decide(self, request: Request) -> tuple[Cleaning, CleaningView]:
        asked, store = CleaningRequest.from_ext(request.header.ext), self.store
        hours = asked.keep_hours
        if hours is not None and not 0 <= hours <= KEEP_HOURS_MAX:
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"keepHours must be from 0 to {KEEP_HOURS_MAX}, got {hours}",
            )
        hold = self.hold()
        holds = [] if hold is None else [hold]
        if asked.below is None:
            self.may_administer(RequestCode(request.header.code).name)
        else:
            holds.append(Hold(asked.below, "the master keeps them"))
        found = store.retention.cleaning(now_ms=self.clock.now_ms(), keep_hours=hours, holds=holds)
        return found, CleaningView(
            begin=store.log.min_offset,
            files=found.files,
            held=found.held,
            held_because=found.reason,
            keep_hours=store.config.retention_hours if hours is None else hours,
            oldest_ms=first_store_time(store, found.until),
            size=found.files * store.log.file_bytes,
            unused_topics=tuple(self.unused_topics()),
            until=found.until,
        )


def first_store_time(store: MessageStore, offset: int) -> int:
    """Store time of the message at this offset of the log; -1 if there is none."""
    with store.record_at(offset) as found:
        for span in found.spans:
            return MessageView(span).store_timestamp
    return -1
