"""One member of a consumer group: its subscriptions, its queues, and how they come and go.

Every 20 seconds, when a broker says that the group has changed, and when a route changes, the
member works out anew which queues are its own (`core.assignment`). What it no longer should have it
gives up: nothing new is begun, what is in hand is waited for, the offset is committed, the lock
given back. What it gains begins at the group's offset.

What can't be known at the moment changes nothing: a member that can't ask who else is there keeps
what it has, and asks again soon.
"""

import asyncio
import contextlib
import logging
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, Protocol

from tianzhou.client.aio.lane import Lane
from tianzhou.client.aio.offset_stores import BrokerOffsets, FileOffsets, OffsetStore
from tianzhou.client.aio.queue_locks import QueueLocks
from tianzhou.client.aio.queue_offsets import QueueOffsets
from tianzhou.client.aio.shared_client import SharedClient
from tianzhou.client.aio.tasks import Tasks
from tianzhou.client.consumer_options import ConsumerOptions
from tianzhou.client.core.assignment import assign, difference
from tianzhou.client.core.offsets import Ask, start_rule
from tianzhou.client.core.pulling import PullPlan
from tianzhou.client.core.routing import TopicRoute
from tianzhou.client.core.subscription import Subscription, retry_topic
from tianzhou.client.errors import ClientError, GroupNotExist, NoRoute, TopicNotFound
from tianzhou.wire._generated_codes import RequestCode, ResponseCode
from tianzhou.wire.heartbeat import (
    ConsumerData,
    ConsumeType,
    MessageModel,
    decode_consumer_list,
)
from tianzhou.wire.queues import MessageQueue

log: Final = logging.getLogger("tianzhou.client")

SOON_S: Final = 1.0
"""When to look again if something could not be found out or done."""


HANDOVER_S: Final = 0.2
"""How long a queue that somebody else may have had is left alone before its offset is read. All
members hear of a change at the same moment, and whoever had the queue commits when it gives it up;
without the pause the same messages would be consumed by both."""


class Keeper(Protocol):
    """What a kind of consumer does with its queues."""

    def gained(self, lane: Lane) -> None:
        """Begin to pull."""
        ...

    async def giving_up(self, lane: Lane) -> None:
        """End pulling and drop what is not begun; return when nothing is in hand, or waiting for
        that has taken too long."""
        ...

    def committable(self, lane: Lane) -> int | None:
        """Everything below is done; None when nothing is to be committed."""
        ...


class Group:
    """Owner: the event loop."""

    def __init__(
        self,
        name: str,
        shared: SharedClient,
        options: ConsumerOptions,
        keeper: Keeper,
        tasks: Tasks,
    ) -> None:
        self.name = name
        self.options = options
        self.consume_type = ConsumeType.CONSUME_PASSIVELY
        self.lite = False
        """Pulls are those of a lite pull consumer."""
        self.subscriptions: dict[str, Subscription] = {}
        self.lanes: dict[MessageQueue, Lane] = {}
        self.offsets = QueueOffsets(name, shared)
        self.store: OffsetStore = (
            FileOffsets(options.offsets_directory, shared.client_id, name)
            if options.broadcasting
            else BrokerOffsets(self.offsets)
        )
        self._shared = shared
        self._keeper = keeper
        self._tasks = tasks
        self._start = start_rule(options.start_from)
        self._locks = QueueLocks(name, shared)
        self._needs_locks = options.orderly and not options.broadcasting
        self._releasing: dict[MessageQueue, tuple[Lane, asyncio.Task[None]]] = {}
        self._wanted = asyncio.Event()
        self._watches: dict[str, Callable[[], None]] = {}
        self._loops: list[asyncio.Task[None]] = []
        self._leave: Callable[[], Awaitable[None]] | None = None
        self._dice = random.Random()
        self._is_alone = False
        self._missing: set[str] = set()
        """Subscribed topics that do not exist and were already logged."""

    # Being a member

    def describe(self) -> ConsumerData:
        """For heartbeats."""
        model = MessageModel.BROADCASTING if self.options.broadcasting else MessageModel.CLUSTERING
        return ConsumerData(
            group_name=self.name,
            consume_type=self.consume_type,
            message_model=model,
            consume_from_where=self._start.where,
            subscription_data_set=tuple(one.to_data() for one in self.subscriptions.values()),
        )

    async def join(self) -> None:
        """Let the brokers know, and get the first queues."""
        await self._learn_routes()
        self._leave = self._shared.add_consumer(self.name, self.describe)
        await self._shared.heartbeat_now()
        is_settled = await self.balance()
        self._loops = [
            self._tasks.run(self._keep_balanced(is_settled=is_settled)),
            self._tasks.run(self._keep_saving()),
        ]
        if self._needs_locks:
            self._loops.append(self._tasks.run(self._keep_locked()))

    async def hold(self, queues: Iterable[MessageQueue]) -> None:
        """Have just these queues, whoever else has them: nobody is told, nothing is shared. The
        first time begins to save offsets."""
        changes = difference(self.lanes, queues)
        for queue in changes.dropped:
            self._give_up(self.lanes[queue])
        if self._releasing:
            await asyncio.wait([task for _, task in self._releasing.values()])
        self._is_alone = True
        if not await self._gain(changes.gained):
            missing = [queue for queue in changes.gained if queue not in self.lanes]
            raise NoRoute(f"the offsets of {missing} can't be asked for now")
        if not self._loops:
            self._loops = [self._tasks.run(self._keep_saving())]

    async def leave(self) -> None:
        """Give up every queue, then the membership."""
        for loop in self._loops:
            loop.cancel()
        for stop_watching in self._watches.values():
            stop_watching()
        for lane in list(self.lanes.values()):
            self._give_up(lane)
        if self._releasing:
            await asyncio.wait([task for _, task in self._releasing.values()])
        if self._leave is not None:
            await self._leave()

    def subscribe(self, subscription: Subscription) -> None:
        self.subscriptions[subscription.topic] = subscription
        self.balance_soon()

    def balance_soon(self) -> None:
        """At the next opportunity; several wishes are one."""
        self._wanted.set()

    async def _learn_routes(self) -> None:
        """Of what is subscribed. A topic that is not there yet may come."""
        for topic in self.subscriptions:
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
            self.name, topic, extra={"topic": topic, "group": self.name},
        )  # fmt: skip

    def _route_changed(self, _route: TopicRoute) -> None:
        self.balance_soon()

    # Sharing queues

    async def _keep_balanced(self, *, is_settled: bool) -> None:
        while True:
            pause_s = self.options.rebalance_interval_s if is_settled else SOON_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wanted.wait()
            is_settled = await self.balance()

    async def balance(self) -> bool:
        """Have what we should have. False when something must be tried again soon."""
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
                    self.name, topic, error,
                )  # fmt: skip
                wanted = None
            if wanted is None:
                is_settled = False
                continue
            changes = difference((q for q in self.lanes if q.topic == topic), wanted)
            for queue in changes.dropped:
                self._give_up(self.lanes[queue])
            gained += changes.gained
        for lane in list(self.lanes.values()):
            if lane.queue.topic not in self.subscriptions:
                self._give_up(lane)
        return await self._gain(gained) and is_settled

    async def _route(self, topic: str) -> TopicRoute:
        route = self._shared.known_route(topic)
        if route is None or route.is_borrowed:
            # Retry topics are made by the first heartbeat, others by their first message.
            route = await self._shared.refresh(topic)
        return route

    async def _share_of(self, route: TopicRoute) -> list[MessageQueue] | None:
        """Our queues of a topic; None when that can't be known now."""
        if self.options.broadcasting:
            return list(route.read_queues)
        members = await self._members(route)
        if members is None or self._shared.client_id not in members:
            await self._shared.heartbeat_now()
            return None
        self._is_alone = len(members) == 1
        return assign(
            self.options.strategy, group=self.name, client_id=self._shared.client_id,
            queues=route.read_queues, clients=members,
        )  # fmt: skip

    async def _members(self, route: TopicRoute) -> tuple[str, ...] | None:
        """Who is in the group, by the first broker that answers, asked in any order."""
        brokers = list(route.brokers)
        self._dice.shuffle(brokers)
        for broker in brokers:
            address = route.any_address(broker)
            if address is None:
                continue
            try:
                header, body = await self._shared.call(
                    address, RequestCode.GET_CONSUMER_LIST_BY_GROUP,
                    {"consumerGroup": self.name},
                    timeout_s=self._shared.options.call_timeout_s,
                )  # fmt: skip
            except ClientError as error:
                log.info(
                    "group %s could not get its list of members from broker %s: %s",
                    self.name, address, error,
                )  # fmt: skip
                continue
            if header.code == ResponseCode.SUCCESS:
                return decode_consumer_list(body).consumer_id_list
            await self._check_exists(address)
        return None

    async def _check_exists(self, address: str) -> None:
        """A broker that makes no groups by itself does not say so to a heartbeat. Without this
        question a consumer would wait for queues for ever. Raises GroupNotExist."""
        header, _ = await self._shared.call(
            address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": self.name},
            timeout_s=self._shared.options.call_timeout_s,
        )  # fmt: skip
        if header.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            raise GroupNotExist(address, header.code, header.remark)

    # Gaining

    async def _gain(self, wanted: list[MessageQueue]) -> bool:
        """Begin with these. False when that must be tried again for some of them."""
        queues = [queue for queue in wanted if queue not in self._releasing]
        until: dict[MessageQueue, float] = {}
        if self._needs_locks and queues:
            until = await self._locks.lock(queues)
            queues = [queue for queue in queues if queue in until]
        elif queues and not self._is_alone and not self.options.broadcasting:
            await asyncio.sleep(HANDOVER_S)
        begun = await asyncio.gather(*(self._begin(queue) for queue in queues))
        for lane in begun:
            if lane is not None and lane.queue.topic in self.subscriptions:
                lane.locked_until = until.get(lane.queue, math.inf)
                self.lanes[lane.queue] = lane
                self._keeper.gained(lane)
        self._share_limits()
        if wanted:
            log.info(
                "group %s was assigned %d more queues; this member now has %d",
                self.name, len(wanted), len(self.lanes),
            )  # fmt: skip
        return len(wanted) == sum(lane is not None for lane in begun)

    async def _begin(self, queue: MessageQueue) -> Lane | None:
        try:
            offset = await self.first_offset(queue)
        except ClientError as error:
            log.info(
                "group %s could not get its offset of queue %s:%d of topic %s: %s; it tries again "
                "soon",
                self.name, queue.broker_name, queue.queue_id, queue.topic, error,
            )  # fmt: skip
            return None
        return self.lane_at(queue, offset)

    def lane_at(self, queue: MessageQueue, offset: int) -> Lane:
        options = self.options
        plan = PullPlan(
            self.name, queue, self.subscriptions[queue.topic], options.pull_count,
            options.pull_bytes, round(options.long_poll_s * 1000), self.lite,
        )  # fmt: skip
        return Lane(plan, offset, options.flow, orderly=options.orderly)

    async def first_offset(self, queue: MessageQueue) -> int:
        """Where the group is, or where it is to begin."""
        stored = await self.store.read(queue)
        if stored is not None and stored >= 0:
            return stored
        match self._start.ask_for(queue.topic):
            case Ask.ZERO:
                return 0
            case Ask.MAX:
                return await self.offsets.end(queue)
            case Ask.TIME:
                return await self.offsets.at_time(queue, self._start.time_ms)

    def _share_limits(self) -> None:
        """What a topic may have in work is shared by the queues of it that we have."""
        counts = Counter(queue.topic for queue in self.lanes)
        for lane in self.lanes.values():
            lane.limits = self.options.flow.shared_by(counts[lane.queue.topic])

    # Giving up

    def _give_up(self, lane: Lane) -> None:
        lane.is_dropped = True
        del self.lanes[lane.queue]
        task = self._tasks.run(self._release(lane))
        self._releasing[lane.queue] = (lane, task)
        task.add_done_callback(lambda _: self._released(lane.queue))

    def _released(self, queue: MessageQueue) -> None:
        del self._releasing[queue]
        # It may be ours again already.
        self.balance_soon()

    async def _release(self, lane: Lane) -> None:
        await self._keeper.giving_up(lane)
        lane.is_gone = True
        self._note(lane)
        await self.store.save_surely([lane.queue])
        self.store.forget(lane.queue)
        if self._needs_locks:
            await self._locks.unlock(lane.queue)

    async def move(self, queues: Mapping[MessageQueue, int], *, save: bool = True) -> None:
        """Go on at other offsets: the broker was told to reset them, or says that ours are wrong,
        or the user wants it. What is in work from before no longer counts."""
        for queue, offset in queues.items():
            lane = self.lanes.get(queue)
            if lane is None:
                continue
            lane.is_dropped = lane.is_gone = True
            moved = self.lane_at(queue, offset)
            moved.limits, moved.locked_until = lane.limits, lane.locked_until
            self.lanes[queue] = moved
            await self._keeper.giving_up(lane)
            if save:
                self._note(lane)  # its last word, which the new offset overrides
                self.store.put(queue, offset)
                await self.store.save_surely([queue])
            if self.lanes.get(queue) is moved and not moved.is_dropped:
                self._keeper.gained(moved)

    # Saving and locking

    async def _keep_saving(self) -> None:
        while True:
            await asyncio.sleep(self.options.commit_interval_s)
            await self.save()

    async def save(self) -> None:
        for lane in self.lanes.values():
            self._note(lane)
        await self.store.save()

    async def save_surely(self) -> None:
        """Of all queues, and wait until they are kept."""
        for lane in self.lanes.values():
            self._note(lane)
        await self.store.save_surely(list(self.lanes))

    def _note(self, lane: Lane) -> None:
        offset = self._keeper.committable(lane)
        if offset is not None:
            self.store.put(lane.queue, offset)

    def committable(self, lane: Lane) -> int | None:
        return self._keeper.committable(lane)

    async def _keep_locked(self) -> None:
        pause_s = self.options.lock_interval_s
        while True:
            await asyncio.sleep(pause_s)
            # What waits for its last message before it goes must not be overtaken.
            leaving = [lane for lane, _ in self._releasing.values()]
            has_all = await self._locks.renew([*self.lanes.values(), *leaving])
            pause_s = self.options.lock_interval_s
            if not has_all:
                pause_s = min(pause_s, SOON_S)
