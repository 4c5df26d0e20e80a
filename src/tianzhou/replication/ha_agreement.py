"""Before a slave follows a master: truncate its log to a prefix of the master's log.

The unconfirmed end of the log is saved in separate files before it is truncated:

    set-aside/<start>-<end>.log     the bytes of the log
    set-aside/<start>-<end>.jsonl   a line for each message: topic, queue, ids, keys, size, times

An operator reads the list and decides what to send again; nothing is deleted automatically.
"""

import logging
from typing import Final

import msgspec

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.record.message import MessageView
from tianzhou.record.walk import walk
from tianzhou.replication import ha_epochs as epochs
from tianzhou.replication.errors import PeerRefused
from tianzhou.replication.ha_epochs import Marks
from tianzhou.replication.ha_frames import Welcome
from tianzhou.store.files import File, creating
from tianzhou.store.store import MessageStore

log: Final = logging.getLogger("tianzhou.replication")

DIRECTORY: Final = "set-aside"
_SLICE: Final = 4 * 1024 * 1024


def check_master(store: MessageStore, marks: Marks, welcome: Welcome) -> None:
    """Check whether this master can be followed at all. Raises PeerRefused."""
    if welcome.file_bytes != store.log.file_bytes:
        raise PeerRefused(
            f"the master's log has files of {welcome.file_bytes} bytes, ours of "
            f"{store.log.file_bytes}; set commit_log_file_bytes to the same value on both"
        )
    epochs.check_unique(marks, store.log.end, welcome.marks)
    if epochs.is_later(marks, welcome.marks):
        raise PeerRefused(
            f"the master is of epoch {epochs.epoch_of(welcome.marks)}; this broker followed one "
            f"of epoch {epochs.epoch_of(marks)}"
        )


def settle_log(
    store: MessageStore, marks: Marks, welcome: Welcome, *, from_last_file: bool
) -> None:
    """Truncate what the master does not have, and restart with an empty log if the master no longer
    has what comes next. Raises PeerRefused."""
    held = store.log
    was_empty = held.end == held.min_offset
    if not was_empty:
        parting = epochs.parting(marks, held.end, welcome.marks)
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
    directory = f"{store.root}/{DIRECTORY}"
    files.make_dirs(directory)
    path = f"{directory}/{start:020d}-{log.end:020d}"
    with creating(files, f"{path}.log", 0) as copy, creating(files, f"{path}.jsonl", 0) as listed:
        at, list_size = int(start), 0
        while at < log.end:
            segment = log.segment_at(at)
            assert segment is not None
            file_end = min(log.end, segment.start + log.file_bytes)
            slice_end = min(file_end, at + _SLICE)
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
