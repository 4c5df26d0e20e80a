"""Producers of a load: the Python client, one send after the other, each recorded."""

import asyncio
import time
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

from tianzhou.base.errors import TianzhouError
from tianzhou.client import (
    ClientOptions,
    Message,
    MessageQueue,
    Producer,
    ProducerOptions,
    SendStatus,
)
from tianzhou.client.errors import may_be_stored
from tianzhou.testing.chaos.history import History, Outcome, Place, Queue, Send
from tianzhou.testing.chaos.values import body_of, value_of

SEND_S: Final = 3.0
TRIES: Final = (1, 3)
"""Producers try once or three times, in turn: with one try, no message may be stored twice."""
AFTER_REFUSAL_S: Final = 0.05
ROUTE_S: Final = 1.0
HEARTBEAT_S: Final = 1.0


def client_options(name: str) -> ClientOptions:
    """Return options with a distinct client id. Producers use the defaults otherwise, because their
    time without a broker is measured."""
    return ClientOptions(instance_name=name, client_ip="127.0.0.1")


def reader_options(name: str) -> ClientOptions:
    """Return options with short intervals, so that a scenario need not wait for routes."""
    return replace(client_options(name), route_interval_s=ROUTE_S, heartbeat_interval_s=HEARTBEAT_S)


def place_of(queue: MessageQueue, offset: int) -> Place:
    return Place(Queue(queue.broker_name, queue.queue_id), offset)


@dataclass(frozen=True, slots=True)
class Pace:
    producers: int = 6
    per_second: float = 80.0
    """Per producer; fewer on a slow cluster, because a producer waits for each response."""


class Producing:
    """Sends until `is_over` is set. Owner: the loop of the load."""

    def __init__(self, history: History, nameserver: str, topic: str, pace: Pace) -> None:
        self._history = history
        self._nameserver = nameserver
        self._topic = topic
        self._pace = pace
        self.is_over = False

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for rank in range(self._pace.producers):
                group.create_task(self._produce(f"ours{rank}", TRIES[rank % len(TRIES)]))

    async def _produce(self, client: str, tries_max: int) -> None:
        options = ProducerOptions(tries_max=tries_max, send_timeout_s=SEND_S)
        pause_s = 1 / self._pace.per_second
        async with Producer(
            "chaos-producers", nameserver=self._nameserver, options=options,
            client=client_options(client),
        ) as producer:  # fmt: skip
            for serial in count():
                if self.is_over:
                    return
                began = time.monotonic()
                send = await self._send(producer, client, serial)
                self._history.sent(send)
                is_refused = send.outcome is Outcome.REFUSED
                due = began + (AFTER_REFUSAL_S if is_refused else pause_s)
                await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _send(self, producer: Producer, client: str, serial: int) -> Send:
        value, began = value_of(client, serial), time.monotonic()
        place: Place | None = None
        try:
            result = await producer.send(Message(self._topic, body_of(value)))
        except TianzhouError as error:
            outcome = Outcome.REFUSED if is_refusal(error) else Outcome.UNKNOWN
            status = f"{type(error).__name__}: {error}"
        else:
            is_ok = result.status is SendStatus.SEND_OK
            outcome = Outcome.OK if is_ok else Outcome.UNKNOWN
            status = result.status.name
            place = place_of(result.queue, result.queue_offset)
        return Send(
            client, value, began, time.monotonic(), outcome, place, status,
            producer.options.tries_max,
        )  # fmt: skip


def is_refusal(error: TianzhouError) -> bool:
    """Whether the message is certainly not stored, according to the client."""
    return not may_be_stored(error)
