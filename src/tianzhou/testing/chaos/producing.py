"""Producers of a load: the Python client, one send after the other, each recorded.

`Producing` sends plain messages. `Deferring` sends messages that are not visible at once: delayed
and timed messages, and transactions. The decision about a transaction is a function of its value,
so that a check, which may come much later and from another broker, decides as its producer did. A
quarter of the transactions is left to checks.
"""

import asyncio
import time
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from typing import Final

from tianzhou.base.errors import TianzhouError
from tianzhou.client import (
    ClientOptions,
    Message,
    MessageQueue,
    MessageView,
    Producer,
    ProducerOptions,
    SendResult,
    SendStatus,
    TransactionState,
)
from tianzhou.client.errors import may_be_stored
from tianzhou.testing.chaos.history import History, Kind, Outcome, Place, Queue, Send
from tianzhou.testing.chaos.values import body_of, serial_of, value_in, value_of

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
            "chaos-producers",
            nameserver=self._nameserver,
            options=options,
            client=client_options(client),
        ) as producer:
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
            client,
            value,
            began,
            time.monotonic(),
            outcome,
            place,
            status,
            producer.options.tries_max,
        )


def is_refusal(error: TianzhouError) -> bool:
    """Whether the message is certainly not stored, according to the client."""
    return not may_be_stored(error)


Answer = SendResult | TianzhouError
DELAYER: Final = "delayer"
TRANSACTOR: Final = "transactor"
PAUSE_S: Final = 0.03
LEVEL_S: Final = 1.0
"""The duration of delay level 1; see SETTINGS of the cluster."""
TIMED_S: Final = (0.2, 0.9)
QUIET_S: Final = 20.0


def kind_of(value: str) -> Kind:
    """Return how a transaction ends."""
    return Kind.ROLLED_BACK if serial_of(value) % 3 == 2 else Kind.COMMITTED


def _decide(message: MessageView) -> TransactionState:
    is_committed = kind_of(value_in(bytes(message.body))) is Kind.COMMITTED
    return TransactionState.COMMIT if is_committed else TransactionState.ROLLBACK


class Deferring:
    """Sends until `quiet`, then answers transaction checks until `leave`. Owner: the loop of the
    load."""

    def __init__(self, history: History, nameserver: str, topic: str) -> None:
        self._history = history
        self._nameserver = nameserver
        self._topic = topic
        self.is_over = False
        self._is_quiet = asyncio.Event()
        self._may_leave = asyncio.Event()

    async def run(self) -> None:
        # One try: a second one could leave a half message that its producer does not know.
        options = ProducerOptions(tries_max=1, send_timeout_s=SEND_S)
        async with Producer(
            "chaos-deferrers",
            nameserver=self._nameserver,
            options=options,
            client=reader_options("deferrer"),
            check=_decide,
        ) as producer:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._delay(producer))
                group.create_task(self._transact(producer))
            self._is_quiet.set()
            await self._may_leave.wait()

    async def quiet(self) -> None:
        """Stop sending; transaction checks are still answered."""
        self.is_over = True
        async with asyncio.timeout(QUIET_S):
            await self._is_quiet.wait()

    def leave(self) -> None:
        self.is_over = True
        self._may_leave.set()

    async def _pause(self, send: Send) -> None:
        self._history.sent(send)
        await asyncio.sleep(AFTER_REFUSAL_S if send.outcome is Outcome.REFUSED else PAUSE_S)

    async def _delay(self, producer: Producer) -> None:
        for serial in count():
            if self.is_over:
                return
            rank, value = serial % (1 + len(TIMED_S)), value_of(DELAYER, serial)
            delay_s = TIMED_S[rank - 1] if rank else LEVEL_S
            message = Message(
                self._topic,
                body_of(value),
                delay_level=0 if rank else 1,
                delay=timedelta(seconds=delay_s) if rank else None,
            )
            began = time.monotonic()
            try:
                answer: Answer = await producer.send(message)
            except TianzhouError as error:
                answer = error
            await self._pause(
                deferred_send(DELAYER, value, began, answer, kind=Kind.DELAYED, due=began + delay_s)
            )

    async def _transact(self, producer: Producer) -> None:
        for serial in count():
            if self.is_over:
                return
            value, began = value_of(TRANSACTOR, serial), time.monotonic()
            kind = kind_of(value)
            try:
                async with producer.transaction(Message(self._topic, body_of(value))) as begun:
                    send = deferred_send(TRANSACTOR, value, began, begun.half, kind=kind)
                    if serial % 4 == 3:
                        begun.leave_undecided()
                    elif kind is Kind.ROLLED_BACK:
                        await begun.rollback()
            except TianzhouError as error:
                send = deferred_send(TRANSACTOR, value, began, error, kind=kind)
            await self._pause(send)


def deferred_send(
    client: str, value: str, began: float, answer: Answer, *, kind: Kind, due: float = 0.0
) -> Send:
    """Build the history entry. The response's offset is not the message's final one."""
    if isinstance(answer, TianzhouError):
        outcome = Outcome.REFUSED if is_refusal(answer) else Outcome.UNKNOWN
        status = f"{type(answer).__name__}: {answer}"
    else:
        outcome = Outcome.OK if answer.status is SendStatus.SEND_OK else Outcome.UNKNOWN
        status = answer.status.name
    return Send(client, value, began, time.monotonic(), outcome, status=status, kind=kind, due=due)
