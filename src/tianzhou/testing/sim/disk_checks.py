"""Checks that a store recovered from a crash has kept every guarantee.

Each check compares the store with the messages that a workload sent, byte by byte; none of them
asks the store whether it is well.
"""

from typing import Final, NamedTuple

from tianzhou.base.kinds import QueueKey, queue_key
from tianzhou.store.consume_queue import DELETED
from tianzhou.store.incidents import LOG_BEGINS_LATE, LOG_QUARANTINED, OFFSETS_SET_BACK
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.workload import ALL, GROUP, Guarantees, Sent, clamped


class Broken(AssertionError):
    """A guarantee was broken."""


def demand(condition: object, complaint: str) -> None:
    if not condition:
        raise Broken(complaint)


class Contents(NamedTuple):
    """The readable content of a queue: its range, and the stored bytes."""

    first: int
    end: int
    records: bytes


def contents_of(store: MessageStore, queue: QueueKey) -> Contents:
    first, end = store.min_offset(queue), store.max_offset(queue)
    at, spans, count = first, list[bytes](), 0
    while at < end:
        with store.read(queue, at, ALL) as found:
            spans += [bytes(span) for span in found.spans]
            count += found.count
            demand(found.next_offset > at, f"{queue} cannot be read from {at} on")
            at = found.next_offset
    demand(count == end - first, f"{queue} has holes: {count} messages from {first} to {end}")
    return Contents(first, end, b"".join(spans))


def all_contents(store: MessageStore) -> dict[QueueKey, Contents]:
    return {queue.key: contents_of(store, queue.key) for queue in store.queues}


class History:
    """The sent messages, indexed for comparison."""

    def __init__(self, sent: list[Sent]) -> None:
        self.sent = sent
        self.by_queue: dict[QueueKey, list[Sent]] = {}
        for one in sent:
            if one.queue is not None:
                self.by_queue.setdefault(one.queue, []).append(one)
        self.ends = {one.end for one in sent}


def check(store: MessageStore, history: History, guarantees: Guarantees, required: int) -> None:
    """Check that every message below `required` exists, that further messages are a prefix of what
    was sent, and that index, offsets and report agree."""
    check_log(store, history, guarantees, required)
    for queue in {*history.by_queue, *(one.key for one in store.queues)}:
        check_queue(store, history.by_queue.get(queue, []), queue, guarantees)
    check_index(store, history)
    check_offsets(store, guarantees)
    check_deleted(store)


def check_deleted(store: MessageStore) -> None:
    """Check that a start has deleted the files of deleted queues."""
    left = store.files.list(f"{store.paths.consume_queue}/{DELETED}")
    demand(not left, f"files of deleted queues are still there: {left}")


def check_log(store: MessageStore, history: History, guarantees: Guarantees, required: int) -> None:
    log, report = store.log, store.recovered
    end = log.end
    demand(end >= required, f"the log ends at {end}; up to {required} was acknowledged")
    demand(
        log.min_offset <= guarantees.minimum,
        f"the log begins at {log.min_offset}; nothing behind {guarantees.minimum} was removed",
    )
    demand(
        end in history.ends or end % log.file_bytes == 0, f"the log ends within a record, at {end}"
    )
    demand(store.flushed == end, f"opened, but {store.flushed} of {end} bytes are synced")
    demand(
        report.quarantine or not report.damage,
        f"a crash was taken for damage: {report.damage}",
    )
    kinds = {one.kind for one in store.incidents.open}
    demand(not report.quarantine or LOG_QUARANTINED in kinds, "the log was cut without a report")
    demand(not report.clamped or OFFSETS_SET_BACK in kinds, "offsets were set back silently")
    demand(LOG_BEGINS_LATE not in kinds, "expired files were reported as lost")
    if report.quarantine:
        demand(store.files.exists(report.quarantine), "cut, and not a trace of it in quarantine")
    for segment in log.segments:
        behind = min(max(end - segment.start, 0), log.file_bytes)
        demand(
            not segment.read(behind, log.file_bytes).strip(b"\0"),
            f"bytes stand behind the end of the log at {end}, in {segment.file.path}",
        )


def check_queue(
    store: MessageStore, sent: list[Sent], queue: QueueKey, guarantees: Guarantees
) -> None:
    found = contents_of(store, queue)
    wanted = [
        _expected(store, [one for one in sent if one.start >= floor])
        for floor in _floors(store, sent, queue, guarantees)
    ]
    # An empty queue may start late, because names of files are lost one by one; never too early.
    is_late = found.first == found.end and any(not w.records and w.end <= found.end for w in wanted)
    demand(
        is_late or found in wanted,
        f"{queue} holds {_short(found)} of a log from {store.log.min_offset} to {store.log.end}; "
        f"expected {' or '.join(map(_short, wanted))}",
    )


def _short(contents: Contents) -> str:
    return f"{contents.first}..{contents.end} ({len(contents.records)} bytes)"


def _floors(
    store: MessageStore, sent: list[Sent], queue: QueueKey, guarantees: Guarantees
) -> list[int]:
    """Where the queue may start. A topic whose deletion was confirmed never reappears. One whose
    deletion a crash interrupted may; if its next message has a rank above 0, it did."""
    floors = [0]
    for deletion in guarantees.deletions:
        if deletion.topic == queue.topic:
            later = (
                one.queue_offset
                for one in sent
                if deletion.at <= one.start and one.end <= store.log.end
            )
            if deletion.done:
                floors = [deletion.at]
            elif next(later, 0) == 0:
                floors = [*floors, deletion.at]
    return floors


def _expected(store: MessageStore, sent: list[Sent]) -> Contents:
    below = [one for one in sent if one.end <= store.log.end]
    if not below:
        return Contents(0, 0, b"")
    end = below[-1].queue_offset + 1
    readable = [one for one in below if one.start >= store.log.min_offset]
    first = readable[0].queue_offset if readable else end
    return Contents(first, end, b"".join([one.record for one in readable]))


_NEAR_BYTES: Final = 3000


def check_index(store: MessageStore, history: History) -> None:
    """Every message near the end of the log, where crashes work, and some of the others."""
    index, log = store.index, store.log
    if index is None:
        return
    for rank, one in enumerate(history.sent):
        if one.start < log.min_offset:
            continue
        if abs(one.start - log.end) > _NEAR_BYTES and rank % 8 != log.end % 8:
            continue
        found = index.find(
            one.topic, one.key, begin_ms=one.store_time, end_ms=one.store_time, count_max=64
        )
        if one.end > log.end:
            demand(not found, f"the index finds {one.key}, which is not in the log, at {found}")
        else:
            demand(one.start in found, f"the index does not find {one.key} at {one.start}: {found}")


def check_offsets(store: MessageStore, guarantees: Guarantees) -> None:
    """The saved consumer offsets are those saved last, none beyond the end of its queue."""
    found = store.tables.consumer_offsets.load().offset_table
    for name, row in found.items():
        topic, _, group = name.partition("@")
        demand(group == GROUP, f"offsets of group {group!r} were never saved")
        for queue_id, offset in row.items():
            end = store.max_offset(queue_key(topic, queue_id))
            demand(offset <= end, f"{name} stands at {offset}; queue {queue_id} ends at {end}")
    wanted = [clamped(store, offsets) for offsets in guarantees.committed]
    demand(found in wanted, f"offsets {found} were found; expected {wanted}")
