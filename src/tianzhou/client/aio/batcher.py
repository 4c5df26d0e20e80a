"""Batching: messages that are sent one by one wait for their batch.

`OpenBatches` decides which messages are in a batch, and when it is full; here are the timers.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tianzhou.client.core.send import Failure, OnSent
from tianzhou.client.core.send_request import Batch, Kind, OpenBatches, SendResult
from tianzhou.client.options import Batching
from tianzhou.record.message import Message


class PendingMessage(NamedTuple):
    """The id of a message in a batch, and the callback that gets its result, once."""

    message_id: str
    on_sent: OnSent


Dispatch = Callable[[Batch[PendingMessage], OnSent], None]


class Batcher:
    """Send open batches when they are full, or when they have waited for `linger_s`.

    Owner: the event loop.
    """

    def __init__(self, rules: Batching, dispatch: Dispatch) -> None:
        self._rules = rules
        self._dispatch = dispatch
        self._loop = asyncio.get_running_loop()
        self._open_batches: OpenBatches[PendingMessage] = OpenBatches(
            count_max=rules.count_max, bytes_max=rules.bytes_max
        )
        self._timers: dict[Kind, asyncio.TimerHandle | asyncio.Handle] = {}
        self._in_flight: Counter[Kind] = Counter()

    def accepts(self, message: Message) -> bool:
        return self._open_batches.accepts(message)

    def add(self, kind: Kind, message: Message, pending: PendingMessage) -> None:
        for batch in self._open_batches.add(kind, message, pending):
            self._send(batch)
        if kind in self._timers or self._open_batches.open_batch(kind) is None:
            return
        if self._rules.linger_s:
            self._timers[kind] = self._loop.call_later(
                self._rules.linger_s, self._linger_ended, kind
            )
        elif not self._in_flight[kind]:
            # At the end of this loop iteration, with everything else that is sent in it.
            self._timers[kind] = self._loop.call_soon(self._linger_ended, kind)

    def flush(self) -> None:
        """Send every open batch now."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for batch in self._open_batches.take_all():
            self._send(batch)

    def _linger_ended(self, kind: Kind) -> None:
        self._timers.pop(kind, None)
        batch = self._open_batches.take(kind)
        if batch is not None:
            self._send(batch)

    def _send(self, batch: Batch[PendingMessage]) -> None:
        kind = batch.kind
        if self._open_batches.open_batch(kind) is None and (timer := self._timers.pop(kind, None)):
            timer.cancel()
        self._in_flight[kind] += 1

        def on_sent(results: Sequence[SendResult], failure: Failure | None) -> None:
            self._in_flight[kind] -= 1
            if not self._in_flight[kind]:
                del self._in_flight[kind]
                if not self._rules.linger_s:
                    self._linger_ended(kind)
            if failure is not None:
                for pending in batch.tokens:
                    pending.on_sent((), failure)
            else:
                for pending, result in zip(batch.tokens, results, strict=True):
                    pending.on_sent((result,), None)

        self._dispatch(batch, on_sent)
