"""Topics: list, inspect, create, update, spread, shrink and delete them."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from tianzhou.base.errors import UsageError
from tianzhou.client.admin.calls import AdminCalls
from tianzhou.client.core.admin_results import (
    Placement,
    Shrinking,
    Spread,
    TopicQueue,
    TopicState,
)
from tianzhou.client.core.routing import MASTER, ordered_queues
from tianzhou.client.errors import ClientError, NoRoute, RequestCodeNotSupported, TopicNotFound
from tianzhou.record.light_queues import is_light
from tianzhou.record.names import checked_topic
from tianzhou.wire import fastjson
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire._generated_headers_admin import (
    CreateTopicRequest,
    GetConsumeStatsRequest,
    GetTopicConfigRequest,
    TopicRequest,
)
from tianzhou.wire._generated_headers_nameserver import (
    DeleteTopicInNameserverRequest,
    PutKvConfigRequest,
)
from tianzhou.wire.admin_bodies import decode_group_list
from tianzhou.wire.names import (
    DEAD_LETTER_PREFIX,
    DEFAULT_TOPIC,
    ORDER_TOPIC_CONFIG,
    PERM_READ_WRITE,
    RETRY_PREFIX,
)
from tianzhou.wire.queues import decode_consume_stats, decode_topic_stats
from tianzhou.wire.tables import (
    SubscriptionGroupConfig,
    TopicConfig,
    decode_group_table,
    decode_topic_config,
    decode_topic_list,
    decode_topic_table,
)

ROUTE_S: Final = 5.0
"""How long the route of a new topic may take to appear; brokers register a new topic at once."""
_ROUTE_POLL_S: Final = 0.02
FIFO: Final = "FIFO"
"""The value of the attribute `message.type` that marks a topic as ordered."""


class Topics:
    """Topics: list, inspect, create, update, spread, shrink and delete them (`admin.topics`).

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
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: int = PERM_READ_WRITE,
        brokers: Iterable[str] | None = None,
        order: bool = False,
        message_type: str | None = None,
    ) -> None:
        """Create a topic on all brokers, or on those named; an existing topic is updated.

        Clients can use the topic when this returns. `read_queues` and `write_queues` override
        `queues`. `permission` is the sum of 4 (read) and 2 (write). `order` marks a topic for
        ordered messages. `message_type` is NORMAL, FIFO, DELAY, TRANSACTION or MIXED; None leaves
        it unspecified.

        Raises UsageError for an invalid name or fewer than one queue, BrokerNotFound, and NoRoute
        if the name server does not know the topic after a few seconds.
        """
        reads = queues if read_queues is None else read_queues
        writes = queues if write_queues is None else write_queues
        if min(reads, writes) < 1:
            raise UsageError(
                f"topic {name} can't have {min(reads, writes)} queues; give at least 1"
            )
        topic = TopicConfig(
            topic_name=checked_topic(name),
            read_queue_nums=reads,
            write_queue_nums=writes,
            perm=permission,
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
        brokers: Iterable[str] | None = None,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: int | None = None,
        order: bool | None = None,
        allow_reorder: bool = False,
    ) -> None:
        """Change the given settings on every broker that has the topic, or on those named.

        A named broker that does not have the topic gets it, as `spread` does it. `permission` is
        the sum of 4 (read) and 2 (write). With fewer read queues, the messages of the others are
        not consumed: see `shrink`.

        Raises TopicNotFound, BrokerNotFound, and UsageError if an ordered topic would get another
        broker without `allow_reorder`.
        """
        asked = {
            "read_queue_nums": read_queues,
            "write_queue_nums": write_queues,
            "perm": permission,
            "order": order,
        }
        given = {field: value for field, value in asked.items() if value is not None}
        masters = await self._calls.masters_of(name)
        configs = await self._configs(name, masters)
        wanted = masters if brokers is None else await self._calls.masters(brokers)
        new = {broker: address for broker, address in wanted.items() if broker not in configs}
        if new and not allow_reorder and await self._is_ordered(name, configs):
            raise _reordering(name, new)
        for broker in wanted.keys() & configs.keys():
            changed = msgspec.structs.replace(configs[broker], attributes={}, **given)
            await self._put(changed, {broker: masters[broker]})
        if new:
            model = msgspec.structs.replace(_model(name, configs), **given)
            await self._add(model, new, {b: masters[b] for b in configs})
            await self._list_in_order(name, dict.fromkeys(new, model))

    async def spread(
        self, name: str, *, allow_reorder: bool = False, dry_run: bool = False
    ) -> Spread:
        """Put a topic on every broker of its cluster; return the plan. Repeat it at will.

        A broker that has the topic keeps its settings; others get those of the broker with the most
        queues, and the groups of the topic with their settings. Consumers notice at once, producers
        within 30 seconds. With `dry_run` nothing changes.

        With more queues, sharding keys move to other queues, so that messages of one key may be
        consumed out of order until the older ones are consumed. Raises UsageError for an ordered
        topic without `allow_reorder`, and TopicNotFound.

            plan = await admin.topics.spread("orders", dry_run=True)
            print(plan.added, plan.groups)
        """
        masters = await self._calls.masters_of(name)
        configs = await self._configs(name, masters)
        places = await self._calls.places()
        clusters = {place.cluster for place in places if place.name in configs}
        model = _model(name, configs)
        placements = tuple(
            Placement(
                place.name,
                configs.get(place.name),
                configs.get(place.name, model if MASTER in place.addresses else None),
            )
            for place in places
            if place.cluster in clusters and place.name not in self._calls.left_out
        )
        addresses = {place.name: place.addresses.get(MASTER, "") for place in places}
        new = {place.broker: addresses[place.broker] for place in placements if place.is_new}
        old = {broker: masters[broker] for broker in configs}
        then = {place.broker: place.then for place in placements if place.then is not None}
        conf = await self._order_conf(name)
        plan = Spread(
            name,
            placements,
            groups=tuple(sorted(await self._missing_groups(name, old, new))),
            is_ordered=await self._is_ordered(name, configs),
            unlisted=tuple(sorted(then.keys() - conf.keys())) if conf else (),
        )
        if dry_run or plan.is_complete:
            return plan
        if plan.is_ordered and not allow_reorder:
            raise _reordering(name, plan.added or plan.unlisted)
        if new:
            await self._add(model, new, old)
        await self._list_in_order(name, then)
        return plan

    async def _add(self, topic: TopicConfig, new: dict[str, str], old: dict[str, str]) -> None:
        """Put a topic on brokers that do not have it. Arguments are addresses by broker name."""
        name = topic.topic_name
        for group, lacking in (await self._missing_groups(name, old, new)).items():
            # Otherwise the first heartbeat would create the group with default settings.
            configs = await self._calls.group_configs(group, old)
            await self._put_group(next(iter(configs.values())), {b: new[b] for b in lacking})
        added = {f"+{key}": value for key, value in topic.attributes.items()}
        await self._put(msgspec.structs.replace(topic, attributes=added), new)
        await self._wait_for_route(name, new.keys() | old.keys())
        # Consumers are not connected to the new brokers yet. An update, even without a change,
        # makes the other brokers notify them.
        for broker, config in (await self._configs(name, old)).items():
            await self._put(msgspec.structs.replace(config, attributes={}), {broker: old[broker]})

    async def _missing_groups(
        self, name: str, old: dict[str, str], new: dict[str, str]
    ) -> dict[str, list[str]]:
        """Return the groups that read the topic and that some new broker lacks, with those
        brokers."""
        if not new:
            return {}
        fields = TopicRequest(topic=name)
        code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
        readers = await self._calls.ask_each(old, code, fields)
        groups = {
            group for body in readers.values() for group in decode_group_list(body).group_list
        }
        bodies = await self._calls.ask_each(old | new, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        held = {
            broker: decode_group_table(body).subscription_group_table.keys()
            for broker, body in bodies.items()
        }
        known = {group for group in groups if any(group in held[broker] for broker in old)}
        lacking = {group: [b for b in new if group not in held[b]] for group in known}
        return {group: brokers for group, brokers in lacking.items() if brokers}

    async def _put_group(self, group: SubscriptionGroupConfig, masters: dict[str, str]) -> None:
        added = {f"+{key}": value for key, value in group.attributes.items()}
        body = fastjson.encode(msgspec.structs.replace(group, attributes=added))
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        await self._calls.ask_each(masters, code, body=body)

    # Order

    async def _is_ordered(self, name: str, configs: Mapping[str, TopicConfig]) -> bool:
        return any(
            config.order or config.attributes.get("message.type") == FIFO
            for config in configs.values()
        ) or bool(await self._order_conf(name))

    async def _order_conf(self, name: str) -> dict[str, int]:
        """Return how many queues of the topic the NameServers list for each broker; empty if its
        producers use all queues."""
        route = await self._calls.shared.nameservers.route(name)
        text = route.order_topic_conf
        return dict(ordered_queues(text)) if text is not msgspec.UNSET and text else {}

    async def _list_in_order(self, name: str, configs: Mapping[str, TopicConfig]) -> None:
        """Add brokers to the order configuration, if the topic has one."""
        conf = await self._order_conf(name)
        missing = {b: c.write_queue_nums for b, c in configs.items() if b not in conf}
        if not conf or not missing:
            return
        value = ";".join(f"{broker}:{count}" for broker, count in sorted((conf | missing).items()))
        fields = PutKvConfigRequest(namespace=ORDER_TOPIC_CONFIG, key=name, value=value)
        servers = {address: address for address in self._calls.shared.nameservers.addresses}
        await self._calls.ask_each(servers, RequestCode.PUT_KV_CONFIG, fields)

    # Requests

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

    async def _wait_for_route(self, name: str, brokers: Collection[str]) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ROUTE_S
        while True:
            try:
                if set(brokers) <= (await self._calls.route(name)).brokers.keys():
                    return
            except TopicNotFound:
                pass
            if loop.time() > deadline:
                raise NoRoute(
                    f"topic {name} was created on {', '.join(sorted(brokers))}, but the name server"
                    f" does not know it after {ROUTE_S} s; do the brokers register there?"
                )
            await asyncio.sleep(_ROUTE_POLL_S)

    async def shrink(
        self, name: str, *, queues: int, brokers: Collection[str] | None = None
    ) -> Shrinking:
        """Reduce the number of queues without losing a message; call it until `is_done`.

        The first call stops writes to the removed queues. They stay readable until every group has
        consumed them. It applies to all brokers that have the topic, or to those named. Raises
        UsageError for fewer than one queue, and TopicNotFound.

            while not (await admin.topics.shrink("orders", queues=4)).is_done:
                await asyncio.sleep(5)
        """
        if queues < 1:
            raise UsageError(f"topic {name} can't have {queues} queues; delete it instead")
        masters = await self._calls.masters_of(name)
        if brokers is not None:
            masters = {broker: masters[broker] for broker in masters if broker in brokers}
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

        The name may also be that of a light queue; its messages stay in their topics.
        Raises ClientError if the name server still has the route after a few seconds.
        """
        masters = await self._calls.masters()
        fields = TopicRequest(topic=name)
        await self._calls.ask_each(masters, RequestCode.DELETE_TOPIC_IN_BROKER, fields)
        if is_light(name):
            return  # it has no route
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


def _model(name: str, configs: Mapping[str, TopicConfig]) -> TopicConfig:
    """Return the settings for brokers without the topic: those of the broker with the most queues.
    Raises NoRoute."""
    if not configs:
        raise NoRoute(f"no broker that has topic {name} has a master now; start one of them first")
    queues = {broker: (c.write_queue_nums, c.read_queue_nums) for broker, c in configs.items()}
    return configs[max(sorted(queues), key=lambda broker: queues[broker])]


def _reordering(name: str, brokers: Iterable[str]) -> UsageError:
    return UsageError(
        f"topic {name} is ordered: with queues on {', '.join(brokers)} its keys move to other "
        "queues, and messages of one key may be consumed out of order until the older ones are "
        "consumed; stop its producers and wait until its groups have no lag, then allow it with "
        "--reorder (allow_reorder=True in Python)"
    )
