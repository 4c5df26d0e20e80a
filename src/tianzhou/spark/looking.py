"""Looking into a topic for messages of our own, for writers that may have been here before."""

from collections.abc import Iterator, Mapping, Sequence

from tianzhou.client.sync.batch_sender import Entry, Unsure
from tianzhou.client.sync.brokers import Brokers
from tianzhou.client.sync.queue_reader import QueueRange, QueueReader
from tianzhou.record import names
from tianzhou.record.message import MessageView
from tianzhou.record.properties import find
from tianzhou.spark.options import GROUP_DEFAULT
from tianzhou.wire.queues import MessageQueue


def values_in(
    brokers: Brokers, spans: Mapping[MessageQueue, tuple[int, int]], name: bytes
) -> Iterator[bytes]:
    """The values of a property in these parts of queues, from offset to offset."""
    reader = QueueReader(brokers, GROUP_DEFAULT, on_gone=lambda _: None)
    for queue, (start, end) in spans.items():
        for run in reader.read(QueueRange(queue, start, end)):
            data = memoryview(run.data)
            for at in run.starts:
                value = find(MessageView(data, at).stored_properties, name)
                if value is not None:
                    yield value


def not_arrived(brokers: Brokers, began: Mapping[MessageQueue, int]) -> Unsure:
    """For a sender: those of messages, sent into a connection that broke, that are not in the
    queue, told by their unique ids. `began` is where the queues ended before the first one."""

    def missing(queue: MessageQueue, entries: Sequence[Entry]) -> Sequence[Entry]:
        (end,) = brokers.max_offsets([queue]).values()
        there = set(values_in(brokers, {queue: (began.get(queue, 0), end)}, names.UNIQ_KEY))
        return [entry for entry in entries if find(entry.properties, names.UNIQ_KEY) not in there]

    return missing
