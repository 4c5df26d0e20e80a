"""Administration of the broker: settings, state, statistics, manual cleaning, tables for slaves."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from tianzhou.base.clock import Clock
from tianzhou.broker.access.cluster_proof import ClusterProof
from tianzhou.broker.observe.runtime_info import Runtime
from tianzhou.broker.runtime_config import RuntimeConfig
from tianzhou.broker.scheduled.timer_progress import TimerProgress
from tianzhou.broker.stats import DAY, HOUR, MINUTE, Flow, Stats, Window
from tianzhou.net.rpc import Handler, Reply, Request, RequestRejected
from tianzhou.store.store import MessageStore
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_admin import GetBrokerConfigResponse, ViewStatsRequest
from tianzhou.wire.admin_bodies import Acknowledged, BrokerStats, StatsWindow
from tianzhou.wire.replication_bodies import LOG_END, TIMERS
from tianzhou.wire.tables import KVTable

log: Final = logging.getLogger("tianzhou.broker")


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

    # Cleaning

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
