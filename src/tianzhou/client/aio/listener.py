"""A user's listener: function or coroutine function, for one message or for several.

Whatever it raises is a failed delivery, never the end of the consumer: the messages go back, and
the log has the trace. Nothing, or `ConsumeResult.SUCCESS`, is a success; single messages of a batch
can be sent back with `message.retry()`.
"""

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, Final, TypeAlias, TypeVar, cast

from tianzhou.base.errors import UsageError
from tianzhou.client.aio.consumer_trace import ConsumeTrace, Consumption
from tianzhou.client.core.outcome import GROWING, ConsumeResult
from tianzhou.client.core.received import ReceivedMessage
from tianzhou.client.core.trace import ContextCode

log: Final = logging.getLogger("tianzhou.client")

Result: TypeAlias = ConsumeResult | None
Outcome = TypeVar("Outcome", bound=Result | Awaitable[Result])
"""What a listener returns. Decorators keep it, and checkers know what a lambda is given."""
MessageListener: TypeAlias = Callable[[ReceivedMessage], Outcome]
BatchListener: TypeAlias = Callable[[list[ReceivedMessage]], Outcome]
AnyListener: TypeAlias = (
    MessageListener[Result | Awaitable[Result]] | BatchListener[Result | Awaitable[Result]]
)

_calling: Final[ContextVar["Listener | None"]] = ContextVar("listener", default=None)

Failure: TypeAlias = tuple[ReceivedMessage, int]
"""A message that is to be delivered again, and its delay level."""


class Listener:
    def __init__(self, function: AnyListener, *, batch_size: int = 0) -> None:
        """`batch_size` 0: the function takes one message, not a list."""
        if not callable(function):
            raise UsageError(f"a listener is a function or coroutine function, not {function!r}")
        self._function = cast("Callable[[Any], Any]", function)
        self.is_batch = batch_size > 0
        self.count_max = batch_size or 1
        self.trace: ConsumeTrace | None = None
        called: object = getattr(function, "__call__", None)  # noqa: B004 - its kind is wanted
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)

    def enter(self) -> None:
        """Said by a task or thread that will call it."""
        _calling.set(self)

    @property
    def is_calling(self) -> bool:
        """Whether this is said in a call of it, or in what such a call has begun."""
        return _calling.get() is self

    async def call(self, messages: list[ReceivedMessage]) -> Sequence[Failure]:
        """Those that failed, of a coroutine function."""
        began = self.trace.began(messages) if self.trace is not None else None
        try:
            result = await self._function(messages if self.is_batch else messages[0])
        except Exception as error:
            return self._ended(began, _raised(messages, error), ContextCode.EXCEPTION)
        return self._ended(began, _judged(messages, result), ContextCode.FAILED)

    def call_here(self, messages: list[ReceivedMessage]) -> Sequence[Failure]:
        """The same of a function, in the calling thread."""
        began = self.trace.began(messages) if self.trace is not None else None
        try:
            result = self._function(messages if self.is_batch else messages[0])
        except Exception as error:
            return self._ended(began, _raised(messages, error), ContextCode.EXCEPTION)
        return self._ended(began, _judged(messages, result), ContextCode.FAILED)

    def _ended(
        self, began: Consumption | None, failures: Sequence[Failure], code: ContextCode
    ) -> Sequence[Failure]:
        if began is not None and self.trace is not None:
            self.trace.ended(began, code if failures else ContextCode.SUCCESS)
        return failures


def _raised(messages: list[ReceivedMessage], error: Exception) -> list[Failure]:
    first = messages[0]
    log.warning(
        "listener.failed", exc_info=error,
        extra={"topic": first.topic, "message_id": first.message_id, "count": len(messages)},
    )  # fmt: skip
    return [(message, message.verdict or GROWING) for message in messages]


def _judged(messages: list[ReceivedMessage], result: object) -> Sequence[Failure]:
    if result is None or result is ConsumeResult.SUCCESS:
        if len(messages) == 1:
            verdict = messages[0].verdict
            return () if verdict is None else ((messages[0], verdict),)
        return [(message, message.verdict) for message in messages if message.verdict is not None]
    if result is not ConsumeResult.LATER:
        log.warning(
            "listener.returned_nonsense",
            extra={"returned": repr(result)[:64], "wanted": "None or a ConsumeResult"},
        )
    return [(message, message.verdict or GROWING) for message in messages]
