"""Consumer groups: list, create, update and delete them; inspect their members."""

from collections.abc import Iterable

import msgspec

from tianzhou.client.admin.calls import AdminCalls
from tianzhou.client.admin.topics import Topics
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
"""A broker gives a consumer ten seconds to report its state."""


class Groups:
    """Consumer groups: list, inspect, create, update and delete them (`admin.groups`).

        await admin.groups.create("billing", retry_max_times=5)
        print((await admin.groups.show("billing")).topics)

    Owner: the event loop.
    """

    def __init__(self, calls: AdminCalls, topics: Topics) -> None:
        self._calls = calls
        self._topics = topics

    async def all(self) -> list[str]:
        """Return the names of all consumer groups on any broker, sorted. Raises NoRoute."""
        masters = await self._calls.masters()
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        bodies = await self._calls.ask_each(masters, code)
        tables = (decode_group_table(body).subscription_group_table for body in bodies.values())
        return sorted({name for table in tables for name in table})

    async def show(self, group: str) -> GroupState:
        """Return the settings, topics and connected members of a group.

        Raises GroupNotExist if no broker has the group.
        """
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
        """Create a group on all brokers, or on those named; an existing group is replaced.

        A message becomes a dead letter after `retry_max_times` retries. With `consume_enabled` off,
        the group cannot consume. Raises UsageError for an invalid name, and BrokerNotFound.
        """
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
        """Change the given settings on every broker that has the group. Raises GroupNotExist."""
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
        """Delete a group on every broker, with its retry topic and its dead letters.

        With `keep_offsets`, a group created later under the same name continues where this one
        stopped. Raises RemoteError if a broker rejects the request.
        """
        masters = await self._calls.masters()
        fields = DeleteGroupRequest(group_name=group, clean_offset=not keep_offsets)
        await self._calls.ask_each(masters, RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)
        for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
            await self._topics.delete(prefix + group)

    # Connected clients

    async def consumers(self, group: str) -> ConsumerConnections | None:
        """Return the connected members and their subscriptions; None if no member is connected."""
        masters = await self._calls.masters()
        fields = ConsumerGroupRequest(consumer_group=group)
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        met: dict[str, ClientConnection] = {}
        connections: ConsumerConnections | None = None
        for address in masters.values():
            try:
                _, body = await self._calls.ask(address, code, fields)
            except ConsumerNotOnline:
                continue
            connections = decode_consumer_connections(body)
            # A consumer is connected to every broker, but counts once.
            met |= {client.client_id: client for client in connections.connection_set}
        members = tuple(sorted(met.values(), key=lambda client: client.client_id))
        return connections and msgspec.structs.replace(connections, connection_set=members)

    async def producers(self, group: str, topic: str) -> list[ClientConnection]:
        """Return the producers of a group that are connected to the brokers of a topic.

        Raises TopicNotFound.
        """
        masters = await self._calls.masters_of(topic)
        fields = ProducerGroupRequest(producer_group=group)
        code = RequestCode.GET_PRODUCER_CONNECTION_LIST
        met: dict[str, ClientConnection] = {}
        for address in masters.values():
            try:
                _, body = await self._calls.ask(address, code, fields)
            except BrokerSystemError:
                continue  # this broker has no producer of the group
            connections = decode_producer_connections(body).connection_set
            met |= {client.client_id: client for client in connections}
        return sorted(met.values(), key=lambda client: client.client_id)

    async def running(self, group: str, client_id: str, *, stacks: bool = False) -> RunningInfo:
        """Return the state of a consumer, with `stacks` including the stacks of its threads.

        Raises ConsumerNotOnline or another RemoteError if the consumer is not connected to any
        broker.
        """
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
        assert refused is not None, "there is at least one broker, and each one raised an error"
        raise refused
