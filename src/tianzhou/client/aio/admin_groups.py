"""Consumer groups: listed, made, changed, deleted; who is connected and what they do."""

from collections.abc import Iterable

import msgspec

from tianzhou.client.aio.admin_calls import AdminCalls
from tianzhou.client.aio.admin_topics import Topics
from tianzhou.client.core.admin_results import GroupState
from tianzhou.client.errors import BrokerSystemError, ConsumerNotOnline, RemoteError
from tianzhou.client.options import checked_group
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers_admin import (
    DeleteGroupRequest,
    GetConsumeStatsRequest,
    ProducerGroupRequest,
)
from tianzhou.wire._generated_headers_client import (
    ConsumerGroupRequest,
    GetConsumerRunningInfoRequest,
)
from tianzhou.wire.admin_bodies import RunningInfo, decode_running_info
from tianzhou.wire.heartbeat import (
    ClientConnection,
    ConsumerConnections,
    decode_consumer_connections,
    decode_producer_connections,
)
from tianzhou.wire.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from tianzhou.wire.queues import decode_consume_stats
from tianzhou.wire.tables import (
    SubscriptionGroupConfig,
    decode_group_table,
)

RUNNING_S = 12.0
"""A broker gives a consumer ten seconds to tell its state."""


class Groups:
    """Owner: the event loop."""

    def __init__(self, calls: AdminCalls, topics: Topics) -> None:
        self._calls = calls
        self._topics = topics

    async def all(self) -> list[str]:
        """Names of all consumer groups that any broker has."""
        masters = await self._calls.masters()
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        bodies = await self._calls.ask_each(masters, code)
        tables = (decode_group_table(body).subscription_group_table for body in bodies.values())
        return sorted({name for table in tables for name in table})

    async def show(self, group: str) -> GroupState:
        """Raises GroupNotExist if no broker has it."""
        masters = await self._calls.masters()
        configs = await self._calls.group_configs(group, masters)
        held = {name: masters[name] for name in configs}
        fields = GetConsumeStatsRequest(consumer_group=group)
        bodies = await self._calls.ask_each(held, RequestCode.GET_CONSUME_STATS, fields)
        topics = {
            q.topic for body in bodies.values() for q in decode_consume_stats(body).offset_table
        }
        connected = await self.consumers(group)
        ids = {c.client_id for c in connected.connection_set} if connected else set[str]()
        return GroupState(group, configs, tuple(sorted(topics)), tuple(sorted(ids)))

    # Changing

    async def create(
        self,
        group: str,
        *,
        retry_max_times: int = 16,
        retry_queues: int = 1,
        consume_enabled: bool = True,
        brokers: Iterable[str] | None = None,
    ) -> None:
        """Make a group on all brokers, or these; one that is there already is replaced."""
        config = SubscriptionGroupConfig(
            group_name=checked_group(group),
            retry_max_times=retry_max_times,
            retry_queue_nums=retry_queues,
            consume_enable=consume_enabled,
        )
        await self._put(config, await self._calls.masters(brokers))

    async def update(
        self,
        group: str,
        *,
        retry_max_times: int | None = None,
        retry_queues: int | None = None,
        consume_enabled: bool | None = None,
    ) -> None:
        """Change what is given, on every broker that has the group. Raises GroupNotExist."""
        asked = {
            "retry_max_times": retry_max_times,
            "retry_queue_nums": retry_queues,
            "consume_enable": consume_enabled,
        }
        given = {field: value for field, value in asked.items() if value is not None}
        masters = await self._calls.masters()
        for broker, config in (await self._calls.group_configs(group, masters)).items():
            changed = msgspec.structs.replace(config, attributes={}, **given)
            await self._put(changed, {broker: masters[broker]})

    async def _put(self, config: SubscriptionGroupConfig, masters: dict[str, str]) -> None:
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await self._calls.ask_each(masters, code, body=fastjson.encode(config))

    async def delete(self, group: str, *, keep_offsets: bool = False) -> None:
        """Remove a group everywhere, with the topics of its retries and dead letters."""
        masters = await self._calls.masters()
        fields = DeleteGroupRequest(group_name=group, clean_offset=not keep_offsets)
        await self._calls.ask_each(masters, RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)
        for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
            await self._topics.delete(prefix + group)

    # Who is connected

    async def consumers(self, group: str) -> ConsumerConnections | None:
        """Members that are connected, with what they subscribe to; None: nobody is."""
        masters = await self._calls.masters()
        fields = ConsumerGroupRequest(consumer_group=group)
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        met: dict[str, ClientConnection] = {}
        told: ConsumerConnections | None = None
        for address in masters.values():
            try:
                _, body = await self._calls.ask(address, code, fields)
            except ConsumerNotOnline:
                continue
            told = decode_consumer_connections(body)
            # A consumer is connected to every broker, and is one all the same.
            met |= {client.client_id: client for client in told.connection_set}
        members = tuple(sorted(met.values(), key=lambda client: client.client_id))
        return told and msgspec.structs.replace(told, connection_set=members)

    async def producers(self, group: str, topic: str) -> list[ClientConnection]:
        """Producers of a group that are connected to the brokers of a topic."""
        masters = await self._calls.masters_of(topic)
        fields = ProducerGroupRequest(producer_group=group)
        code = RequestCode.GET_PRODUCER_CONNECTION_LIST
        met: dict[str, ClientConnection] = {}
        for address in masters.values():
            try:
                _, body = await self._calls.ask(address, code, fields)
            except BrokerSystemError:
                continue  # this broker knows none, which is no error of anybody
            told = decode_producer_connections(body).connection_set
            met |= {client.client_id: client for client in told}
        return sorted(met.values(), key=lambda client: client.client_id)

    async def running(self, group: str, client_id: str, *, stacks: bool = False) -> RunningInfo:
        """What a consumer does at the moment; with `stacks` what its threads do. Raises
        RemoteError when no broker knows it."""
        fields = GetConsumerRunningInfoRequest(
            consumer_group=group, client_id=client_id, jstack_enable=stacks
        )
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        refused: RemoteError | None = None
        for address in (await self._calls.masters()).values():
            try:
                _, body = await self._calls.shared.call_ok(
                    address, code, fields.to_ext(), timeout_s=RUNNING_S
                )
            except (ConsumerNotOnline, BrokerSystemError) as error:
                refused = error
            else:
                return decode_running_info(body)
        assert refused is not None, "there is a broker, and it did not answer"
        raise refused
