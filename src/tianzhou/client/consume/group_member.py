"""One member of a consumer group: its subscriptions, and the assignment of queues to it.

Every 20 seconds, when a broker reports that the group has changed, and when a route changes, the
member computes its assignment again (`core.assignment`). It releases a revoked queue in steps: no
new message is started, messages in flight are waited for, the offset is committed, and the lock is
released. A new queue starts at the group's offset.

If the list of members is not available, the assignment does not change; the member asks again soon.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from tianzhou.client.consume.assignments import AssignmentListener, Assignments
from tianzhou.client.consume.context import ConsumerContext
from tianzhou.client.core.assignment import assign, difference
from tianzhou.client.core.offsets import start_rule
from tianzhou.client.core.routing import TopicRoute
from tianzhou.client.core.subscription import Subscription, retry_topic
from tianzhou.client.errors import ClientError, GroupNotExist, TopicNotFound
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.fastjson import encode
from tianzhou.wire.heartbeat import (
    ConsumerData,
    ConsumeType,
    MessageModel,
    decode_consumer_list,
)
from tianzhou.wire.queues import MessageQueue

log: Final = logging.getLogger("tianzhou.client")

SOON_S: Final = 1.0
"""Pause before the next rebalance if the last one was incomplete."""


class GroupMember:
    """A member of a consumer group: joins, rebalances and leaves.

    Owner: the event loop.
    """

    def __init__(
        self, context: ConsumerContext, listener: AssignmentListener, *, lite: bool = False
    ) -> None:
        """`lite` is for lite pull consumers, which poll."""
        self.context = context
        self.name = context.group
        self.consume_type = ConsumeType.CONSUME_ACTIVELY if lite else ConsumeType.CONSUME_PASSIVELY
        self.subscriptions: dict[str, Subscription] = {}
        self.assignments = Assignments(
            context, listener, self.subscriptions, on_released=self.balance_soon, lite=lite
        )
        self._shared = context.shared
        self._wanted = asyncio.Event()
        self._watches: dict[str, Callable[[], None]] = {}
        self._balancing: asyncio.Task[None] | None = None
        self._leave: Callable[[], Awaitable[None]] | None = None
        self._missing: set[str] = set()
        """Subscribed topics that do not exist and were already logged."""

    # Being a member

    def describe(self) -> ConsumerData:
        """Return the description of this consumer for heartbeats."""
        model = (
            MessageModel.BROADCASTING
            if self.context.options.broadcasting
            else MessageModel.CLUSTERING
        )
        return ConsumerData(
            group_name=self.name,
            consume_type=self.consume_type,
            message_model=model,
            consume_from_where=start_rule(self.context.options.start_from).where,
            subscription_data_set=tuple(one.to_data() for one in self.subscriptions.values()),
        )

    async def join(self) -> None:
        """Announce this member to the brokers, and get the first assignment."""
        await self._learn_routes()
        self._leave = self._shared.add_consumer(self.name, self.describe)
        await self._shared.heartbeat_now()
        is_settled = await self.balance()
        self._balancing = self.context.tasks.run(self._keep_balanced(is_settled=is_settled))
        self.assignments.start_saving()

    async def leave(self) -> None:
        """Release every queue, then leave the group."""
        if self._balancing is not None:
            self._balancing.cancel()
        for stop_watching in self._watches.values():
            stop_watching()
        await self.assignments.close()
        if self._leave is not None:
            await self._leave()

    def subscribe(self, subscription: Subscription) -> None:
        self.subscriptions[subscription.topic] = subscription
        self.assignments.release_outdated()
        self.balance_soon()

    def balance_soon(self) -> None:
        """Request a rebalance; several requests cause one."""
        self._wanted.set()

    async def _learn_routes(self) -> None:
        """Get the routes of subscribed topics. A topic may be created later."""
        for topic in list(self.subscriptions):
            if topic not in self._watches:
                self._watches[topic] = self._shared.watch_route(topic, self._route_changed)
            try:
                await self._shared.route(topic)
            except TopicNotFound:
                self._warn_missing(topic)

    def _warn_missing(self, topic: str) -> None:
        """Warn once until the topic exists: a misspelt name would get neither messages nor an
        error."""
        # The broker creates the retry topic at the first heartbeat.
        if topic in self._missing or topic == retry_topic(self.name):
            return
        self._missing.add(topic)
        log.warning(
            "group %s subscribes to topic %s, which does not exist; it gets no messages of it "
            "until the topic is created",
            self.name,
            topic,
            extra={"topic": topic, "group": self.name},
        )

    def _route_changed(self, _route: TopicRoute) -> None:
        self.balance_soon()

    # Sharing queues

    async def _keep_balanced(self, *, is_settled: bool) -> None:
        while True:
            pause_s = self.context.options.rebalance_interval_s if is_settled else SOON_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wanted.wait()
            is_settled = await self.balance()

    async def balance(self) -> bool:
        """Rebalance. Returns False if it must be retried soon."""
        self._wanted.clear()
        is_settled, gained = True, list[MessageQueue]()
        for topic in list(self.subscriptions):
            try:
                wanted = await self._share_of(await self._route(topic))
                self._missing.discard(topic)
            except GroupNotExist:
                raise
            except TopicNotFound:
                self._warn_missing(topic)
                wanted = None
            except ClientError as error:
                log.info(
                    "group %s could not rebalance the queues of topic %s: %s; it tries again soon",
                    self.name,
                    topic,
                    error,
                )
                wanted = None
            if wanted is None:
                is_settled = False
                continue
            held = self.assignments.queues
            changes = difference((queue for queue in held if queue.topic == topic), wanted)
            for queue in changes.dropped:
                self.assignments.release(held[queue])
            gained += changes.gained
        self.assignments.release_outdated()
        return await self.assignments.gain(gained) and is_settled

    async def _route(self, topic: str) -> TopicRoute:
        route = self._shared.known_route(topic)
        if route is None or route.is_borrowed:
            # The first heartbeat creates retry topics, the first message other topics.
            route = await self._shared.refresh(topic)
        return route

    async def _share_of(self, route: TopicRoute) -> list[MessageQueue] | None:
        """Return the queues of a topic assigned to this member; None if that is not known now."""
        if self.context.options.broadcasting:
            return list(route.read_queues)
        members = await self._members(route)
        if members is None or self._shared.client_id not in members:
            await self._shared.heartbeat_now()
            return None
        self.assignments.is_alone = len(members) == 1
        return assign(
            self.context.options.strategy,
            group=self.name,
            client_id=self._shared.client_id,
            queues=route.read_queues,
            clients=members,
        )

    async def _members(self, route: TopicRoute) -> tuple[str, ...] | None:
        """Return the members of the group, from the first broker that responds, in random order."""
        for broker in random.sample(list(route.brokers), len(route.brokers)):
            address = route.any_address(broker)
            if address is None:
                continue
            try:
                header, body = await self._shared.call(
                    address,
                    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
                    {"consumerGroup": self.name},
                    timeout_s=self._shared.options.call_timeout_s,
                )
            except ClientError as error:
                log.info(
                    "group %s could not get its list of members from broker %s: %s",
                    self.name,
                    address,
                    error,
                )
                continue
            if header.code == ResponseCode.SUCCESS:
                return decode_consumer_list(body).consumer_id_list
            await self._check_exists(address)
        return None

    async def _check_exists(self, address: str) -> None:
        """Raise GroupNotExist if the broker does not have the group. A broker that does not create
        groups automatically accepts heartbeats of unknown groups; without this check a consumer
        would wait for queues indefinitely."""
        header, _ = await self._shared.call(
            address,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
            {"group": self.name},
            timeout_s=self._shared.options.call_timeout_s,
        )
        if header.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            raise GroupNotExist(address, header.code, header.remark)


async def check_expressions(member: GroupMember, topics: Iterable[str]) -> None:
    """Let a broker compile SQL92 expressions before anything is pulled. Raises RemoteError with the
    broker's remark for an invalid one."""
    shared = member.context.shared
    for topic in topics:
        wanted = member.subscriptions.get(topic)
        if wanted is None or wanted.is_tag:
            continue  # it may have been unsubscribed meanwhile
        try:
            route = await shared.route(topic)
        except TopicNotFound:
            continue  # no broker yet; the first pull reports an invalid expression
        failure: ClientError | None = None
        for broker in route.brokers:
            address = route.any_address(broker)
            if address is None:
                continue
            body = {
                "clientId": shared.client_id,
                "group": member.name,
                "subscriptionData": wanted.to_data(),
            }
            try:
                await shared.call_ok(address, RequestCode.CHECK_CLIENT_CONFIG, {}, encode(body))
                break
            except ClientError as error:
                failure = error
        else:
            if failure is not None:
                raise failure
