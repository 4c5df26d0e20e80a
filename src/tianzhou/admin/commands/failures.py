"""Report a failure: one sentence with the next step, and an exit code for scripts.

    0    done
    1    failed for a reason that is not below
    2    the command line, or a value in it, is wrong; or an extra is not installed
    3    no NameServer or broker answers
    4    the named topic, group, message or broker does not exist
    5    a broker rejected the request
    6    `tianzhou doctor` found something that does not work
    130  interrupted

The client is imported only after a failure, which keeps successful commands fast.
"""

import enum
import errno
import os
import re
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING, Any, Final

import click

from tianzhou.admin.commands.output import json_text, plain
from tianzhou.base.errors import TianzhouError, UsageError

if TYPE_CHECKING:
    from tianzhou.client.errors import SendFailed

CHARS_MAX: Final = 2_000
"""An error may quote untrusted input."""
_ERRNO: Final = re.compile(r"\[Errno (\d+)\] Connect call failed \([^)]*\)")


class ExitCode(enum.IntEnum):
    DONE = 0
    FAILED = 1
    WRONG_USE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    REFUSED = 5
    UNWELL = 6
    INTERRUPTED = 130


WANTS_JSON: Final = "tianzhou.wants_json"
"""In the `meta` of a command's context: whether it was called with --json."""


def echo_error(error: click.ClickException) -> None:
    """Print an error for programs: one JSON object on the error stream."""
    try:
        kind = ExitCode(error.exit_code).name.lower()
    except ValueError:
        kind = ExitCode.FAILED.name.lower()
    facts = {"kind": kind, "exit_code": error.exit_code, "message": error.format_message()}
    click.echo(json_text({"error": facts}), err=True)


class Failure(click.ClickException):
    """Ends a command with a sentence on the error stream."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(plain(message, CHARS_MAX))
        # click reads it from the instance, as its own subclasses give it.
        self.exit_code = int(code)  # pyright: ignore[reportAttributeAccessIssue]

    def show(self, file: IO[Any] | None = None) -> None:
        ctx = click.get_current_context(silent=True)
        if file is None and ctx is not None and ctx.meta.get(WANTS_JSON):
            echo_error(self)
            return
        click.echo(f"tianzhou: {self.message}", file=file, err=file is None)


def not_found(what: str) -> Failure:
    return Failure(what, ExitCode.NOT_FOUND)


def failure_of(error: TianzhouError | OSError) -> Failure:
    """Convert an error to a sentence with a next step, and an exit code."""
    if isinstance(error, OSError):
        return _failure_of_system(error)
    from tianzhou.client import errors

    if isinstance(error, errors.BrokerNotFound):
        return Failure(f"{error}; `tianzhou cluster` lists the brokers", ExitCode.NOT_FOUND)
    if isinstance(error, UsageError):
        return Failure(str(error), ExitCode.WRONG_USE)
    if isinstance(error, errors.NoNameServer):
        return Failure(
            f"no NameServer answers: {_reasons(error.failures.values())}; start one with "
            "`tianzhou up`, or choose another with -n",
            ExitCode.UNREACHABLE,
        )
    if isinstance(error, errors.TopicNotFound):
        return Failure(
            f"topic {error.topic!r} is not known to the NameServer; "
            f"`tianzhou topic list` lists all topics, "
            f"`tianzhou doctor --topic {error.topic}` explains why it may be missing",
            ExitCode.NOT_FOUND,
        )
    if isinstance(error, errors.GroupNotExist):
        return Failure(
            f"{error.remark or error}; `tianzhou group list` lists all groups",
            ExitCode.NOT_FOUND,
        )
    if isinstance(error, errors.TopicNotExist | errors.QueryNotFound):
        return Failure(str(error), ExitCode.NOT_FOUND)
    if isinstance(
        error, errors.NoRoute | errors.Unreachable | errors.ConnectionLost | errors.CallTimeout
    ):
        return Failure(
            f"{_in_words(str(error))}; `tianzhou doctor` explains why", ExitCode.UNREACHABLE
        )
    if isinstance(error, errors.SendFailed):
        return Failure(
            f"{_in_words(str(error))}; `tianzhou doctor -t {error.topic}` explains why",
            ExitCode.UNREACHABLE if _is_unanswered(error) else ExitCode.REFUSED,
        )
    if isinstance(error, errors.RequestCodeNotSupported):
        return Failure(
            f"{error}; check that the address is that of a NameServer and that the broker supports "
            "this request; `tianzhou doctor` shows what runs there",
            ExitCode.REFUSED,
        )
    if isinstance(error, errors.RemoteError):
        return Failure(str(error), ExitCode.REFUSED)
    return Failure(str(error))


def _failure_of_system(error: OSError) -> Failure:
    if error.errno == errno.EADDRINUSE:
        told = error.strerror or str(error)
        return Failure(
            f"{told}; stop the other process, or choose another port (0 for any free one)"
        )
    return Failure(str(error))


def _is_unanswered(error: "SendFailed") -> bool:
    """Whether no broker responded."""
    from tianzhou.client.errors import CallTimeout, ConnectionLost, NoRoute, Unreachable

    silent = (CallTimeout, ConnectionLost, NoRoute, Unreachable)
    return all(isinstance(one.error, silent) for one in error.tries)


def _reasons(failures: Iterable[str]) -> str:
    """Join the failures; each names its address."""
    return "; ".join(map(_in_words, failures))


def _in_words(reason: str) -> str:
    """Replace errno numbers by their texts."""
    return _ERRNO.sub(lambda found: os.strerror(int(found[1])), reason)
