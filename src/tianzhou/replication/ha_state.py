"""The replication state of a broker: what it saves (`config/replication.json`), and its log, which
is compared with the log of another broker.

Before a slave follows a master, its log is truncated to a prefix of the master's log. The
unconfirmed end of the log is saved in separate files before it is truncated:

    set-aside/<start>-<end>.log     the bytes of the log
    set-aside/<start>-<end>.jsonl   a line for each message: topic, queue, ids, keys, size, times

An operator reads the list and decides what to send again; nothing is deleted automatically.
"""

import logging
from typing import Final

import msgspec

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.record.crc import crc32
from tianzhou.record.layout import SIZE_AND_MAGIC
from tianzhou.record.message import MessageView
from tianzhou.record.walk import walk
from tianzhou.replication import ha_epochs
from tianzhou.replication.errors import PeerRefused
from tianzhou.replication.ha_epochs import Mark, Marks
from tianzhou.replication.ha_frames import Probe, Welcome
from tianzhou.replication.ha_plain import Overlap
from tianzhou.replication.ha_session import Extent
from tianzhou.store.files import File, Files, creating
from tianzhou.store.store import MessageStore
from tianzhou.store.tables import Table

log: Final = logging.getLogger("tianzhou.replication")

SET_ASIDE: Final = "set-aside"
_SLICE_BYTES: Final = 4 * 1024 * 1024
PROBE_BYTES: Final = 4096


class GroupState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    role: str = ""
    """MASTER or SLAVE since the last change; empty: as in the settings."""
    broker_id: int = 0
    marks: tuple[Mark, ...] = ()
    copies: int = 1
    """The ack policy of the current or last master: replicas that hold an acknowledged message."""
    copies_min: int = 0
    """The lowest value an operator may set at run time; 0 if it may not be lowered."""
    epoch_seen: int = 0
    """The highest epoch that a NameServer knows; a promotion uses a higher one."""
    epoch_token: str = ""
    """On a master: random, set at its promotion, to distinguish it from another one with the same
    epoch."""


_DECODER: Final = msgspec.json.Decoder(GroupState)


def state_table(files: Files, tables_path: str) -> Table[GroupState]:
    # Without its role an old master would accept messages again.
    path, needs = f"{tables_path}/replication.json", ("role", "marks")
    return Table(files, path, _DECODER.decode, GroupState(), needs=needs)


# The log, compared with another


def extent_of(store: MessageStore) -> Extent:
    return Extent(store.log.min_offset, store.log.end)


def log_bytes(store: MessageStore, offset: int, size: int) -> bytes | None:
    """Bytes of the log within one file; None if the log does not contain them or cannot read
    them."""
    try:
        return store.log.read(offset, size)
    except OSError:
        return None


def probe_of(store: MessageStore) -> Probe | None:
    """The last bytes of the log that belong to a message; None while it is empty."""
    end = _end_of_messages(store)
    start = _start_of_last(store, end)
    data = log_bytes(store, start, end - start) if end > start else None
    return None if not data else Probe(start=start, size=len(data), crc=crc32(data))


def overlap_of(store: MessageStore) -> Overlap | None:
    """The last bytes of the log, including a message; None while it is empty."""
    if store.log.end == store.log.min_offset:
        return None
    # A master treats a report of 0 as that of an empty slave, to which it sends its last file.
    start = max(_start_of_last(store, _end_of_messages(store)), 1)
    data = log_bytes(store, start, store.log.end - start)
    assert data, f"the log ends at {store.log.end} and has no bytes at {start}"
    return Overlap(PhysicalOffset(start), data)


def _start_of_last(store: MessageStore, end: int) -> int:
    file_bytes = store.log.file_bytes
    return max((end - 1) // file_bytes * file_bytes, end - PROBE_BYTES, store.log.min_offset)


def _end_of_messages(store: MessageStore) -> int:
    """The end of the last non-zero bytes: the zeros of a blank at the end of a file are the same in
    every log and prove nothing."""
    end, file_bytes = int(store.log.end), store.log.file_bytes
    first = max((end - 1) // file_bytes * file_bytes, store.log.min_offset)
    while end > first:
        start = max(first, end - PROBE_BYTES)
        kept = len((log_bytes(store, start, end - start) or b"").rstrip(b"\0"))
        if kept > SIZE_AND_MAGIC.size:
            return start + kept
        end = start
    return int(store.log.end)


def matches(store: MessageStore, probe: Probe) -> bool:
    """Whether this log has the bytes that another log ends with."""
    if not 0 < probe.size <= PROBE_BYTES or probe.start < 0:
        return False
    data = log_bytes(store, PhysicalOffset(probe.start), probe.size)
    return data is not None and len(data) == probe.size and crc32(data) == probe.crc


# Before a slave follows a master


def check_master(store: MessageStore, marks: Marks, welcome: Welcome) -> None:
    """Check whether this master can be followed at all. Raises PeerRefused."""
    if welcome.file_bytes != store.log.file_bytes:
        raise PeerRefused(
            f"the master's log has files of {welcome.file_bytes} bytes, ours of "
            f"{store.log.file_bytes}; set commit_log_file_bytes to the same value on both"
        )
    ha_epochs.check_unique(marks, store.log.end, welcome.marks)
    if ha_epochs.is_later(marks, welcome.marks):
        raise PeerRefused(
            f"the master is of epoch {ha_epochs.epoch_of(welcome.marks)}; this broker followed one "
            f"of epoch {ha_epochs.epoch_of(marks)}"
        )


def settle_log(
    store: MessageStore, marks: Marks, welcome: Welcome, *, from_last_file: bool
) -> None:
    """Truncate what the master does not have, and restart with an empty log if the master no longer
    has what comes next. Raises PeerRefused."""
    held = store.log
    was_empty = held.end == held.min_offset
    if not was_empty:
        parting = ha_epochs.parting(marks, held.end, welcome.marks)
        _cut(store, held.end if parting is None else parting)
    if held.end > welcome.end:
        raise PeerRefused(
            f"the master's log ends at {welcome.end}, ours at {held.end}, and its history does "
            "not say why; see docs/replication.md"
        )
    if held.end > held.min_offset and held.end >= welcome.min:
        return
    start = welcome.min
    if from_last_file and was_empty:
        start = max(start, welcome.end // welcome.file_bytes * welcome.file_bytes)
    if start != held.end:
        log.warning("log.begins_again", extra={"ours": int(held.end), "start": start})
        store.begin_again(PhysicalOffset(start))


def _cut(store: MessageStore, parting: PhysicalOffset) -> None:
    """Set aside and truncate bytes that the master does not have; they were never confirmed."""
    held = store.log
    if parting >= held.end:
        return
    start = max(parting, held.min_offset)
    path = set_aside(store, start)
    log.error(
        "log.set_aside",
        extra={
            "start": int(start),
            "end": int(held.end),
            "messages": path,
            "remedy": "these messages were never confirmed; send again what is still wanted",
        },
    )
    store.truncate(start)


def set_aside(store: MessageStore, start: PhysicalOffset) -> str:
    """Copy the log from `start` on. Returns the path of the list, which survives a crash."""
    files, log = store.files, store.log
    directory = f"{store.root}/{SET_ASIDE}"
    files.make_dirs(directory)
    path = f"{directory}/{start:020d}-{log.end:020d}"
    with creating(files, f"{path}.log", 0) as copy, creating(files, f"{path}.jsonl", 0) as listed:
        at, list_size = int(start), 0
        while at < log.end:
            segment = log.segment_at(at)
            assert segment is not None
            file_end = min(log.end, segment.start + log.file_bytes)
            slice_end = min(file_end, at + _SLICE_BYTES)
            data = segment.salvage(at - segment.start, slice_end - segment.start).data
            end = at + len(data) if at + len(data) == file_end else at + _whole(data)
            data = data[: end - at]
            copy.pwrite(at - start, data)
            list_size += _list(listed, list_size, data)
            at = end
        copy.sync()
        listed.sync()
        copy.close()
        listed.close()
    files.sync_dir(directory)
    files.sync_dir(store.root)
    return f"{path}.jsonl"


def _whole(data: bytes) -> int:
    """Return how many of the bytes are whole records. A record larger than a slice is copied in
    parts, and is then saved but not listed."""
    return walk(data, 0, len(data)).end or len(data)


def _list(file: File, at: int, data: bytes) -> int:
    rows = [_row(MessageView(data, start)) for start in walk(data, 0, len(data)).starts]
    text = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
    if text:
        file.pwrite(at, text)
    return len(text)


def _row(view: MessageView) -> dict[str, object]:
    return {
        "topic": view.topic,
        "queueId": view.queue_id,
        "queueOffset": view.queue_offset,
        "physicalOffset": view.physical_offset,
        "messageId": view.message_id,
        "offsetMsgId": view.offset_id,
        "keys": list(view.keys),
        "tags": view.tags,
        "bornTimestamp": view.born_timestamp,
        "storeTimestamp": view.store_timestamp,
        "bodyBytes": len(view.stored_body),
    }
