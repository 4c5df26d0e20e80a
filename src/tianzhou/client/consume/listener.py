"""A user's listener, and the tasks that call it: function or coroutine function, for one message or
for several.

An exception is a failed delivery, never the end of the consumer: the messages are redelivered, and
the log has the traceback. None and `ConsumeResult.SUCCESS` mean success; `message.retry()` rejects
single messages of a batch.

A bounded number of calls runs at once: coroutine functions in tasks (`TaskWorkers`), functions in
threads (`listener_threads`). Neither needs a task or a thread for each message: workers take one
message after the other. One worker starts; others join while messages wait, so a fast listener
needs one worker and a slow one gets as many as allowed.
"""

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from time import monotonic
from typing import Any, Final, TypeAlias, TypeVar, cast

from tianzhou.base.errors import UsageError
from tianzhou.client.consume.context import ConsumerContext
from tianzhou.client.consume.deliveries import Acknowledger, Ready
from tianzhou.client.core.assigned_queue import AssignedQueue
from tianzhou.client.core.received import (
    AFTER_THE_CALL,
    GROWING,
    ConsumeResult,
    Failure,
    PulledRecords,
    ReceivedMessage,
    RecordSlice,
    described,
    message_facts,
)
from tianzhou.client.core.trace import ContextCode
from tianzhou.client.hooks import ConsumeObserver

log: Final = logging.getLogger("tianzhou.client")

TURN: Final = 64
"""Messages that a worker processes before it yields to the event loop."""

Result: TypeAlias = ConsumeResult | None
Outcome = TypeVar("Outcome", bound=Result | Awaitable[Result])
"""The type that a listener returns. Decorators keep it, so checkers know a lambda's argument."""
MessageListener: TypeAlias = Callable[[ReceivedMessage], Outcome]
BatchListener: TypeAlias = Callable[[list[ReceivedMessage]], Outcome]
AnyListener: TypeAlias = (
    MessageListener[Result | Awaitable[Result]] | BatchListener[Result | Awaitable[Result]]
)

_calling: Final[ContextVar["Listener | None"]] = ContextVar("listener", default=None)


class Listener:
    def __init__(
        self, function: AnyListener, group: str, *, batch_size: int = 0, spans: bool = False
    ) -> None:
        """Wrap a user's function for a group. With `batch_size` 0 it takes one message, otherwise
        a list; `spans` runs it in OpenTelemetry spans."""
        if not callable(function):
            raise UsageError(f"a listener is a function or coroutine function, not {function!r}")
        if spans:
            from tianzhou.client.spans import listener_in_spans

            function = listener_in_spans(function, group, is_batch=batch_size > 0)
        self._function = cast("Callable[[Any], Any]", function)
        self._group = group
        self.is_batch = batch_size > 0
        self.count_max = batch_size or 1
        self.observer: ConsumeObserver | None = None
        called: object = getattr(function, "__call__", None)  # noqa: B004 - its kind is wanted
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)

    def enter(self) -> None:
        """Mark this task or thread as one that calls the listener."""
        _calling.set(self)

    @property
    def is_calling(self) -> bool:
        """Whether the caller runs in a call of the listener, or in a task of such a call."""
        return _calling.get() is self

    async def call(self, messages: list[ReceivedMessage]) -> Sequence[Failure]:
        """Call a coroutine function; return the failed messages."""
        observer = self.observer
        began = observer.began(messages) if observer is not None else None
        try:
            result = await self._function(messages if self.is_batch else messages[0])
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and _is_being_cancelled():
                raise
            return self._ended(began, self._raised(messages, error), error)
        failures = self._judged(messages, result)
        return failures if began is None else self._ended(began, failures)

    def call_here(self, messages: list[ReceivedMessage]) -> Sequence[Failure]:
        """Call a function in this thread; return the failed messages."""
        observer = self.observer
        began = observer.began(messages) if observer is not None else None
        try:
            result = self._function(messages if self.is_batch else messages[0])
        except (Exception, asyncio.CancelledError) as error:  # threads have no cancellation
            return self._ended(began, self._raised(messages, error), error)
        failures = self._judged(messages, result)
        return failures if began is None else self._ended(began, failures)

    def _ended(
        self, began: Any, failures: Sequence[Failure], error: BaseException | None = None
    ) -> Sequence[Failure]:
        """Report the end of a call; return its failures."""
        if began is not None and self.observer is not None:
            failed = ContextCode.FAILED if error is None else ContextCode.EXCEPTION
            self.observer.ended(began, failed if failures else ContextCode.SUCCESS, error)
        return failures

    def _raised(self, messages: list[ReceivedMessage], error: BaseException) -> list[Failure]:
        log.warning(
            "listener of group %s raised %s for %s",
            self._group,
            type(error).__name__,
            described(messages),
            exc_info=error,
            extra=message_facts(self._group, messages[0]),
        )
        return [(message, message.verdict or GROWING) for message in messages]

    def _judged(self, messages: list[ReceivedMessage], result: object) -> Sequence[Failure]:
        if result is None or result is ConsumeResult.SUCCESS:
            if len(messages) == 1:
                verdict = messages[0].verdict
                return () if verdict is None else ((messages[0], verdict),)
            return [
                (message, message.verdict) for message in messages if message.verdict is not None
            ]
        if result is not ConsumeResult.LATER:
            log.warning(
                "listener of group %s returned %.64r for %s; it must return None or a "
                "ConsumeResult, so the delivery counts as failed",
                self._group,
                result,
                described(messages),
                extra=message_facts(self._group, messages[0]),
            )
        return [(message, message.verdict or GROWING) for message in messages]


def _is_being_cancelled() -> bool:
    """Whether the consumer cancels this task. If not, a CancelledError is the listener's own: it
    awaited a task or a future that something else has cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


# Calls in tasks

InFlight = dict[int, tuple[float, RecordSlice, list[ReceivedMessage]]]
"""The messages of each worker and their start times, to find calls that take too long."""


def overdue(in_flight: InFlight, before: float) -> list[tuple[RecordSlice, ReceivedMessage]]:
    """Remove and return overdue messages; their workers notice when they are done."""
    late = [worker for worker, (since, _, _) in list(in_flight.items()) if since < before]
    rows = [row for worker in late if (row := in_flight.pop(worker, None)) is not None]
    return [(part, message) for _, part, messages in rows for message in messages]


class TaskWorkers:
    """Call a coroutine function in tasks.

    Owner: the event loop.
    """

    def __init__(
        self, context: ConsumerContext, listener: Listener, ready: Ready, acknowledger: Acknowledger
    ) -> None:
        self._context = context
        self._concurrency = context.options.concurrency
        self._listener = listener
        self._ready = ready
        self._acknowledger = acknowledger
        self._in_flight: InFlight = {}
        self._idle: deque[asyncio.Future[None]] = deque()
        self._started = 0
        self._is_spreading = False

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    def offer(self, pulled: PulledRecords) -> None:
        self._ready.put(pulled)
        self._wake()
        if not self._is_spreading:
            self._is_spreading = True
            self._loop.call_soon(self._spread)

    def _spread(self) -> None:
        """Start more workers for messages that still wait after the workers had their turn."""
        self._is_spreading = False
        for _ in range(min(self._ready.count, self._concurrency)):
            if not self._wake():
                return

    def _wake(self) -> bool:
        while self._idle:
            waiting = self._idle.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return True
        if self._started < self._concurrency:
            self._context.tasks.run(self._work(self._started))
            self._started += 1
            return True
        return False

    async def _work(self, number: int) -> None:
        ready, listener, in_flight = self._ready, self._listener, self._in_flight
        settle, count_max, turn = self._acknowledger.settle, listener.count_max, 0
        listener.enter()
        while True:
            part = ready.take(count_max)
            if part is None:
                waiting = self._loop.create_future()
                self._idle.append(waiting)
                await waiting
                turn = 0
                continue
            messages = part.messages(AFTER_THE_CALL)
            begun = monotonic()
            in_flight[number] = (begun, part, messages)
            failures = None
            try:
                failures = await listener.call(messages)
            finally:
                is_ours = in_flight.pop(number, None) is not None
                if failures is None:  # cancelled: neither finished nor in flight
                    ready.settle(part.assigned, part.end - part.first)
            if is_ours and failures is not None:
                settle(part, failures, monotonic() - begun)
            turn += 1
            if turn >= TURN:
                turn = 0
                await asyncio.sleep(0)

    def discard(self, assigned: AssignedQueue) -> None:
        self._ready.discard(assigned)

    def overdue(self, before: float) -> list[tuple[RecordSlice, ReceivedMessage]]:
        return overdue(self._in_flight, before)

    async def stop(self) -> None:
        """Nothing to do: the consumer cancels its tasks."""
