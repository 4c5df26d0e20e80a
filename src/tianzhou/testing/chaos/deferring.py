"""Messages that are not visible at once: delayed and timed messages, and transactions.

The decision about a transaction is a function of its value, so that a check, which may come much
later and from another broker, decides as its producer did. A quarter is left to checks.
"""

import asyncio
import time
from datetime import timedelta
from itertools import count
from typing import Final

from tianzhou.base.errors import TianzhouError
from tianzhou.client import (
    Message,
    MessageView,
    Producer,
    ProducerOptions,
    SendResult,
    SendStatus,
    TransactionState,
)
from tianzhou.testing.chaos.history import History, Kind, Outcome, Send
from tianzhou.testing.chaos.producing import AFTER_REFUSAL_S, SEND_S, is_refusal, reader_options
from tianzhou.testing.chaos.values import body_of, serial_of, value_in, value_of

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
            "chaos-deferrers", nameserver=self._nameserver, options=options,
            client=reader_options("deferrer"), check=_decide,
        ) as producer:  # fmt: skip
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
                self._topic, body_of(value), delay_level=0 if rank else 1,
                delay=timedelta(seconds=delay_s) if rank else None,
            )  # fmt: skip
            began = time.monotonic()
            try:
                answer: Answer = await producer.send(message)
            except TianzhouError as error:
                answer = error
            await self._pause(
                noted(DELAYER, value, began, answer, kind=Kind.DELAYED, due=began + delay_s)
            )

    async def _transact(self, producer: Producer) -> None:
        for serial in count():
            if self.is_over:
                return
            value, began = value_of(TRANSACTOR, serial), time.monotonic()
            kind = kind_of(value)
            try:
                async with producer.transaction(Message(self._topic, body_of(value))) as begun:
                    send = noted(TRANSACTOR, value, began, begun.half, kind=kind)
                    if serial % 4 == 3:
                        begun.leave_undecided()
                    elif kind is Kind.ROLLED_BACK:
                        await begun.rollback()
            except TianzhouError as error:
                send = noted(TRANSACTOR, value, began, error, kind=kind)
            await self._pause(send)


def noted(
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
