"""The end of a log that was never confirmed: kept in files of its own before it is cut off.

    set-aside/<start>-<end>.log     the bytes as they stood in the log
    set-aside/<start>-<end>.jsonl   a line for each message: topic, queue, ids, keys, size, times

An operator reads the list and decides what to send again; nothing is thrown away by itself.
"""

from typing import Final

import msgspec

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.record.message import MessageView
from tianzhou.record.walk import walk
from tianzhou.store.files import File, creating
from tianzhou.store.store import MessageStore

DIRECTORY: Final = "set-aside"
_SLICE: Final = 4 * 1024 * 1024


def set_aside(store: MessageStore, start: PhysicalOffset) -> str:
    """Copy the log from `start` on; the path of the list, which survives a crash."""
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
    """How many of the bytes are whole records. One that is larger than a slice goes in pieces, and
    is then not listed but kept all the same."""
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
