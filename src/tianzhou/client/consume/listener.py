"""A user's listener: function or coroutine function, for one message or for several.

An exception is a failed delivery, never the end of the consumer: the messages are redelivered, and
the log has the traceback. None and `ConsumeResult.SUCCESS` mean success; `message.retry()` rejects
single messages of a batch.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, Final, TypeAlias, TypeVar, cast

from tianzhou.base.errors import UsageError
from tianzhou.client.core.received import GROWING, ConsumeResult, ReceivedMessage
from tianzhou.client.core.trace import ContextCode
from tianzhou.client.tracing import ConsumeTrace, Consumption

log: Final = logging.getLogger("tianzhou.client")

Result: TypeAlias = ConsumeResult | None
Outcome = TypeVar("Outcome", bound=Result | Awaitable[Result])
"""The type that a listener returns. Decorators keep it, so checkers know a lambda's argument."""
MessageListener: TypeAlias = Callable[[ReceivedMessage], Outcome]
BatchListener: TypeAlias = Callable[[list[ReceivedMessage]], Outcome]
AnyListener: TypeAlias = (
    MessageListener[Result | Awaitable[Result]] | BatchListener[Result | Awaitable[Result]]
)

_calling: Final[ContextVar["Listener | None"]] = ContextVar("listener", default=None)

Failure: TypeAlias = tuple[ReceivedMessage, int]
"""A message to redeliver, and its delay level."""


class Listener:
    def __init__(self, function: AnyListener, group: str, *, batch_size: int = 0) -> None:
        """Wrap a user's function for a group. With `batch_size` 0 it takes one message, otherwise
        a list."""
        if not callable(function):
            raise UsageError(f"a listener is a function or coroutine function, not {function!r}")
        self._function = cast("Callable[[Any], Any]", function)
        self._group = group
        self.is_batch = batch_size > 0
        self.count_max = batch_size or 1
        self.trace: ConsumeTrace | None = None
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
        began = self.trace.began(messages) if self.trace is not None else None
        try:
            result = await self._function(messages if self.is_batch else messages[0])
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and _is_being_cancelled():
                raise
            return self._ended(began, self._raised(messages, error), ContextCode.EXCEPTION)
        return self._ended(began, self._judged(messages, result), ContextCode.FAILED)

    def call_here(self, messages: list[ReceivedMessage]) -> Sequence[Failure]:
        """Call a function in this thread; return the failed messages."""
        began = self.trace.began(messages) if self.trace is not None else None
        try:
            result = self._function(messages if self.is_batch else messages[0])
        except (Exception, asyncio.CancelledError) as error:  # threads have no cancellation
            return self._ended(began, self._raised(messages, error), ContextCode.EXCEPTION)
        return self._ended(began, self._judged(messages, result), ContextCode.FAILED)

    def _ended(
        self, began: Consumption | None, failures: Sequence[Failure], code: ContextCode
    ) -> Sequence[Failure]:
        if began is not None and self.trace is not None:
            self.trace.ended(began, code if failures else ContextCode.SUCCESS)
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


def described(messages: Sequence[ReceivedMessage]) -> str:
    """Describe this delivery for human readers of a log."""
    first = messages[0]
    others = f" and {len(messages) - 1} more of its batch" if len(messages) > 1 else ""
    text = (
        f"message {first.message_id}{others} (topic {first.topic}, queue {first.queue.broker_name}:"
        f"{first.queue_id}, offset {first.queue_offset}, attempt {first.reconsume_times + 1})"
    )
    # Its producer chose the id; it must not inject terminal control sequences or extra log lines.
    return text if text.isprintable() else ascii(text)[1:-1]


def message_facts(group: str, message: ReceivedMessage) -> dict[str, object]:
    """The same as fields, for programs that parse a log."""
    return {
        "group": group,
        "topic": message.topic,
        "message_id": message.message_id,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "attempt": message.reconsume_times + 1,
    }
