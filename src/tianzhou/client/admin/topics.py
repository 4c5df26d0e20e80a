"""Topics: list, inspect, create, update, shrink and delete them."""

import asyncio
from collections.abc import Iterable
from typing import Final

import msgspec

from tianzhou.base.errors import UsageError
from tianzhou.client.admin.calls import AdminCalls
from tianzhou.client.core.admin_results import Shrinking, TopicQueue, TopicState
from tianzhou.client.errors import ClientError, NoRoute, RequestCodeNotSupported, TopicNotFound
from tianzhou.record.names import checked_topic
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers_admin import (
    CreateTopicRequest,
    GetConsumeStatsRequest,
    GetTopicConfigRequest,
    TopicRequest,
)
from tianzhou.wire._generated_headers_nameserver import DeleteTopicInNameserverRequest
from tianzhou.wire.admin_bodies import decode_group_list
from tianzhou.wire.names import DEAD_LETTER_PREFIX, DEFAULT_TOPIC, RETRY_PREFIX
from tianzhou.wire.queues import decode_consume_stats, decode_topic_stats
from tianzhou.wire.tables import (
    TopicConfig,
    decode_topic_config,
    decode_topic_list,
    decode_topic_table,
)

ROUTE_S: Final = 5.0
"""How long the route of a new topic may take to appear; brokers register a new topic at once."""
_ROUTE_POLL_S: Final = 0.02


class Topics:
    """Topics: list, inspect, create, update, shrink and delete them (`admin.topics`).

        await admin.topics.create("orders", queues=8)
        print((await admin.topics.show("orders")).groups)

    Owner: the event loop.
    """

    def __init__(self, calls: AdminCalls) -> None:
        self._calls = calls

    async def all(self, *, internal: bool = False) -> list[str]:
        """Return the names of all topics, sorted.

        With `internal`, system topics and the topics of retries and dead letters are included.
        Raises RemoteError, and NoRoute if no broker is registered.
        """
        names = set(await self._calls.topics())
        if not internal:
            masters = await self._calls.masters()
            code = RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER
            for data in (await self._calls.ask_each(masters, code)).values():
                names -= set(decode_topic_list(data).topic_list)
            names = {
                name for name in names if not name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
            }
        return sorted(names)

    async def show(self, name: str) -> TopicState:
        """Return the settings, queues and consumer groups of a topic. Raises TopicNotFound."""
        masters = await self._calls.masters_of(name)
        fields = TopicRequest(topic=name)
        configs, stats, groups = await asyncio.gather(
            self._configs(name, masters),
            self._calls.ask_each(masters, RequestCode.GET_TOPIC_STATS_INFO, fields),
            self._calls.ask_each(masters, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, fields),
        )
        stats_of_brokers = [decode_topic_stats(body) for body in stats.values()]
        queues = [
            TopicQueue(queue, row.min_offset, row.max_offset, row.last_update_timestamp)
            for one in stats_of_brokers
            for queue, row in one.offset_table.items()
        ]
        queues.sort(key=lambda row: (row.queue.broker_name, row.queue.queue_id))
        readers = {g for body in groups.values() for g in decode_group_list(body).group_list}
        rate = sum(one.topic_put_tps for one in stats_of_brokers)
        return TopicState(name, configs, tuple(queues), rate, tuple(sorted(readers)))

    async def _configs(self, name: str, masters: dict[str, str]) -> dict[str, TopicConfig]:
        fields = GetTopicConfigRequest(topic=name)
        try:
            bodies = await self._calls.ask_each(masters, RequestCode.GET_TOPIC_CONFIG, fields)
        except RequestCodeNotSupported:
            # RocketMQ 4 cannot return the settings of a single topic.
            bodies = await self._calls.ask_each(masters, RequestCode.GET_ALL_TOPIC_CONFIG)
            tables = {broker: decode_topic_table(body) for broker, body in bodies.items()}
            return {
                broker: table.topic_config_table[name]
                for broker, table in tables.items()
                if name in table.topic_config_table
            }
        return {broker: decode_topic_config(body) for broker, body in bodies.items()}

    # Changing

    async def create(
        self,
        name: str,
        *,
        queues: int = 8,
        brokers: Iterable[str] | None = None,
        order: bool = False,
        message_type: str | None = None,
    ) -> None:
        """Create a topic on all brokers, or on those named; an existing topic is updated.

        Clients can use the topic when this returns. `order` marks a topic for ordered messages.
        `message_type` is NORMAL, FIFO, DELAY, TRANSACTION or MIXED; None leaves it unspecified.

        Raises UsageError for an invalid name or fewer than one queue, BrokerNotFound, and NoRoute
        if the name server does not know the topic after a few seconds.
        """
        if queues < 1:
            raise UsageError(f"topic {name} can't have {queues} queues; give at least 1")
        topic = TopicConfig(
            topic_name=checked_topic(name),
            read_queue_nums=queues,
            write_queue_nums=queues,
            order=order,
            attributes={"+message.type": message_type} if message_type else {},
        )
        masters = await self._calls.masters(brokers)
        await self._put(topic, masters)
        await self._wait_for_route(name, set(masters))

    async def update(
        self,
        name: str,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: int | None = None,
        order: bool | None = None,
    ) -> None:
        """Change the given settings on every broker that has the topic.

        `permission` is the sum of 4 (read) and 2 (write). With fewer read queues, the messages of
        the others are not consumed: see `shrink`. Raises TopicNotFound.
        """
        asked = {
            "read_queue_nums": read_queues,
            "write_queue_nums": write_queues,
            "perm": permission,
            "order": order,
        }
        given = {field: value for field, value in asked.items() if value is not None}
        masters = await self._calls.masters_of(name)
        for broker, topic in (await self._configs(name, masters)).items():
            changed = msgspec.structs.replace(topic, attributes={}, **given)
            await self._put(changed, {broker: masters[broker]})

    async def _put(self, topic: TopicConfig, masters: dict[str, str]) -> None:
        fields = CreateTopicRequest(
            topic=topic.topic_name,
            default_topic=DEFAULT_TOPIC,
            read_queue_nums=topic.read_queue_nums,
            write_queue_nums=topic.write_queue_nums,
            perm=topic.perm,
            topic_filter_type=topic.topic_filter_type,
            topic_sys_flag=topic.topic_sys_flag,
            order=topic.order,
            attributes=",".join(f"{key}={value}" for key, value in topic.attributes.items()),
        )
        await self._calls.ask_each(masters, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

    async def _wait_for_route(self, name: str, brokers: set[str]) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ROUTE_S
        while True:
            try:
                if brokers <= (await self._calls.route(name)).brokers.keys():
                    return
            except TopicNotFound:
                pass
            if loop.time() > deadline:
                raise NoRoute(
                    f"topic {name} was created on {', '.join(sorted(brokers))}, but the name server"
                    f" does not know it after {ROUTE_S} s; do the brokers register there?"
                )
            await asyncio.sleep(_ROUTE_POLL_S)

    async def shrink(self, name: str, *, queues: int) -> Shrinking:
        """Reduce the number of queues without losing a message; call it until `is_done`.

        The first call stops writes to the removed queues. They stay readable until every group has
        consumed them. Raises UsageError for fewer than one queue, and TopicNotFound.

            while not (await admin.topics.shrink("orders", queues=4)).is_done:
                await asyncio.sleep(5)
        """
        if queues < 1:
            raise UsageError(f"topic {name} can't have {queues} queues; delete it instead")
        masters = await self._calls.masters_of(name)
        configs = await self._configs(name, masters)
        for broker, topic in configs.items():
            if topic.write_queue_nums > queues:
                changed = msgspec.structs.replace(topic, write_queue_nums=queues, attributes={})
                await self._put(changed, {broker: masters[broker]})
        unread = await self._unread(name, masters, first_queue=queues)
        if not unread:
            for broker, topic in configs.items():
                count = min(topic.read_queue_nums, queues)
                changed = msgspec.structs.replace(
                    topic, read_queue_nums=count, write_queue_nums=min(count, queues), attributes={}
                )
                await self._put(changed, {broker: masters[broker]})
        return Shrinking(name, queues, unread)

    async def _unread(
        self, name: str, masters: dict[str, str], *, first_queue: int
    ) -> dict[str, int]:
        """Return the lag of each group in the queues from `first_queue` on."""
        state = await self.show(name)
        unread: dict[str, int] = {}
        for group in state.groups:
            fields = GetConsumeStatsRequest(consumer_group=group, topic=name)
            bodies = await self._calls.ask_each(masters, RequestCode.GET_CONSUME_STATS, fields)
            rows = [
                row for b in bodies.values() for row in decode_consume_stats(b).offset_table.items()
            ]
            lag = sum(
                max(row.broker_offset - row.consumer_offset, 0)
                for queue, row in rows
                if queue.topic == name and queue.queue_id >= first_queue
            )
            if lag:
                unread[group] = lag
        return unread

    async def delete(self, name: str) -> None:
        """Delete a topic on every broker and name server: settings, queues, offsets and routes.

        Raises ClientError if the name server still has the route after a few seconds.
        """
        masters = await self._calls.masters()
        fields = TopicRequest(topic=name)
        await self._calls.ask_each(masters, RequestCode.DELETE_TOPIC_IN_BROKER, fields)
        route = DeleteTopicInNameserverRequest(topic=name)
        servers = {address: address for address in self._calls.shared.nameservers.addresses}
        await self._calls.ask_each(servers, RequestCode.DELETE_TOPIC_IN_NAMESRV, route)
        await self._wait_until_gone(name)

    async def _wait_until_gone(self, name: str) -> None:
        """Wait until the route is gone: a broker that just registered may restore it briefly."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ROUTE_S
        while True:
            try:
                await self._calls.route(name)
            except TopicNotFound:
                return
            if loop.time() > deadline:
                raise ClientError(f"topic {name} was deleted, but the name server still has it")
            await asyncio.sleep(_ROUTE_POLL_S)
