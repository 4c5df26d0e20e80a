"""Requests of clients: routes, clusters and lists of topics; and the table of all handlers."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeAlias

from msgspec import UNSET
from msgspec.structs import replace

from tianzhou.nameserver import administration, registrations
from tianzhou.nameserver.routes import in_zone
from tianzhou.nameserver.state import (
    State,
    reads_standard_json,
    reply_with,
    reply_with_addresses,
)
from tianzhou.net.rpc import Handler, Reply, Request, RequestRejected
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire._generated_headers_nameserver import GetRouteRequest, GetTopicsByClusterRequest
from tianzhou.wire.names import ORDER_TOPIC_CONFIG
from tianzhou.wire.tables import TopicList

_UNIT: Final = 1
_UNIT_SUBSCRIBED: Final = 2
_TOPIC_SHOWN_MAX: Final = 255


def get_route(state: State, request: Request) -> Reply:
    header = GetRouteRequest.from_ext(request.header.ext)
    config = state.config
    if config.waits_for_service and _up_s(state) < config.wait_for_service_s:
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, "name server not ready")
    route = state.routes.route_of(
        header.topic, dialled=request.peer.local, acting_master=config.acting_master_enabled
    )
    if route is None:
        raise RequestRejected(ResponseCode.TOPIC_NOT_EXIST, _why_no_route(state, header.topic))
    if config.order_config_enabled:
        order = state.kv.get(ORDER_TOPIC_CONFIG, header.topic)
        route = replace(route, order_topic_conf=order if order is not None else UNSET)
    if header.zone_mode and header.zone_name:
        route = in_zone(route, header.zone_name)
    standard = bool(header.accept_standard_json_only) or reads_standard_json(request.header)
    return reply_with_addresses(route, standard=standard)


def _up_s(state: State) -> float:
    return state.clock.monotonic_s() - state.started_s


def _why_no_route(state: State, topic: str) -> str:
    brokers = state.routes.broker_count
    remark = f"No topic route info in name server for the topic: {topic[:_TOPIC_SHOWN_MAX]}. "
    if not brokers:
        return remark + "No broker is registered here: is one running with this NameServer address?"
    return remark + (
        f"None of the {brokers} brokers registered here has it: create it with updateTopic, or "
        "send to it if its brokers may create topics"
    )


def get_cluster_table(state: State, request: Request) -> Reply:
    return reply_with_addresses(
        state.routes.cluster_table(request.peer.local),
        standard=reads_standard_json(request.header),
    )


def get_all_topics(state: State, _: Request) -> Reply:
    if not state.config.topic_list_enabled:
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, "disable: enableTopicList is false")
    return reply_with(TopicList(topic_list=state.routes.topics.names()))


def get_topics_by_cluster(state: State, request: Request) -> Reply:
    header = GetTopicsByClusterRequest.from_ext(request.header.ext)
    brokers = state.routes.names_in(header.cluster)
    return reply_with(TopicList(topic_list=state.routes.topics.names_of(brokers)))


def get_system_topics(state: State, request: Request) -> Reply:
    """List the topics named after clusters and brokers, and a broker that knows the others."""
    table = state.routes.cluster_table(request.peer.local)
    names: dict[str, None] = {}
    for cluster, brokers in table.cluster_addr_table.items():
        names |= dict.fromkeys((cluster, *brokers))
    addresses = (a for b in table.broker_addr_table.values() for a in b.broker_addrs.values())
    return reply_with(TopicList(topic_list=tuple(names), broker_addr=next(addresses, UNSET)))


def get_unit_topics(state: State, _: Request) -> Reply:
    return _flagged(state, lambda flag: flag & _UNIT != 0)


def get_unit_subscribed_topics(state: State, _: Request) -> Reply:
    return _flagged(state, lambda flag: flag & _UNIT_SUBSCRIBED != 0)


def get_unit_subscribed_plain_topics(state: State, _: Request) -> Reply:
    return _flagged(state, lambda flag: flag & (_UNIT | _UNIT_SUBSCRIBED) == _UNIT_SUBSCRIBED)


def _flagged(state: State, wanted: Callable[[int], bool]) -> Reply:
    return reply_with(TopicList(topic_list=state.routes.topics.names_with(wanted)))


StateHandler: TypeAlias = Callable[[State, Request], Reply]

READS: Final[Mapping[RequestCode, StateHandler]] = {
    RequestCode.GET_KV_CONFIG: administration.get_kv_config,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: get_route,
    RequestCode.GET_BROKER_CLUSTER_INFO: get_cluster_table,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: get_all_topics,
    RequestCode.GET_KVLIST_BY_NAMESPACE: administration.get_kv_list,
    RequestCode.GET_TOPICS_BY_CLUSTER: get_topics_by_cluster,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: get_system_topics,
    RequestCode.GET_UNIT_TOPIC_LIST: get_unit_topics,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: get_unit_subscribed_topics,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: get_unit_subscribed_plain_topics,
    RequestCode.GET_NAMESRV_CONFIG: administration.get_config,
    RequestCode.GET_BROKER_MEMBER_GROUP: registrations.get_broker_member_group,
    RequestCode.VIEW_NAMESERVER: administration.look,
}
"""Read requests, which every client may send."""

CHANGES: Final[Mapping[RequestCode, StateHandler]] = {
    RequestCode.PUT_KV_CONFIG: administration.put_kv_config,
    RequestCode.DELETE_KV_CONFIG: administration.delete_kv_config,
    RequestCode.REGISTER_BROKER: registrations.register_broker,
    RequestCode.UNREGISTER_BROKER: registrations.unregister_broker,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: administration.wipe_write_perm,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: administration.delete_topic,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: administration.register_topic,
    RequestCode.UPDATE_NAMESRV_CONFIG: administration.update_config,
    RequestCode.QUERY_DATA_VERSION: registrations.query_data_version,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: administration.add_write_perm,
    RequestCode.BROKER_HEARTBEAT: registrations.broker_heartbeat,
    RequestCode.FORGET_BROKER: administration.forget_broker,
}
"""Requests that need admission. Version queries and heartbeats keep a broker alive."""

HANDLERS: Final[Mapping[RequestCode, StateHandler]] = {**READS, **CHANGES}


def handlers_of(state: State) -> dict[int, Handler]:
    """All handlers by request code, for a router."""
    reads: dict[int, Handler] = {code: partial(read, state) for code, read in READS.items()}
    return reads | {code: partial(_change, state, change) for code, change in CHANGES.items()}


def _change(state: State, handler: StateHandler, request: Request) -> Reply:
    state.admit(request)
    return handler(state, request)
