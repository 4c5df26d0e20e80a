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
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, Protocol

from tianzhou.client.aio.assigned_queue import AssignedQueue
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
"""Pause before the next rebalance if the last one was incomplete."""


HANDOVER_S: Final = 0.2
"""Pause before the offset of a new queue is read. All members hear of a change at the same time,
and the previous owner commits its offset when it releases the queue; without the pause both would
consume the same messages."""


class AssignmentListener(Protocol):
    """Callbacks of a consumer for its assignment."""

    def on_assigned(self, assigned: AssignedQueue) -> None:
        """Start pulling."""
        ...

    async def on_revoked(self, assigned: AssignedQueue) -> None:
        """Stop pulling and drop messages not started; return when no message is in flight, or
        after the release timeout."""
        ...

    def committable(self, assigned: AssignedQueue) -> int | None:
        """Return the offset below which all messages are done; None to commit nothing."""
        ...


class GroupMember:
    """A member of a consumer group: joins, rebalances, commits offsets and leaves.

    Owner: the event loop.
    """

    def __init__(
        self,
        name: str,
        shared: SharedClient,
        options: ConsumerOptions,
        listener: AssignmentListener,
        tasks: Tasks,
    ) -> None:
        self.name = name
        self.options = options
        self.consume_type = ConsumeType.CONSUME_PASSIVELY
        self.lite = False
        """Whether pulls are those of a lite pull consumer."""
        self.subscriptions: dict[str, Subscription] = {}
        self.assignments: dict[MessageQueue, AssignedQueue] = {}
        self.offsets = QueueOffsets(name, shared)
        self.store: OffsetStore = (
            FileOffsets(options.offsets_directory, shared.client_id, name)
            if options.broadcasting
            else BrokerOffsets(self.offsets)
        )
        self._shared = shared
        self._listener = listener
        self._tasks = tasks
        self._start = start_rule(options.start_from)
        self._locks = QueueLocks(name, shared)
        self._needs_locks = options.orderly and not options.broadcasting
        self._releasing: dict[MessageQueue, tuple[AssignedQueue, asyncio.Task[None]]] = {}
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
        """Return the description of this consumer for heartbeats."""
        model = MessageModel.BROADCASTING if self.options.broadcasting else MessageModel.CLUSTERING
        return ConsumerData(
            group_name=self.name,
            consume_type=self.consume_type,
            message_model=model,
            consume_from_where=self._start.where,
            subscription_data_set=tuple(one.to_data() for one in self.subscriptions.values()),
        )

    async def join(self) -> None:
        """Announce this member to the brokers, and get the first assignment."""
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

    async def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Assign exactly these queues, without a rebalance: other members may have them too. The
        first call starts saving offsets."""
        changes = difference(self.assignments, queues)
        for queue in changes.dropped:
            self._give_up(self.assignments[queue])
        if self._releasing:
            await asyncio.wait([task for _, task in self._releasing.values()])
        self._is_alone = True
        if not await self._gain(changes.gained):
            missing = [queue for queue in changes.gained if queue not in self.assignments]
            raise NoRoute(f"the offsets of {missing} are not available now")
        if not self._loops:
            self._loops = [self._tasks.run(self._keep_saving())]

    async def leave(self) -> None:
        """Release every queue, then leave the group."""
        for loop in self._loops:
            loop.cancel()
        for stop_watching in self._watches.values():
            stop_watching()
        for assigned in list(self.assignments.values()):
            self._give_up(assigned)
        if self._releasing:
            await asyncio.wait([task for _, task in self._releasing.values()])
        if self._leave is not None:
            await self._leave()

    def subscribe(self, subscription: Subscription) -> None:
        self.subscriptions[subscription.topic] = subscription
        self.balance_soon()

    def balance_soon(self) -> None:
        """Request a rebalance; several requests cause one."""
        self._wanted.set()

    async def _learn_routes(self) -> None:
        """Get the routes of subscribed topics. A topic may be created later."""
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
                    self.name, topic, error,
                )  # fmt: skip
                wanted = None
            if wanted is None:
                is_settled = False
                continue
            changes = difference((q for q in self.assignments if q.topic == topic), wanted)
            for queue in changes.dropped:
                self._give_up(self.assignments[queue])
            gained += changes.gained
        for assigned in list(self.assignments.values()):
            if assigned.queue.topic not in self.subscriptions:
                self._give_up(assigned)
        return await self._gain(gained) and is_settled

    async def _route(self, topic: str) -> TopicRoute:
        route = self._shared.known_route(topic)
        if route is None or route.is_borrowed:
            # The first heartbeat creates retry topics, the first message other topics.
            route = await self._shared.refresh(topic)
        return route

    async def _share_of(self, route: TopicRoute) -> list[MessageQueue] | None:
        """Return the queues of a topic assigned to this member; None if that is not known now."""
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
        """Return the members of the group, from the first broker that responds, in random order."""
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
        """Raise GroupNotExist if the broker does not have the group. A broker that does not create
        groups automatically accepts heartbeats of unknown groups; without this check a consumer
        would wait for queues indefinitely."""
        header, _ = await self._shared.call(
            address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": self.name},
            timeout_s=self._shared.options.call_timeout_s,
        )  # fmt: skip
        if header.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            raise GroupNotExist(address, header.code, header.remark)

    # Gaining

    async def _gain(self, wanted: list[MessageQueue]) -> bool:
        """Start with these queues. Returns False if some of them must be retried."""
        queues = [queue for queue in wanted if queue not in self._releasing]
        until: dict[MessageQueue, float] = {}
        if self._needs_locks and queues:
            until = await self._locks.lock(queues)
            queues = [queue for queue in queues if queue in until]
        elif queues and not self._is_alone and not self.options.broadcasting:
            await asyncio.sleep(HANDOVER_S)
        begun = await asyncio.gather(*(self._begin(queue) for queue in queues))
        for assigned in begun:
            if assigned is not None and assigned.queue.topic in self.subscriptions:
                assigned.locked_until = until.get(assigned.queue, math.inf)
                self.assignments[assigned.queue] = assigned
                self._listener.on_assigned(assigned)
        self._share_limits()
        if wanted:
            log.info(
                "group %s was assigned %d more queues; this member now has %d",
                self.name, len(wanted), len(self.assignments),
            )  # fmt: skip
        return len(wanted) == sum(assigned is not None for assigned in begun)

    async def _begin(self, queue: MessageQueue) -> AssignedQueue | None:
        try:
            offset = await self.first_offset(queue)
        except ClientError as error:
            log.info(
                "group %s could not get its offset of queue %s:%d of topic %s: %s; it tries again "
                "soon",
                self.name, queue.broker_name, queue.queue_id, queue.topic, error,
            )  # fmt: skip
            return None
        return self.assigned_at(queue, offset)

    def assigned_at(self, queue: MessageQueue, offset: int) -> AssignedQueue:
        options = self.options
        plan = PullPlan(
            self.name, queue, self.subscriptions[queue.topic], options.pull_count,
            options.pull_bytes, round(options.long_poll_s * 1000), self.lite,
        )  # fmt: skip
        return AssignedQueue(plan, offset, options.flow, orderly=options.orderly)

    async def first_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the group, or its start position."""
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
        """Divide the limits of each topic among its queues assigned to this member."""
        counts = Counter(queue.topic for queue in self.assignments)
        for assigned in self.assignments.values():
            assigned.limits = self.options.flow.shared_by(counts[assigned.queue.topic])

    # Giving up

    def _give_up(self, assigned: AssignedQueue) -> None:
        assigned.is_dropped = True
        del self.assignments[assigned.queue]
        task = self._tasks.run(self._release(assigned))
        self._releasing[assigned.queue] = (assigned, task)
        task.add_done_callback(lambda _: self._released(assigned.queue))

    def _released(self, queue: MessageQueue) -> None:
        del self._releasing[queue]
        # The queue may already be assigned to this member again.
        self.balance_soon()

    async def _release(self, assigned: AssignedQueue) -> None:
        await self._listener.on_revoked(assigned)
        assigned.is_gone = True
        self._record_offset(assigned)
        await self.store.save_surely([assigned.queue])
        self.store.forget(assigned.queue)
        if self._needs_locks:
            await self._locks.unlock(assigned.queue)

    async def move(self, queues: Mapping[MessageQueue, int], *, save: bool = True) -> None:
        """Continue at other offsets, after a reset, an OFFSET_ILLEGAL response or a seek. Messages
        in work no longer count."""
        for queue, offset in queues.items():
            assigned = self.assignments.get(queue)
            if assigned is None:
                continue
            assigned.is_dropped = assigned.is_gone = True
            moved = self.assigned_at(queue, offset)
            moved.limits, moved.locked_until = assigned.limits, assigned.locked_until
            self.assignments[queue] = moved
            await self._listener.on_revoked(assigned)
            if save:
                self._record_offset(assigned)  # its final offset, which the new one overrides
                self.store.put(queue, offset)
                await self.store.save_surely([queue])
            if self.assignments.get(queue) is moved and not moved.is_dropped:
                self._listener.on_assigned(moved)

    # Saving and locking

    async def _keep_saving(self) -> None:
        while True:
            await asyncio.sleep(self.options.commit_interval_s)
            await self.save()

    async def save(self) -> None:
        for assigned in self.assignments.values():
            self._record_offset(assigned)
        await self.store.save()

    async def save_surely(self) -> None:
        """Commit the offsets of all queues, and wait until they are stored."""
        for assigned in self.assignments.values():
            self._record_offset(assigned)
        await self.store.save_surely(list(self.assignments))

    def _record_offset(self, assigned: AssignedQueue) -> None:
        offset = self._listener.committable(assigned)
        if offset is not None:
            self.store.put(assigned.queue, offset)

    def committable(self, assigned: AssignedQueue) -> int | None:
        return self._listener.committable(assigned)

    async def _keep_locked(self) -> None:
        pause_s = self.options.lock_interval_s
        while True:
            await asyncio.sleep(pause_s)
            # A queue that still finishes its last message must not be consumed by its next owner.
            leaving = [assigned for assigned, _ in self._releasing.values()]
            has_all = await self._locks.renew([*self.assignments.values(), *leaving])
            pause_s = self.options.lock_interval_s
            if not has_all:
                pause_s = min(pause_s, SOON_S)
