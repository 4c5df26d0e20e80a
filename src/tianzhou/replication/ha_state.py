"""The durable replication state of a broker (`config/replication.json`), and access to its log."""

from typing import Final

import msgspec

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.record.crc import crc32
from tianzhou.record.layout import SIZE_AND_MAGIC
from tianzhou.replication.ha_epochs import Mark
from tianzhou.replication.ha_frames import Probe
from tianzhou.replication.ha_plain import Overlap
from tianzhou.replication.ha_session import Extent
from tianzhou.store.files import Files
from tianzhou.store.store import MessageStore
from tianzhou.store.tables import Table

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
