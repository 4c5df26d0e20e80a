"""`tianzhou demo`: the store at work, in a temporary directory, in a second or two."""

import shutil
import tempfile
from time import perf_counter

import click

from tianzhou.base.kinds import QueueOffset, queue_key
from tianzhou.cmd.clock import SystemClock
from tianzhou.record.chunk import Entry, build
from tianzhou.record.ids import Host, encode_host
from tianzhou.record.message import Message, decode_all
from tianzhou.store.config import StoreConfig
from tianzhou.store.files import RealFiles
from tianzhou.store.read import ReadStatus
from tianzhou.store.store import MessageStore

TOPIC = "orders"
QUEUES = 4
MESSAGES = 20_000
CHUNK = 250
HOST = encode_host(Host("127.0.0.1", 10911))


@click.command()
def demo() -> None:
    """Store, find and read messages, stop without closing, and recover."""
    directory = tempfile.mkdtemp(prefix="tianzhou-demo-")
    try:
        _run(directory)
    finally:
        shutil.rmtree(directory)


def _run(directory: str) -> None:
    click.echo(f"A message store in {directory}")
    store = _open(directory)
    _fill(store)
    _read(store)
    _find(store, "order-12345")
    store.flush()
    # Abandoned, not closed: queues and index on disk are behind, as after a crash.
    store.abandon()
    begun = perf_counter()
    store = _open(directory)
    report = store.recovered
    click.echo(
        f"Left without closing; opened again in {(perf_counter() - begun) * 1000:.0f} ms: "
        f"{report.records:,} records scanned, nothing lost"
    )
    _find(store, "order-19999")
    store.close()
    click.echo("Closed. Try it on a directory of your own: tianzhou store inspect DIR")


def _open(directory: str) -> MessageStore:
    # Small index files: a demo should not reserve 20 MB for slots.
    config = StoreConfig(index_slots=50_000, index_entries=200_000)
    return MessageStore(RealFiles(), directory, config, SystemClock())


def _entry(number: int) -> Entry:
    message = Message(
        TOPIC,
        b'{"order": %d, "amount": %d}' % (number, number * 7 % 500),
        tags="paid" if number % 10 == 0 else "open",
        keys=[f"order-{number}"],
    )
    properties = message.encode_properties()
    return Entry(
        queue_key(TOPIC, number % QUEUES), message.body, properties,
        born_timestamp=SystemClock().now_ms(), born_host=HOST,
    )  # fmt: skip


def _fill(store: MessageStore) -> None:
    chunks = [
        build(
            [_entry(number) for number in range(first, first + CHUNK)],
            store_host=HOST,
            record_crc=store.config.record_crc,
        )
        for first in range(0, MESSAGES, CHUNK)
    ]
    begun = perf_counter()
    for chunk in chunks:
        store.append(chunk)
        store.dispatch_all()
    seconds = perf_counter() - begun
    size = store.watermarks.appended
    click.echo(
        f"Stored {MESSAGES:,} messages ({size / 1e6:.1f} MB) in {QUEUES} queues, with consume "
        f"queues and key index: {seconds * 1000:.0f} ms"
    )


def _read(store: MessageStore) -> None:
    read = paid = 0
    key = queue_key(TOPIC, 2)
    offset = QueueOffset(0)
    while True:
        with store.read(key, offset) as result:
            if result.status is not ReadStatus.FOUND:
                break
            for span in result.spans:
                for message in decode_all(span):
                    read += 1
                    paid += message.tags == "paid"
            offset = result.next_offset
    click.echo(f"Read queue 2 from the first to the last message: {read:,}, of which {paid:,} paid")


def _find(store: MessageStore, key: str) -> None:
    with store.find(TOPIC, key) as found:
        for span in found.spans:
            message = next(decode_all(span))
            click.echo(
                f"Found by key {key}: queue {message.queue_id}, offset {message.queue_offset}, "
                f"id {message.offset_id}, body {message.body.decode()}"
            )
