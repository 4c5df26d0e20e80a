"""Consumers of a load: one follows every queue by pulls, one is a member of a group."""

import asyncio
import threading
import time
from typing import Final

from tianzhou.base.errors import TianzhouError
from tianzhou.client import (
    ConsumerOptions,
    MessageQueue,
    PullConsumer,
    PullStatus,
    PushConsumer,
    ReceivedMessage,
    StartPosition,
)
from tianzhou.testing.chaos import looking
from tianzhou.testing.chaos.cluster import Broker
from tianzhou.testing.chaos.history import Commit, Delivery, History, Queue, Turn
from tianzhou.testing.chaos.producing import place_of, reader_options
from tianzhou.testing.chaos.values import value_in

FOLLOWERS: Final = "chaos-followers"
MEMBERS: Final = "chaos-members"
GROUPS: Final = (FOLLOWERS, MEMBERS)
PULL_COUNT: Final = 256
WAIT_S: Final = 1.0
AFTER_ERROR_S: Final = 0.1
LOOK_S: Final = 0.5


class Following:
    """Reads every queue in order, from its first message, and retries failed pulls."""

    def __init__(self, history: History, nameserver: str, topic: str) -> None:
        self._history = history
        self._nameserver = nameserver
        self._topic = topic
        self.is_over = False

    async def run(self) -> None:
        async with PullConsumer(
            FOLLOWERS, nameserver=self._nameserver, client=reader_options("follower")
        ) as consumer:
            queues = await consumer.queues(self._topic)
            async with asyncio.TaskGroup() as group:
                for queue in queues:
                    group.create_task(self._follow(consumer, queue))

    async def _follow(self, consumer: PullConsumer, queue: MessageQueue) -> None:
        at = 0
        while not self.is_over:
            try:
                found = await consumer.pull(queue, at, count_max=PULL_COUNT, wait_s=WAIT_S)
            except TianzhouError:
                await asyncio.sleep(AFTER_ERROR_S)
                continue
            now = time.monotonic()
            if found.messages:
                self._history.delivered(
                    Delivery(
                        "follower",
                        FOLLOWERS,
                        value_in(bytes(message.body)),
                        place_of(queue, message.queue_offset),
                        now,
                    )
                    for message in found.messages
                )
                at = found.messages[-1].queue_offset + 1
            elif found.status is PullStatus.OFFSET_ILLEGAL:
                if found.next_offset < at:
                    where = Queue(queue.broker_name, queue.queue_id)
                    self._history.turns.append(Turn("follower", where, at, found.next_offset, now))
                at = found.next_offset  # as every consumer does
                await asyncio.sleep(AFTER_ERROR_S)


class Membership:
    """A consumer whose group's offsets are stored by the brokers."""

    def __init__(self, history: History, nameserver: str, topic: str) -> None:
        self._history = history
        options = ConsumerOptions(
            start_from=StartPosition.FIRST,
            commit_interval_s=0.5,
            rebalance_interval_s=2.0,
            long_poll_s=2.0,
            stop_timeout_s=5.0,
        )
        self._consumer = PushConsumer(
            MEMBERS,
            nameserver=nameserver,
            subscribe={topic: "*"},
            options=options,
            client=reader_options("member"),
        )
        self._consumer.listen(self._on_message)

    async def _on_message(self, message: ReceivedMessage) -> None:
        place = place_of(message.queue, message.queue_offset)
        value = value_in(bytes(message.body))
        self._history.delivered([Delivery("member", MEMBERS, value, place, time.monotonic())])

    async def start(self) -> None:
        await self._consumer.start()

    async def stop(self) -> None:
        """Stop the consumer, which commits its offsets."""
        await self._consumer.stop()


class OffsetWatch:
    """Polls the brokers for the group's offsets. Owner: its thread."""

    def __init__(self, history: History, brokers: list[Broker], topic: str, queues: int) -> None:
        self._history = history
        self._brokers = brokers
        self._topic = topic
        self._queues = queues
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-offsets", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            for broker in self._brokers:
                for queue_id in range(self._queues):
                    self._look(broker, Queue(broker.group, queue_id))

    def _look(self, broker: Broker, queue: Queue) -> None:
        life = broker.server.life
        try:
            offset = looking.committed(broker.address, MEMBERS, self._topic, queue.queue_id)
        except TianzhouError:
            return  # the broker is dead, paused or cut off
        # A response belongs to a process only if that process ran before and after it.
        if offset is not None and life == broker.server.life:
            row = Commit(MEMBERS, queue, offset, life, time.monotonic())
            self._history.commits.append(row)

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
