"""`tianzhou produce`: send lines, JSON lines, or generated messages."""

import os
import sys
from collections import deque
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from datetime import timedelta
from io import BytesIO
from time import monotonic, sleep
from typing import IO, TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from tianzhou.admin.commands.bars import Tell, progress_bar
from tianzhou.admin.commands.produce_input import Template, from_json, from_lines, load, whole
from tianzhou.admin.commands.session import Session, asking, topic_name
from tianzhou.admin.commands.termination import terminable
from tianzhou.admin.commands.times import span

if TYPE_CHECKING:
    from concurrent.futures import Future

    from tianzhou.client.core.send_request import SendResult
    from tianzhou.client.sync.producer import Producer
    from tianzhou.record.message import Message

GROUP: Final = "TIANZHOU_CLI"
AHEAD_MAX: Final = 2_000
"""Sends in flight."""


def _as_bytes(_ctx: click.Context, _param: click.Parameter, body: str | None) -> bytes | None:
    """The raw bytes of the body argument, which need not be valid UTF-8."""
    return None if body is None else os.fsencode(body)


@click.command()
@topic_name
@click.argument("body", required=False, type=click.UNPROCESSED, callback=_as_bytes)
@click.option(
    "--body-file",
    type=click.File("rb"),
    metavar="FILE",
    help="Send the whole file as the body of one message; - reads standard input.",
)
@click.option(
    "-f",
    "--file",
    "source",
    type=click.File("rb"),
    default="-",
    metavar="FILE",
    help="Read messages from FILE; - reads standard input.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["lines", "json"]),
    default="lines",
    show_default=True,
    help="Read one body per line, or one JSON object per line.",
)
@click.option("-t", "--tag", help="Set the tag of every message.")
@click.option("-k", "--key", "keys", multiple=True, help="Add a key to search by; repeatable.")
@click.option(
    "-p",
    "--property",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a property; repeatable.",
)
@click.option(
    "--delay", type=span, metavar="DURATION", help="Delay delivery by DURATION, e.g. 30s, 10m, 2h."
)
@click.option("--sharding-key", metavar="KEY", help="Keep messages with the same KEY in order.")
@click.option(
    "--light-queue",
    "light_queues",
    multiple=True,
    metavar="NAME",
    help="Put the messages into this light queue too; repeatable.",
)
@click.option(
    "--count",
    type=click.IntRange(1),
    metavar="COUNT",
    help="Generate COUNT test messages instead of reading input.",
)
@click.option(
    "--size",
    default=1024,
    show_default=True,
    type=click.IntRange(1),
    metavar="BYTES",
    help="Set the body size of generated messages.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    metavar="RATE",
    help="Send at most RATE messages per second.",
)
@asking
def produce(
    session: Session,
    *,
    topic: str,
    body: bytes | None,
    body_file: IO[bytes] | None,
    source: IO[bytes],
    form: str,
    tag: str | None,
    keys: tuple[str, ...],
    properties: tuple[str, ...],
    delay: timedelta | None,
    sharding_key: str | None,
    light_queues: tuple[str, ...],
    count: int | None,
    size: int,
    rate: float | None,
) -> None:
    """Send messages to a topic: BODY as one message, or one message per input line.

    With --format json, a line is {"body": "...", "tags": "...", "keys": [...], "properties":
    {...}}; body_base64, delay_s, deliver_ms, delay_level, sharding_key and light_queues are
    accepted too.
    """
    chosen = click.get_current_context().get_parameter_source
    if count is not None and {chosen("source"), chosen("form")} != {ParameterSource.DEFAULT}:
        raise click.UsageError("--count generates its messages; omit --file and --format")
    sources = ((body, "BODY"), (body_file, "--body-file"), (count, "--count"))
    given = [name for value, name in sources if value is not None]
    given += ["--file"] * (chosen("source") is not ParameterSource.DEFAULT)
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} are mutually exclusive; pass only one")
    if not given and source.isatty():
        click.echo("type one message per line; press Ctrl-D to finish", err=True)
    named = _properties(properties)
    template = Template(topic, tag, keys, named, delay, sharding_key, light_queues)
    if count is not None:
        messages = load(count, size, template)
    elif body is not None or body_file is not None:
        read = from_json if form == "json" else whole
        messages = read(body_file or BytesIO(body or b""), template)
    else:
        messages = (from_json if form == "json" else from_lines)(source, template)
    begun_s = monotonic()
    sending = Sending()
    try:
        with terminable(), _producer(session) as producer, progress_bar(count, "sent") as tell:
            sending.send_all(producer, _paced(messages, rate), tell)
    finally:
        if sys.exc_info()[0] is not None and sending.sent:
            click.echo(f"{sending.sent:,} messages were sent before the error", err=True)
    seconds = monotonic() - begun_s
    facts: dict[str, Any] = {"topic": topic, "sent": sending.sent, "seconds": round(seconds, 3)}
    if sending.last is not None:
        facts |= {"last_message_id": sending.last.message_id}
    said = f"{sending.sent:,} messages sent to {topic} in {seconds:.2f} s"
    if sending.sent == 1 and sending.last is not None:
        last = sending.last
        said = f"{last.message_id} in queue {last.queue.queue_id} at offset {last.queue_offset}"
        if delay is not None:
            said = f"{last.message_id} is scheduled; `tianzhou scheduled list` shows it"
    session.done(facts, said)


def _properties(given: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    for text, (name, sign, _) in zip(given, pairs, strict=True):
        if not sign or not name:
            raise click.BadParameter(f"{text!r} must be NAME=VALUE", param_hint="--property")
    return {name: value for name, _, value in pairs}


@contextmanager
def _producer(session: Session) -> "Generator[Producer]":
    from tianzhou.client.options import Batching, ProducerOptions
    from tianzhou.client.sync.producer import Producer

    options = ProducerOptions(batching=Batching(), send_timeout_s=10)
    with Producer(GROUP, nameserver=session.nameserver, options=options) as producer:
        yield producer


class Sending:
    """The progress of sending. Owner: the command."""

    def __init__(self) -> None:
        self.sent = 0
        self.last: SendResult | None = None
        self._flying: deque[Future[SendResult]] = deque()

    def send_all(self, producer: "Producer", messages: "Iterable[Message]", tell: "Tell") -> None:
        """Send everything; raise the first error after earlier sends have completed."""
        try:
            for message in messages:
                self._flying.append(producer.send_async(message))
                # Check results also while few sends are in flight: with slow input, an error is
                # then reported at the next line, not at the end of the input.
                while self._flying[0].done() or len(self._flying) >= AHEAD_MAX:
                    self._land()
                    tell(self.sent)
                    if not self._flying:
                        break
        finally:
            while self._flying:
                self._land()
        tell(self.sent)

    def _land(self) -> None:
        self.last = self._flying.popleft().result()
        self.sent += 1


def _paced(messages: "Iterable[Message]", rate: float | None) -> "Iterable[Message]":
    if rate is None:
        yield from messages
        return
    begun_s = monotonic()
    for number, message in enumerate(messages):
        sleep(max(0.0, begun_s + number / rate - monotonic()))
        yield message
