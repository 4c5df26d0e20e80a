"""`tianzhou consume`: print the messages of a topic as they arrive."""

import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, islice
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

import click
from click.core import ParameterSource

from tianzhou.admin.commands import message_facts, output, queues, readable
from tianzhou.admin.commands.failures import ExitCode, failure_of
from tianzhou.admin.commands.session import Session, asking, topic_name
from tianzhou.admin.commands.times import parse_time
from tianzhou.base.errors import TianzhouError

if TYPE_CHECKING:
    from tianzhou.client.aio.pull_consumer import PullResult
    from tianzhou.client.core.received import ReceivedMessage
    from tianzhou.client.core.subscription import Sql92
    from tianzhou.client.sync.pull_consumer import PullConsumer
    from tianzhou.record.message import MessageView
    from tianzhou.wire.queues import MessageQueue

    Batches = Generator[Sequence[ReceivedMessage]]

PULL_COUNT: Final = 256
PAUSE_MIN_S: Final = 0.02
PAUSE_MAX_S: Final = 0.5
"""The pause between two pulls of queues without new messages."""
POLL_S: Final = 0.5
STARTS: Final = ("earliest", "latest")
LAST_MAX: Final = 10_000
"""The upper bound for --last, which sorts the messages in memory."""


def where(text: str) -> str | int:
    """The type of an option: `earliest`, `latest`, or a time."""
    return text if text in STARTS else parse_time(text)


@click.command()
@topic_name
@click.option(
    "--from",
    "start",
    type=where,
    default="latest",
    show_default=True,
    metavar="earliest|latest|TIME",
    help="Start here; a TIME is e.g. 10m (ago) or 2026-11-16T08:30.",
)
@queues.queue_id
@queues.broker
@click.option(
    "--offset", type=click.IntRange(0), metavar="OFFSET", help="Start at OFFSET of --queue."
)
@click.option(
    "--last",
    type=click.IntRange(1, LAST_MAX),
    metavar="N",
    help="Start with the last N messages of the topic, or of --queue.",
)
@click.option(
    "-t",
    "--tag",
    default="*",
    show_default=True,
    metavar="TAGS",
    help="Print only messages with these tags: a,b or a || b.",
)
@click.option(
    "--sql", metavar="EXPR", help="Filter by properties, e.g. amount > 100 AND region = 'north'."
)
@click.option(
    "--max", "count", type=click.IntRange(1), metavar="COUNT", help="Stop after COUNT messages."
)
@click.option("--until-end", is_flag=True, help="Stop at the current end of every queue.")
@click.option(
    "--idle",
    "idle_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Stop after SECONDS without a message.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["line", "body", "json", "raw"]),
    default="line",
    show_default=True,
    help="Choose the output format; raw writes bytes unchanged, for files and pipes.",
)
@click.option("-g", "--group", help="Join this group and commit the offsets of printed messages.")
@asking
def consume(
    session: Session,
    *,
    topic: str,
    start: str | int,
    queue_id: int | None,
    broker: str | None,
    offset: int | None,
    last: int | None,
    tag: str,
    sql: str | None,
    count: int | None,
    until_end: bool,
    idle_s: float | None,
    form: str,
    group: str | None,
) -> None:
    """Print the messages of a topic as they arrive, until Ctrl-C.

    Without --group, no group is created and no offset changes.
    """
    from tianzhou.client.termination import on_terminate

    if sql is not None and tag != "*":
        raise click.UsageError("--tag and --sql are mutually exclusive; pass only one")
    if group is not None and until_end:
        raise click.UsageError("--until-end cannot be combined with --group; use --idle")
    form = "json" if session.as_json else form
    if form == "raw" and sys.stdout.isatty():
        raise click.UsageError(
            "--format raw would send control sequences to the terminal; redirect the output"
        )
    place = Place(start, queue_id, broker, offset, last)
    place.check(group)
    wanted = _expression(tag, sql)
    shown: dict[MessageQueue, int] = {}
    interruption = Interruption()
    if group is None:
        batches = _look(session, topic, place, wanted, until_end=until_end, idle_s=idle_s)
    else:
        batches = _join(
            session,
            topic,
            start,
            wanted,
            group=group,
            shown=shown,
            interruption=interruption,
            idle_s=idle_s,
        )
    show = _PRINTERS[form]
    with on_terminate(interruption.request), closing(batches):
        try:
            for message in islice(chain.from_iterable(batches), count):
                interruption.defer()
                show(message)
                shown[message.queue] = message.queue_offset + 1
                interruption.allow()
        except KeyboardInterrupt:
            return  # the usual way to stop
        finally:
            interruption.defer()


class Interruption:
    """Treats SIGTERM like Ctrl-C, but defers it between printing a message and recording its
    offset, and while offsets are committed."""

    def __init__(self) -> None:
        self._is_requested = False
        self._is_deferred = False

    def request(self) -> None:
        """Interrupt now, or when the deferral ends."""
        self._is_requested = True
        if not self._is_deferred:
            self._interrupt()

    def defer(self) -> None:
        self._is_deferred = True

    def allow(self) -> None:
        self._is_deferred = False
        if self._is_requested:
            self._interrupt()

    def _interrupt(self) -> None:
        self._is_deferred = True  # a second SIGTERM must not interrupt the commit that follows
        raise KeyboardInterrupt


def _expression(tag: str, sql: str | None) -> "str | Sql92":
    if sql is None:
        return " || ".join(part.strip() for part in tag.split(","))
    from tianzhou.client.core.subscription import Sql92

    return Sql92(sql)


# Reading


def _look(
    session: Session,
    topic: str,
    place: "Place",
    wanted: "str | Sql92",
    *,
    until_end: bool,
    idle_s: float | None,
) -> "Batches":
    """Read every queue in turn, with growing pauses while nothing arrives. Without an end condition
    reading resumes after a broker restarts; with one, an unreachable broker is an error."""
    from tianzhou.client.sync.pull_consumer import PullConsumer

    is_tail = not until_end and idle_s is None
    with (
        readable.explained(session, topic),
        PullConsumer(queues.READER, nameserver=session.nameserver) as consumer,
    ):
        at = place.begin(session, consumer, topic)
        if place.last is not None:
            yield _newest(consumer, at, wanted, place.last)
        pause_s, heard_s = PAUSE_MIN_S, monotonic()
        while True:
            is_end = is_quiet = True
            for queue, offset in at.items():
                found = _pull(consumer, queue, offset, wanted, again=is_tail)
                at[queue] = found.next_offset
                is_end &= found.next_offset >= found.end
                is_quiet &= found.next_offset == offset
                if found.messages:
                    heard_s = monotonic()
                    yield found.messages
            if (until_end and is_end) or _is_over(heard_s, idle_s):
                return
            if is_quiet:
                sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_MAX_S) if is_quiet else PAUSE_MIN_S


def _pull(
    consumer: "PullConsumer",
    queue: "MessageQueue",
    offset: int,
    wanted: "str | Sql92",
    *,
    again: bool,
) -> "PullResult":
    """Pull from the offset on. With `again`, retry until the broker responds."""
    told = False
    while True:
        try:
            return consumer.pull(queue, offset, count_max=PULL_COUNT, expression=wanted)
        except TianzhouError as error:
            failure = failure_of(error)
            if not again or failure.exit_code != ExitCode.UNREACHABLE:
                raise
            if not told:
                click.echo(f"{failure.message}; retrying", err=True)
            told = True
            sleep(PAUSE_MAX_S)


@dataclass(frozen=True, slots=True)
class Place:
    """The position at which reading starts."""

    start: str | int
    queue_id: int | None
    broker: str | None
    offset: int | None
    last: int | None

    def check(self, group: str | None) -> None:
        """Raises UsageError."""
        if self.offset is not None and self.queue_id is None:
            raise click.UsageError("--offset needs --queue")
        if self.broker is not None and self.queue_id is None:
            raise click.UsageError("--broker needs --queue")
        is_from = click.get_current_context().get_parameter_source("start")
        ways = (
            is_from is not ParameterSource.DEFAULT,
            self.offset is not None,
            self.last is not None,
        )
        if sum(ways) > 1:
            raise click.UsageError(
                "--from, --offset and --last are mutually exclusive; pass only one"
            )
        if group is not None and (self.queue_id is not None or self.last is not None):
            raise click.UsageError(
                "--queue, --offset and --last cannot be combined with --group, whose members "
                "share all queues"
            )

    def begin(
        self, session: Session, consumer: "PullConsumer", topic: str
    ) -> "dict[MessageQueue, int]":
        """The queues to read, and the first offset of each."""
        chosen = readable.queues_of(session, consumer, topic)
        if self.queue_id is not None:
            chosen = [queues.one(session, topic, self.queue_id, self.broker)]
        return {queue: self._begin(consumer, queue) for queue in chosen}

    def _begin(self, consumer: "PullConsumer", queue: "MessageQueue") -> int:
        if self.offset is not None:
            return _within(consumer, queue, self.offset)
        if self.last is not None:
            return max(consumer.first(queue), consumer.end(queue) - self.last)
        if self.start == "earliest":
            return consumer.first(queue)
        if self.start == "latest":
            return consumer.end(queue)
        return consumer.offset_at(queue, int(self.start))


def _within(consumer: "PullConsumer", queue: "MessageQueue", offset: int) -> int:
    """The offset, or the nearest end of the queue if the queue does not reach there."""
    first, end = consumer.first(queue), consumer.end(queue)
    if first <= offset <= end:
        return offset
    start = first if offset < first else end
    held = f"it has {first} to {end - 1}" if first < end else "it is empty"
    click.echo(
        f"queue {queue.queue_id} of {queue.topic} on {queue.broker_name} has no message with "
        f"offset {offset}; {held}, and the next message gets {end}; starting at {start}",
        err=True,
    )
    return start


def _newest(
    consumer: "PullConsumer", at: "dict[MessageQueue, int]", wanted: "str | Sql92", count: int
) -> "list[ReceivedMessage]":
    """The last messages of all queues, in the order in which they were stored. Advances `at`."""
    found: list[ReceivedMessage] = []
    for queue in at:
        end = consumer.end(queue)
        while at[queue] < end:
            pulled = _pull(consumer, queue, at[queue], wanted, again=False)
            found += pulled.messages
            if pulled.next_offset <= at[queue]:
                break
            at[queue] = pulled.next_offset
    found.sort(key=lambda message: (message.store_timestamp, message.queue_offset))
    return found[-count:]


def _is_over(heard_s: float, idle_s: float | None) -> bool:
    return idle_s is not None and monotonic() - heard_s > idle_s


def _join(
    session: Session,
    topic: str,
    start: str | int,
    wanted: "str | Sql92",
    *,
    group: str,
    shown: "Mapping[MessageQueue, int]",
    interruption: "Interruption",
    idle_s: float | None,
) -> "Batches":
    """Read as a member of the group. At the end commit the offsets of the messages shown, and no
    others."""
    from tianzhou.client.consumer_options import ConsumerOptions
    from tianzhou.client.core.offsets import StartPosition
    from tianzhou.client.sync.lite_pull import LitePullConsumer

    readable.check_group(session, topic, group)
    ends = {"earliest": StartPosition.FIRST, "latest": StartPosition.LAST}
    begin = ends[start] if isinstance(start, str) else datetime.fromtimestamp(start / 1000, UTC)
    with LitePullConsumer(
        group,
        nameserver=session.nameserver,
        subscribe={topic: wanted},
        options=ConsumerOptions(start_from=begin),
    ) as consumer:
        heard_s = monotonic()
        try:
            while not _is_over(heard_s, idle_s):
                found = consumer.poll(POLL_S)
                if found:
                    yield found
                    heard_s = monotonic()
        finally:
            interruption.defer()
            consumer.commit(shown)


# Printing


def _line(message: "MessageView") -> None:
    stored = output.time_text(message.store_timestamp)
    marks = [f"tag={message.tags}"] if message.tags else []
    marks += [f"keys={','.join(message.keys)}"] if message.keys else []
    place = f"{message.queue_id}:{message.queue_offset}"
    about = " ".join([stored, place, *map(output.plain, marks)])
    click.echo(f"{about}  {output.body_cell(message.body)}")


def _body(message: "MessageView") -> None:
    click.echo(output.body_cell(message.body, None))


def _json(message: "MessageView") -> None:
    output.echo_json(message_facts.facts_of(message))


def _raw(message: "MessageView") -> None:
    click.echo(message.body)


_PRINTERS: Final[Mapping[str, "Callable[[MessageView], None]"]] = {
    "line": _line,
    "body": _body,
    "json": _json,
    "raw": _raw,
}
