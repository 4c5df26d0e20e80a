"""Requests from brokers: register, unregister, heartbeat, topic versions, and group members."""

from itertools import count
from typing import Final

from tianzhou.nameserver.addresses import checked_address, is_same_host
from tianzhou.nameserver.brokers import Registration
from tianzhou.nameserver.checks import checked_name, sound_topics
from tianzhou.nameserver.routes import Verdict
from tianzhou.nameserver.state import State, reads_standard_json, reply_with_addresses
from tianzhou.net.rpc import Reply, Request, RequestRejected
from tianzhou.wire._generated_codes import ResponseCode
from tianzhou.wire._generated_headers_nameserver import (
    BrokerHeartbeatRequest,
    GetBrokerMemberGroupRequest,
    QueryDataVersionRequest,
    QueryDataVersionResponse,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    UnregisterBrokerRequest,
)
from tianzhou.wire.fastjson import encode
from tianzhou.wire.names import MASTER_ID, ORDER_TOPIC_CONFIG
from tianzhou.wire.registration import (
    ADDRESS_BY_DIAL,
    EPOCH,
    EPOCH_SEEN,
    EPOCH_TOKEN,
    FREE_ID,
    MASTER_GREETS,
    NAME_TAKEN,
    checksum,
    decode_registration,
    missing_field,
)
from tianzhou.wire.routes import BrokerMemberGroup, BrokerMemberGroupAnswer
from tianzhou.wire.tables import KVTable, RegisterBrokerBody, decode_data_version

_TOKEN_CHARS_MAX: Final = 64
_TIMEOUT_MS_MIN: Final = 1_000
_TIMEOUT_MS_MAX: Final = 3_600_000
"""A broker with a longer timeout would never be removed."""


def register_broker(state: State, request: Request) -> Reply:
    header = RegisterBrokerRequest.from_ext(request.header.ext)
    if header.body_crc32 and header.body_crc32 != checksum(request.body):
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR, "the body does not match its checksum bodyCrc32"
        )
    body = decode_registration(request.body, request.header.version)
    wanted = _registration(state, request, header, body)
    was_known = wanted.address in state.routes.addresses_of(wanted.broker_name).values()
    verdict = state.routes.register(
        wanted,
        connection=request.peer,
        now_s=state.clock.monotonic_s(),
        drops_omitted=state.config.drops_omitted_topics,
    )
    if verdict is Verdict.NOT_ALONE:
        raise RequestRejected(ResponseCode.SYSTEM_ERROR, f"register broker failed: {verdict.value}")
    if verdict is Verdict.TAKEN:
        raise _taken(state, request, wanted)
    state.refusals.registered(wanted.broker_name, wanted.address)
    if verdict is not Verdict.OUTDATED:
        state.missing.registered(
            wanted.broker_name,
            wanted.broker_id,
            wanted.address,
            was_known=was_known,
            has_master=state.routes.master_of(wanted.broker_name) is not None,
        )
    if verdict is not Verdict.AGAIN:
        event = "broker.registered" if verdict is Verdict.FIRST else "broker.outdated"
        state.note(event, _facts(wanted.broker_name, wanted.address, request))
    ext: dict[str, str] = {}
    if verdict is not Verdict.OUTDATED and wanted.broker_id != MASTER_ID:
        ext = _where_master_is(state, request, wanted.broker_name)
    if EPOCH in request.header.ext:
        if verdict is Verdict.OUTDATED:
            ext = _who_came_later(state, request, wanted.broker_name)
        seen = state.routes.epochs.of(wanted.broker_name)
        if seen > wanted.data_version.state_version:
            ext[EPOCH_SEEN] = str(seen)
    ext |= missing_field(state.missing.all())
    orders = state.kv.namespace(ORDER_TOPIC_CONFIG)
    return Reply(ext=ext, body=encode(KVTable(table=dict(orders))) if orders else b"")


def _taken(state: State, request: Request, wanted: Registration) -> RequestRejected:
    name, broker_id = wanted.broker_name, wanted.broker_id
    holder = state.routes.addresses_of(name)[broker_id]
    reason = f"broker {name} with id {broker_id} is registered at {holder} and alive"
    if state.refuse(request, kind="name_taken", reason=reason):
        state.note("broker.refused", _facts(name, wanted.address, request) | {"reason": reason})
    ext = {NAME_TAKEN: holder}
    if broker_id != MASTER_ID and EPOCH in request.header.ext:
        ext[FREE_ID] = _free_id(state, name)
    return RequestRejected(
        ResponseCode.NO_PERMISSION,
        f"{reason}; set another brokerName for this broker, or stop the other one",
        ext,
    )


def _free_id(state: State, broker_name: str) -> str:
    """An id that a broker of this group can use as a slave."""
    taken = state.routes.addresses_of(broker_name)
    return str(next(number for number in count(1) if number not in taken))


def _registration(
    state: State, request: Request, header: RegisterBrokerRequest, body: RegisterBrokerBody
) -> Registration:
    peer = request.peer
    by_dial = request.header.ext.get(ADDRESS_BY_DIAL) == "true" and is_same_host(
        remote=peer.remote, local=peer.local
    )
    if header.broker_id < MASTER_ID:
        raise RequestRejected(
            ResponseCode.INVALID_PARAMETER, f"brokerId {header.broker_id} is negative"
        )
    table = body.topic_config_serialize_wrapper
    names = (
        checked_name(header.broker_name, "brokerName"),
        checked_name(header.cluster_name, "clusterName"),
    )
    timeout_ms = header.heartbeat_timeout_ms or state.config.broker_timeout_ms
    ha_address = header.ha_server_addr
    return Registration(
        cluster=header.cluster_name,
        broker_name=header.broker_name,
        broker_id=header.broker_id,
        address=checked_address(header.broker_addr, may_be_any=by_dial),
        ha_address=checked_address(ha_address, may_be_any=True) if ha_address else "",
        by_dial=by_dial,
        timeout_s=min(max(timeout_ms, _TIMEOUT_MS_MIN), _TIMEOUT_MS_MAX) / 1000,
        acting_master=header.enable_acting_master,
        zone=checked_name(header.zone_name, "zone") if header.zone_name else None,
        data_version=table.data_version,
        greets=EPOCH in request.header.ext,
        epoch_token=request.header.ext.get(EPOCH_TOKEN, "")[:_TOKEN_CHARS_MAX],
        topics=sound_topics(table.topic_config_table, also=names),
    )


def _where_master_is(state: State, request: Request, broker_name: str) -> dict[str, str]:
    """For a slave: the addresses of its master, and whether it runs Tianzhou."""
    master = state.routes.master_of(broker_name)
    if master is None:
        return {}
    answer = RegisterBrokerResponse(
        ha_server_addr=master.ha_address_for(request.peer.local),
        master_addr=master.address_for(request.peer.local),
    )
    return answer.to_ext() | ({MASTER_GREETS: "true"} if master.greets else {})


def _who_came_later(state: State, request: Request, broker_name: str) -> dict[str, str]:
    """For a replaced master: its successor, and an id that it can use as a slave. The successor may
    be down; it restarts, or an operator promotes another broker."""
    master = state.routes.master_of(broker_name)
    epoch = max(
        state.routes.epochs.of(broker_name),
        master.data_version.state_version if master is not None else 0,
    )
    return _where_master_is(state, request, broker_name) | {
        EPOCH: str(epoch),
        FREE_ID: _free_id(state, broker_name),
    }


def unregister_broker(state: State, request: Request) -> Reply:
    header = UnregisterBrokerRequest.from_ext(request.header.ext)
    state.missing.unregistered(header.broker_name, header.broker_addr)
    if state.routes.unregister(header.broker_name, header.broker_addr):
        state.note("broker.unregistered", _facts(header.broker_name, header.broker_addr, request))
    return Reply()


def broker_heartbeat(state: State, request: Request) -> Reply:
    header = BrokerHeartbeatRequest.from_ext(request.header.ext)
    state.routes.heard(header.broker_name, header.broker_addr, state.clock.monotonic_s())
    return Reply()


def query_data_version(state: State, request: Request) -> Reply:
    """Whether the broker must send a full registration. If not, the request counts as a
    heartbeat."""
    header = QueryDataVersionRequest.from_ext(request.header.ext)
    known = state.routes.data_version_of(header.broker_name, header.broker_addr)
    is_changed = known is None or known != decode_data_version(request.body)
    if not is_changed:
        state.routes.heard(header.broker_name, header.broker_addr, state.clock.monotonic_s())
    return Reply(
        ext=QueryDataVersionResponse(changed=is_changed).to_ext(),
        body=encode(known) if known is not None else b"",
    )


def get_broker_member_group(state: State, request: Request) -> Reply:
    header = GetBrokerMemberGroupRequest.from_ext(request.header.ext)
    group = BrokerMemberGroup(
        broker_addrs=state.routes.addresses_of(header.broker_name, request.peer.local),
        broker_name=header.broker_name,
        cluster=header.cluster_name,
    )
    return reply_with_addresses(
        BrokerMemberGroupAnswer(broker_member_group=group),
        standard=reads_standard_json(request.header),
    )


def _facts(broker_name: str, address: str, request: Request) -> dict[str, str]:
    return {"broker": broker_name, "address": address, "peer": request.peer.remote}
