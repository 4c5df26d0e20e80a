"""Routes of topics, as a name server sends them to clients.

Written as standard JSON with everything but ASCII escaped, which all clients read; the bare keys
of old Java name servers are read as well. Fields are in the order of their names, as Java
writes them.
"""

from typing import Final

import msgspec

from tianzhou.base.kinds import Bytes
from tianzhou.wire.fastjson import BodyReader, encode, escape_non_ascii


class BrokerData(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The addresses of one broker name by broker id; 0 is the master."""

    broker_addrs: dict[int, str] = {}
    broker_name: str
    cluster: str = ""
    enable_acting_master: bool = False
    zone_name: str | msgspec.UnsetType = msgspec.UNSET


class QueueData(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How many queues one broker has for the topic.

    The flag has two spellings: up to 4.8, and in Go to this day, it is `topicSynFlag`. Both are
    written; of both the one that a peer filled in is believed.
    """

    broker_name: str
    perm: int = 0
    read_queue_nums: int = 0
    topic_syn_flag: int = 0
    topic_sys_flag: int = 0
    write_queue_nums: int = 0

    def __post_init__(self) -> None:
        flag = self.topic_sys_flag or self.topic_syn_flag
        # The only change in its life, before anybody has seen it.
        msgspec.structs.force_setattr(self, "topic_sys_flag", flag)
        msgspec.structs.force_setattr(self, "topic_syn_flag", flag)


class TopicRouteData(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Response to GET_ROUTEINFO_BY_TOPIC."""

    broker_datas: tuple[BrokerData, ...] = ()
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | msgspec.UnsetType = msgspec.UNSET
    queue_datas: tuple[QueueData, ...] = ()


class ClusterTable(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Response to GET_BROKER_CLUSTER_INFO: brokers by name, broker names by cluster."""

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, list[str]] = {}


class BrokerMemberGroup(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All addresses of one broker name, for the brokers themselves."""

    broker_addrs: dict[int, str] = {}
    broker_name: str = ""
    cluster: str = ""


class BrokerMemberGroupAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Response to GET_BROKER_MEMBER_GROUP."""

    broker_member_group: BrokerMemberGroup


_ROUTE: Final = BodyReader(TopicRouteData)
_CLUSTER: Final = BodyReader(ClusterTable)


def decode_route(data: Bytes) -> TopicRouteData:
    return _ROUTE.read(data)


def decode_cluster_table(data: Bytes) -> ClusterTable:
    return _CLUSTER.read(data)


def encode_routes(body: TopicRouteData | ClusterTable | BrokerMemberGroupAnswer) -> bytes:
    return escape_non_ascii(encode(body))
