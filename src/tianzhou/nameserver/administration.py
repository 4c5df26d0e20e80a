"""Requests of administrators: key-value pairs, write permissions, topics, settings."""

import tianzhou
from tianzhou.base.errors import UsageError
from tianzhou.base.settings import SettingsError
from tianzhou.nameserver import config
from tianzhou.nameserver.checks import checked_topic_name, is_sound
from tianzhou.nameserver.state import State, reply_with
from tianzhou.net.rpc import Reply, Request, RequestRejected
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire._generated_headers_nameserver import (
    AddWritePermResponse,
    BrokerNameRequest,
    DeleteKvConfigRequest,
    DeleteTopicInNameserverRequest,
    GetKvConfigRequest,
    GetKvConfigResponse,
    GetKvListRequest,
    PutKvConfigRequest,
    RegisterTopicRequest,
    WipeWritePermResponse,
)
from tianzhou.wire.nameserver_bodies import NameServerView
from tianzhou.wire.registration import REFUSED_BROKERS
from tianzhou.wire.routes import QueueData, decode_route
from tianzhou.wire.tables import KVTable

# Values by key


def put_kv_config(state: State, request: Request) -> Reply:
    header = PutKvConfigRequest.from_ext(request.header.ext)
    if header.namespace == REFUSED_BROKERS:
        raise RequestRejected(ResponseCode.INVALID_PARAMETER, f"{REFUSED_BROKERS} can only be read")
    state.kv.put(header.namespace, header.key, header.value)
    _note(state, request, "kv.put", namespace=header.namespace, key=header.key)
    return Reply()


def get_kv_config(state: State, request: Request) -> Reply:
    header = GetKvConfigRequest.from_ext(request.header.ext)
    value = state.kv.get(header.namespace, header.key)
    if value is None:
        raise RequestRejected(
            ResponseCode.QUERY_NOT_FOUND,
            f"No config item, Namespace: {header.namespace} Key: {header.key}",
        )
    return Reply(ext=GetKvConfigResponse(value=value).to_ext())


def delete_kv_config(state: State, request: Request) -> Reply:
    header = DeleteKvConfigRequest.from_ext(request.header.ext)
    state.kv.delete(header.namespace, header.key)
    _note(state, request, "kv.deleted", namespace=header.namespace, key=header.key)
    return Reply()


def get_kv_list(state: State, request: Request) -> Reply:
    header = GetKvListRequest.from_ext(request.header.ext)
    found = (
        {
            row.name: f"{row.address}, from {row.peer}: {row.reason}"
            for row in state.refusals.current(state.clock.monotonic_s())
        }
        or None
        if header.namespace == REFUSED_BROKERS
        else state.kv.namespace(header.namespace)
    )
    if found is None:
        raise RequestRejected(
            ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace}"
        )
    return reply_with(KVTable(table=dict(found)))


# Missing brokers


def look(state: State, _: Request) -> Reply:
    found = NameServerView(
        missing=tuple(state.missing.all()),
        now_ms=state.clock.now_ms(),
        refused=tuple(state.refusals.current(state.clock.monotonic_s())),
        version=tianzhou.__version__,
    )
    return reply_with(found)


def forget_broker(state: State, request: Request) -> Reply:
    """Forget a missing broker that was retired."""
    name = BrokerNameRequest.from_ext(request.header.ext).broker_name
    if not state.missing.forget(name):
        raise RequestRejected(
            ResponseCode.QUERY_NOT_FOUND, f"broker {name[:300]!r} is not missing; nothing to forget"
        )
    _note(state, request, "broker.forgotten", broker=name)
    return Reply()


# Write permissions


def wipe_write_perm(state: State, request: Request) -> Reply:
    header = BrokerNameRequest.from_ext(request.header.ext)
    count = state.routes.topics.wipe_write(header.broker_name)
    _note(state, request, "write.wiped", broker=header.broker_name, topics=str(count))
    return Reply(ext=WipeWritePermResponse(wipe_topic_count=count).to_ext())


def add_write_perm(state: State, request: Request) -> Reply:
    header = BrokerNameRequest.from_ext(request.header.ext)
    count = state.routes.topics.add_write(header.broker_name)
    _note(state, request, "write.added", broker=header.broker_name, topics=str(count))
    return Reply(ext=AddWritePermResponse(add_topic_count=count).to_ext())


# Topics


def delete_topic(state: State, request: Request) -> Reply:
    """Delete a topic from all brokers, or from those of one cluster. A broker that still has it
    registers it again."""
    header = DeleteTopicInNameserverRequest.from_ext(request.header.ext)
    topics = state.routes.topics
    if header.cluster_name:
        for broker in state.routes.names_in(header.cluster_name):
            topics.drop(header.topic, broker)
    else:
        topics.drop_topic(header.topic)
    _note(state, request, "topic.dropped", topic=header.topic, cluster=header.cluster_name or "")
    return Reply()


def register_topic(state: State, request: Request) -> Reply:
    header = RegisterTopicRequest.from_ext(request.header.ext)
    rows = decode_route(request.body).queue_datas if request.body else ()
    _check_rows(state, header.topic, rows)
    for row in rows:
        state.routes.topics.put(header.topic, row)
    _note(state, request, "topic.registered", topic=header.topic)
    return Reply()


def _check_rows(state: State, topic: str, rows: tuple[QueueData, ...]) -> None:
    try:
        checked_topic_name(topic)
    except UsageError as error:
        raise RequestRejected(ResponseCode.INVALID_PARAMETER, str(error)) from None
    for row in rows:
        if not state.routes.has_broker(row.broker_name) or not is_sound(row):
            raise RequestRejected(
                ResponseCode.INVALID_PARAMETER,
                f"broker {row.broker_name[:300]!r} is not registered, or its row is not valid",
            )
        state.routes.topics.check_room(row.broker_name, [topic])


# Settings


def get_config(state: State, _: Request) -> Reply:
    return Reply(body=config.write_properties(state.config).encode())


def update_config(state: State, request: Request) -> Reply:
    """Apply all changes of settings, or none of them."""
    try:
        values = config.read_properties(request.body.decode())
    except UnicodeDecodeError:
        raise RequestRejected(
            ResponseCode.INVALID_PARAMETER, "the body is not UTF-8 text"
        ) from None
    locked = config.locked(values)
    if locked:
        raise RequestRejected(
            ResponseCode.NO_PERMISSION,
            f"can not update config {', '.join(locked)[:1000]} while the NameServer runs",
        )
    try:
        state.config = config.changed(state.config, values)
    except SettingsError as error:
        raise RequestRejected(ResponseCode.INVALID_PARAMETER, str(error)[:2000]) from None
    _note(state, request, "config.changed", **values)
    return Reply()


def _note(state: State, request: Request, event: str, **facts: str) -> None:
    state.note(event, {**facts, "peer": request.peer.remote})
