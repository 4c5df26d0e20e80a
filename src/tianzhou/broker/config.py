"""Settings of the broker, with RocketMQ's property names as aliases."""

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from tianzhou.base.errors import UsageError
from tianzhou.base.nameserver_addresses import split_list
from tianzhou.base.settings import setting
from tianzhou.broker.names import checked_topic
from tianzhou.wire.signing import checked_credentials

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_PORT_MAX: Final = 65_535


def _named(text: str) -> str:
    """Brokers and clusters have a topic of their name."""
    try:
        return checked_topic(text)
    except UsageError as error:
        raise ValueError(f"{error}; there is a topic of this name") from None


def _host(text: str) -> str:
    if text and not _NAME.fullmatch(text):
        try:
            ipaddress.ip_address(text.strip("[]"))
        except ValueError:
            raise ValueError("must be a host name or an IP address, without a port") from None
    return text


def _addresses(text: str) -> str:
    found = split_list(text)
    for address in found:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) <= _PORT_MAX:
            raise ValueError(f"{address!r} is not host:port; several have ; between them")
        _host(host)
    return ";".join(found)


_KNOWN_BY = "clients and NameServers know the broker by it"
_LISTENS = "the broker listens there already"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    cluster: str = setting(
        "DefaultCluster",
        alias="brokerClusterName",
        read=_named,
        fixed=_KNOWN_BY,
        help="Name of the cluster.",
    )
    name: str = setting(
        "broker-a",
        alias="brokerName",
        read=_named,
        fixed=_KNOWN_BY,
        help="Name of the broker group. `tianzhou broker` generates one from machine and "
        "port if none is set, and keeps it in the data directory.",
    )
    broker_id: int = setting(
        0,
        min=0,
        max=1 << 31,
        alias="brokerId",
        fixed=_KNOWN_BY,
        help="0 is the master of its group.",
    )
    host: str = setting(
        "127.0.0.1", alias="bindAddress", fixed=_LISTENS, help="Address to listen on."
    )
    port: int = setting(
        10911,
        min=0,
        max=65535,
        alias="listenPort",
        fixed=_LISTENS,
        help="Port to listen on; 0 selects a free one.",
    )
    address: str = setting(
        "",
        alias="brokerIP1",
        read=_host,
        fixed=_KNOWN_BY,
        help="Address handed out to clients. Empty: the one through which they came.",
    )
    nameservers: str = setting(
        "",
        alias="namesrvAddr",
        read=_addresses,
        live=True,
        help="NameServers, `host:port` separated by `;`. A host name stands for all of its "
        "addresses and is resolved again with every registration.",
    )
    cluster_credentials: str = setting(
        "",
        alias="innerClientAuthenticationCredentials",
        read=checked_credentials,
        help="The pair that NameServers want registrations signed with, as JSON: "
        '`{"accessKey":"…","secretKey":"…"}`.',
    )
    permission: int = setting(
        6, min=0, max=6, alias="brokerPermission", live=True, help="4 allows reading, 2 writing."
    )
    vip_port: bool = setting(
        True,
        fixed=_LISTENS,
        help="Also listen two ports below, where old clients connect.",
    )

    auto_create_topics: bool = setting(
        True,
        alias="autoCreateTopicEnable",
        live=True,
        help="Create a topic when the first message for it arrives.",
    )
    auto_create_groups: bool = setting(
        True,
        alias="autoCreateSubscriptionGroup",
        live=True,
        help="Create a group when its first consumer connects.",
    )
    default_topic_queues: int = setting(
        8,
        min=1,
        max=1024,
        alias="defaultTopicQueueNums",
        help="Queues of the template for new topics; a producer usually asks for 4 of them.",
    )
    topics_max: int = setting(
        10_000, min=16, max=1_000_000, live=True, help="Maximum number of topics."
    )
    groups_max: int = setting(
        10_000, min=16, max=1_000_000, live=True, help="Maximum number of groups."
    )

    light_queues: bool = setting(
        False,
        alias="enableLmq",
        live=True,
        help="Serve light queues (LMQ): queues that hold messages of other topics. Messages are "
        "put into them if `multi_dispatch` is on too.",
    )
    multi_dispatch: bool = setting(
        False,
        alias="enableMultiDispatch",
        live=True,
        help="Put messages into the light queues that their property `INNER_MULTI_DISPATCH` names. "
        "Without it, or without `light_queues`, the property is ignored.",
    )
    light_queues_max: int = setting(
        20_000,
        min=0,
        max=1_000_000,
        alias="maxLmqConsumeQueueNum",
        live=True,
        help="Maximum number of light queues. Each takes a file and about 1 KB of memory.",
    )

    long_polling: bool = setting(
        True,
        alias="longPollingEnable",
        live=True,
        help="Hold pulls that find no message, for as long as they request.",
    )
    short_polling_ms: int = setting(
        1_000,
        min=1,
        max=60_000,
        alias="shortPollingTimeMills",
        live=True,
        help="How long a pull waits when long polling is off.",
    )
    sql_filters: bool = setting(
        True, alias="enablePropertyFilter", live=True, help="Serve SQL92 subscriptions."
    )
    held_pulls_max: int = setting(
        100_000, min=1, max=10_000_000, help="Maximum number of pulls that wait at the same time."
    )

    fail_fast: bool = setting(
        True,
        alias="brokerFastFailureEnable",
        live=True,
        help="Reject a send with SYSTEM_BUSY, before anything is stored, when it waits longer than "
        "the two settings below, so that its producer sends it to another broker.",
    )
    send_wait_max_ms: int = setting(
        200,
        min=0,
        max=600_000,
        alias="waitTimeMillsInSendQueue",
        live=True,
        help="How long a send may wait in the broker before it is stored; 0 for any time.",
    )
    store_stall_max_ms: int = setting(
        1_000,
        min=0,
        max=600_000,
        alias="osPageCacheBusyTimeOutMills",
        live=True,
        help="Sends are rejected while stored messages have waited longer than this for the disk "
        "or for replicas; 0: never.",
    )

    offsets_save_ms: int = setting(
        5_000,
        min=100,
        max=600_000,
        alias="flushConsumerOffsetInterval",
        live=True,
        help="How often consumer offsets are saved.",
    )
    delay_progress_save_interval_ms: int = setting(
        10_000,
        min=100,
        max=600_000,
        alias="flushDelayOffsetInterval",
        help="How often the progress of delayed messages is saved.",
    )
    register_interval_ms: int = setting(
        30_000,
        min=1_000,
        max=60_000,
        alias="registerNameServerPeriod",
        help="How often the broker registers with its NameServers.",
    )
    client_expiry_ms: int = setting(
        120_000,
        min=1_000,
        max=3_600_000,
        live=True,
        help="Remove a client that has sent no heartbeat for this long.",
    )
    exit_when_fenced: bool = setting(
        True,
        help="End the process, with exit code 70, after a write or sync of the store failed, so "
        "that a supervisor restarts it and the start recovers. Without it the broker stays, serves "
        "reads and rejects sends; /healthz returns 503. Members of a Raft group always exit.",
    )
    consumer_stuck_after_ms: int = setting(
        120_000,
        min=1_000,
        max=86_400_000,
        live=True,
        help="Report a group that commits nothing for this long while messages wait for it.",
    )
    lock_lease_ms: int = setting(
        60_000, min=1_000, max=3_600_000, help="How long a queue stays locked without renewal."
    )

    transaction_timeout_ms: int = setting(
        6_000,
        min=100,
        max=3_600_000,
        alias="transactionTimeOut",
        live=True,
        help="Age of a half message at its first check.",
    )
    transaction_check_ms: int = setting(
        30_000,
        min=100,
        max=3_600_000,
        alias="transactionCheckInterval",
        live=True,
        help="Interval between the checks of an undecided half message.",
    )
    transaction_checks_max: int = setting(
        15,
        min=1,
        max=1_000,
        alias="transactionCheckMax",
        live=True,
        help="Checks of a half message before it is parked.",
    )
    reject_transactions: bool = setting(
        False, alias="rejectTransactionMessage", live=True, help="Reject transactional messages."
    )
    timer_delay_max_s: int = setting(
        3 * 86_400,
        min=1,
        max=365 * 86_400,
        alias="timerMaxDelaySec",
        live=True,
        help="Maximum delay of a timed message.",
    )
    region: str = setting("DefaultRegion", alias="regionId", help="Written into every message.")
    trace: bool = setting(True, alias="traceOn", help="Allow clients to trace messages.")
