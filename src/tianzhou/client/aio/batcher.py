"""Batching with linger: decide when each batch is sent, and report the result of each message."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from tianzhou.client.core.batching import Batch, Kind, OpenBatches
from tianzhou.client.core.failure import Failure
from tianzhou.client.core.sending import SendResult
from tianzhou.client.options import Batching
from tianzhou.record.message import Message

OnSent = Callable[[SendResult | None, Failure | None], None]


class PendingMessage(NamedTuple):
    """The id of a message in a batch, and the callback that gets its result, once."""

    message_id: str
    on_sent: OnSent


OnBatch = Callable[[list[SendResult], Failure | None], None]
Dispatch = Callable[[Batch[PendingMessage], OnBatch], None]


class Batcher:
    """Send open batches when they are full, or when they have waited for `linger_s`.

    Owner: the event loop.
    """

    def __init__(self, rules: Batching, dispatch: Dispatch) -> None:
        self._rules = rules
        self._dispatch = dispatch
        self._loop = asyncio.get_running_loop()
        self._open_batches: OpenBatches[PendingMessage] = OpenBatches(rules)
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

        def on_batch(results: list[SendResult], failure: Failure | None) -> None:
            self._in_flight[kind] -= 1
            if not self._in_flight[kind]:
                del self._in_flight[kind]
                if not self._rules.linger_s:
                    self._linger_ended(kind)
            if failure is not None:
                for pending in batch.tokens:
                    pending.on_sent(None, failure)
            else:
                for pending, result in zip(batch.tokens, results, strict=True):
                    pending.on_sent(result, None)

        self._dispatch(batch, on_batch)
