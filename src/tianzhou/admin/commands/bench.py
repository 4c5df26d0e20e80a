"""`tianzhou bench`: how fast a running broker takes and gives messages, from here."""

from collections.abc import Sequence
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, Final

import click

from tianzhou.admin.commands import output
from tianzhou.admin.commands.bars import Tell, progress_bar
from tianzhou.admin.commands.failures import Failure
from tianzhou.admin.commands.session import Session, asking

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tianzhou.client.sync.producer import Producer
    from tianzhou.record.message import Message

GROUP: Final = "TIANZHOU_BENCH"
SINGLE_MAX: Final = 1_000
"""Sends one after the other, for the time that one takes."""
BATCH: Final = 200
TURN_S: Final = 20.0
"""Reading gives up when so long nothing came."""


@click.command()
@click.option("--count", default=20_000, show_default=True, type=click.IntRange(1, 10_000_000),
              help="Messages to send and to read.")  # fmt: skip
@click.option("--size", default=1024, show_default=True, type=click.IntRange(1, 1 << 20),
              help="Bytes of each body.")  # fmt: skip
@click.option("--queues", default=4, show_default=True, type=click.IntRange(1, 64),
              help="Queues of the topic that is made for it.")  # fmt: skip
@asking
def bench(session: Session, count: int, size: int, queues: int) -> None:
    """Measure sending and reading in a topic of its own, which is deleted afterwards.

    One process, one connection: a figure for this machine and this moment, not for the broker's
    limit.
    """
    clock = click.get_current_context().find_root().obj
    topic = f"tianzhou-bench-{clock.now_ms()}"
    session.admin.topics.create(topic, queues=queues)
    try:
        with progress_bar(count, "sent") as tell:
            sent = _send(session, topic, count, size, tell)
        with progress_bar(count, "read") as tell:
            read_s = _read(session, topic, count, tell)
    finally:
        session.admin.topics.delete(topic)
    facts = {
        "count": count,
        "size": size,
        **sent,
        "read_per_second": round(count / read_s),
        "read_seconds": round(read_s, 3),
    }
    session.show(lambda: facts, _view)


def _send(session: Session, topic: str, count: int, size: int, tell: Tell) -> dict[str, Any]:
    from tianzhou.client.sync.producer import Producer
    from tianzhou.record.message import Message

    message = Message(topic, b"." * size)
    single = min(count, SINGLE_MAX)
    with Producer(GROUP, nameserver=session.nameserver) as producer:
        times_ms = _one_by_one(producer, message, single)
        tell(single)
        begun_s = monotonic()
        left = count - single
        for done in range(0, left, BATCH):
            producer.send_batch([message] * min(BATCH, left - done))
            tell(single + min(done + BATCH, left))
        seconds = monotonic() - begun_s
    rate = left / seconds if left else single / (sum(times_ms) / 1000)
    return {
        "send_ms_p50": round(_share(times_ms, 0.50), 3),
        "send_ms_p99": round(_share(times_ms, 0.99), 3),
        "sent_per_second": round(rate),
        "sent_in_batches_of": BATCH if left else 1,
    }


def _one_by_one(producer: "Producer", message: "Message", count: int) -> list[float]:
    times_ms: list[float] = []
    for _ in range(count):
        begun_s = perf_counter()
        producer.send(message)
        times_ms.append((perf_counter() - begun_s) * 1000)
    return sorted(times_ms)


def _share(ascending: Sequence[float], share: float) -> float:
    return ascending[min(int(len(ascending) * share), len(ascending) - 1)]


def _read(session: Session, topic: str, count: int, tell: Tell) -> float:
    from tianzhou.client.sync.pull_consumer import PullConsumer

    seen, begun_s = 0, monotonic()
    heard_s = begun_s
    with PullConsumer("TOOLS_CONSUMER", nameserver=session.nameserver) as consumer:
        at = dict.fromkeys(consumer.queues(topic), 0)
        while seen < count:
            for queue, offset in at.items():
                found = consumer.pull(queue, offset, count_max=1024)
                at[queue] = found.next_offset
                if found.messages:
                    seen, heard_s = seen + len(found.messages), monotonic()
            tell(seen)
            if monotonic() - heard_s > TURN_S:
                raise Failure(f"only {seen} of {count} messages came back in {TURN_S:.0f} s")
    return monotonic() - begun_s


def _view(facts: dict[str, Any]) -> "RenderableType":
    return output.pairs(
        {
            "messages": f"{facts['count']:,} of {facts['size']:,} bytes",
            "one send": f"{facts['send_ms_p50']} ms, 99 of 100 in {facts['send_ms_p99']} ms",
            "sent per second": f"{facts['sent_per_second']:,} in batches of "
            f"{facts['sent_in_batches_of']}",
            "read per second": f"{facts['read_per_second']:,}",
        }
    )
