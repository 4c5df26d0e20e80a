"""The clock of gathered batches: when each of them leaves, and who is told what became of it."""

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


class Awaited(NamedTuple):
    """Who is told, once, what became of a message, and the id that it travels with."""

    message_id: str
    on_sent: OnSent


OnBatch = Callable[[list[SendResult], Failure | None], None]
Dispatch = Callable[[Batch[Awaited], OnBatch], None]


class Batcher:
    """Owner: the event loop."""

    def __init__(self, rules: Batching, dispatch: Dispatch) -> None:
        self._rules = rules
        self._dispatch = dispatch
        self._loop = asyncio.get_running_loop()
        self._open_batches: OpenBatches[Awaited] = OpenBatches(rules)
        self._timers: dict[Kind, asyncio.TimerHandle | asyncio.Handle] = {}
        self._under_way: Counter[Kind] = Counter()

    def can_take(self, message: Message) -> bool:
        return self._open_batches.can_take(message)

    def add(self, kind: Kind, message: Message, awaited: Awaited) -> None:
        for batch in self._open_batches.add(kind, message, awaited):
            self._leave(batch)
        if kind in self._timers or self._open_batches.open_batch(kind) is None:
            return
        if self._rules.linger_s:
            self._timers[kind] = self._loop.call_later(self._rules.linger_s, self._due, kind)
        elif not self._under_way[kind]:
            # At the end of this round, with everything else that is sent in it.
            self._timers[kind] = self._loop.call_soon(self._due, kind)

    def flush(self) -> None:
        """Everything leaves now."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for batch in self._open_batches.take_all():
            self._leave(batch)

    def _due(self, kind: Kind) -> None:
        self._timers.pop(kind, None)
        batch = self._open_batches.take(kind)
        if batch is not None:
            self._leave(batch)

    def _leave(self, batch: Batch[Awaited]) -> None:
        kind = batch.kind
        if self._open_batches.open_batch(kind) is None and (timer := self._timers.pop(kind, None)):
            timer.cancel()
        self._under_way[kind] += 1

        def on_batch(results: list[SendResult], failure: Failure | None) -> None:
            self._under_way[kind] -= 1
            if not self._under_way[kind]:
                del self._under_way[kind]
                if not self._rules.linger_s:
                    self._due(kind)
            if failure is not None:
                for awaited in batch.tokens:
                    awaited.on_sent(None, failure)
            else:
                for awaited, result in zip(batch.tokens, results, strict=True):
                    awaited.on_sent(result, None)

        self._dispatch(batch, on_batch)
