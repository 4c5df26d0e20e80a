"""What is told to those whose messages could not be sent."""

from collections.abc import Sequence
from typing import Final

from tianzhou.client.errors import (
    NoPermission,
    SendFailed,
    SendTimeout,
    TopicNotExist,
    Try,
    may_be_stored,
)

MOVED: Final = (NoPermission, TopicNotExist)
"""A broker refused because the client's route is stale: the broker is being drained, or no longer
has the topic. Nothing was stored."""


class Failure:
    """Why a request was not sent. Each caller gets an exception of its own, because one that is
    raised twice mixes up the tracebacks."""

    __slots__ = ("_final", "_timed_out", "_topic", "spent_s", "tries")

    def __init__(
        self, topic: str, tries: Sequence[Try] = (), *, spent_s: float = 0.0,
        timed_out: bool = False, final: BaseException | None = None,
    ) -> None:  # fmt: skip
        """`final` is an error that no further attempt would change; the caller gets it as it is."""
        self._topic = topic
        self.tries = tries
        self.spent_s = spent_s
        self._timed_out = timed_out
        self._final = final

    @property
    def is_moved(self) -> bool:
        """Whether nothing was stored and a fresh route may lead to a broker that accepts the
        message."""
        tries = self.tries
        return (
            bool(tries)
            and isinstance(tries[-1].error, MOVED)
            and not any(may_be_stored(tried.error) for tried in tries)
        )

    def error(self) -> BaseException:
        if self._final is not None:
            return _another(self._final)
        kind = SendTimeout if self._timed_out else SendFailed
        error = kind(self._topic, self.tries, self.spent_s)
        error.__cause__ = self.tries[-1].error if self.tries else None
        return error


def _another(error: BaseException) -> BaseException:
    """Return a copy of an exception."""
    other = error.__class__.__new__(error.__class__)
    other.args = error.args
    other.__dict__.update(error.__dict__)
    other.__cause__ = error
    return other
