"""`tianzhou produce`: send lines, JSON lines, or a load."""

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
from tianzhou.admin.commands.moments import span
from tianzhou.admin.commands.produce_input import Template, from_json, from_lines, load, whole
from tianzhou.admin.commands.session import Session, asking, topic_name
from tianzhou.admin.commands.termination import terminable

if TYPE_CHECKING:
    from concurrent.futures import Future

    from tianzhou.client.core.sending import SendResult
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
@click.option("--body-file", type=click.File("rb"), metavar="FILE",
              help="Send the whole file as the body of one message; - reads standard input.",
              )  # fmt: skip
@click.option("-f", "--file", "source", type=click.File("rb"), default="-",
              help="Where lines come from; the standard input unless given.")  # fmt: skip
@click.option("--format", "form", type=click.Choice(["lines", "json"]), default="lines",
              show_default=True, help="A body in each line, or an object.")  # fmt: skip
@click.option("-t", "--tag", help="The tag of every message.")
@click.option("-k", "--key", "keys", multiple=True, help="A key to find it by; repeatable.")
@click.option("-p", "--property", "properties", multiple=True, metavar="NAME=VALUE",
              help="Repeatable.")  # fmt: skip
@click.option("--delay", type=span, help="Deliver it so much later: 30s, 10m, 2h.")
@click.option("--sharding-key", help="Messages with the same one stay in order.")
@click.option("--count", type=click.IntRange(1), help="Send a load of so many instead.")
@click.option("--size", default=1024, show_default=True, type=click.IntRange(1),
              help="Bytes of each message of a load.")  # fmt: skip
@click.option("--rate", type=click.FloatRange(min=0, min_open=True),
              help="Messages per second, at most.")  # fmt: skip
@asking
def produce(
    session: Session, topic: str, body: bytes | None, body_file: IO[bytes] | None,
    source: IO[bytes], form: str, tag: str | None,
    keys: tuple[str, ...], properties: tuple[str, ...], delay: timedelta | None,
    sharding_key: str | None, count: int | None, size: int, rate: float | None,
) -> None:  # fmt: skip
    """Send messages to a topic: BODY as one message, or one message for each line.

    With --format json a line is {"body": "...", "tags": "...", "keys": [...], "properties": {...}};
    body_base64, delay_s, deliver_ms, delay_level and sharding_key are accepted too.
    """
    chosen = click.get_current_context().get_parameter_source
    if count is not None and {chosen("source"), chosen("form")} != {ParameterSource.DEFAULT}:
        raise click.UsageError("--count makes up its messages; leave out --file and --format")
    sources = ((body, "BODY"), (body_file, "--body-file"), (count, "--count"))
    given = [name for value, name in sources if value is not None]
    given += ["--file"] * (chosen("source") is not ParameterSource.DEFAULT)
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} are mutually exclusive; pass only one")
    if not given and source.isatty():
        click.echo("one message a line; Ctrl-D ends", err=True)
    template = Template(topic, tag, keys, _properties(properties), delay, sharding_key)
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
            click.echo(f"{sending.sent:,} messages were sent before", err=True)
    seconds = monotonic() - begun_s
    facts: dict[str, Any] = {"topic": topic, "sent": sending.sent, "seconds": round(seconds, 3)}
    if sending.last is not None:
        facts |= {"last_message_id": sending.last.message_id}
    said = f"{sending.sent:,} messages sent to {topic} in {seconds:.2f} s"
    if sending.sent == 1 and sending.last is not None:
        last = sending.last
        said = f"{last.message_id} in queue {last.queue.queue_id} at offset {last.queue_offset}"
        if delay is not None:
            said = f"{last.message_id} waits for its moment; `tianzhou scheduled list` shows it"
    session.done(facts, said)


def _properties(given: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    for text, (name, sign, _) in zip(given, pairs, strict=True):
        if not sign or not name:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--property")
    return {name: value for name, _, value in pairs}


@contextmanager
def _producer(session: Session) -> "Generator[Producer]":
    from tianzhou.client.options import Batching, ProducerOptions
    from tianzhou.client.sync.producer import Producer

    options = ProducerOptions(batching=Batching(), send_timeout_s=10)
    with Producer(GROUP, nameserver=session.nameserver, options=options) as producer:
        yield producer


class Sending:
    """How far it is."""

    def __init__(self) -> None:
        self.sent = 0
        self.last: SendResult | None = None
        self._flying: deque[Future[SendResult]] = deque()

    def send_all(self, producer: "Producer", messages: "Iterable[Message]", tell: "Tell") -> None:
        """Raises the first error, when what was sent before it has landed."""
        try:
            for message in messages:
                self._flying.append(producer.send_async(message))
                # Also while few are in flight: where lines come slowly, what went wrong with one
                # is told at the next, and not at the end of them all.
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
