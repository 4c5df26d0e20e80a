"""What a broker remembers of its group (`config/replication.json`), and how it sees its log."""

from typing import Final

import msgspec

from tianzhou.base.errors import UsageError
from tianzhou.base.kinds import PhysicalOffset
from tianzhou.record.crc import crc32
from tianzhou.replication.ha_epochs import Mark
from tianzhou.replication.ha_frames import Probe
from tianzhou.replication.ha_session import Extent
from tianzhou.store import layout
from tianzhou.store.store import MessageStore
from tianzhou.store.tables import Table

PROBE_BYTES: Final = 4096


class GroupState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    role: str = ""
    """MASTER or SLAVE since the last change; empty: as the settings say."""
    broker_id: int = 0
    marks: tuple[Mark, ...] = ()
    copies: int = 1
    """What the master promised that we follow or followed: copies that hold what is answered."""


def state_table(store: MessageStore) -> Table[GroupState]:
    path = f"{store.root}/{layout.CONFIG}/replication.json"
    return Table(store.files, path, _decode, GroupState())


def _decode(data: bytes) -> GroupState:
    try:
        return msgspec.json.decode(data, type=GroupState)
    except msgspec.DecodeError as error:
        raise UsageError(str(error)) from error


def extent_of(store: MessageStore) -> Extent:
    return Extent(store.log.min_offset, store.log.end)


def log_bytes(store: MessageStore, offset: int, size: int) -> bytes | None:
    """Bytes of the log, inside one file; None if it does not hold them."""
    view = store.log.view(offset, size)
    return None if view is None else bytes(view)


def probe_of(store: MessageStore) -> Probe | None:
    """The last bytes of our log; None while it is empty."""
    end, file_bytes = store.log.end, store.log.file_bytes
    start = max((end - 1) // file_bytes * file_bytes, end - PROBE_BYTES, store.log.min_offset)
    data = log_bytes(store, start, end - start) if end > start else None
    return None if not data else Probe(start=start, size=len(data), crc=crc32(data))


def matches(store: MessageStore, probe: Probe) -> bool:
    """Whether our log has the bytes that somebody else's ends with."""
    if not 0 < probe.size <= PROBE_BYTES or probe.start < 0:
        return False
    data = log_bytes(store, PhysicalOffset(probe.start), probe.size)
    return data is not None and len(data) == probe.size and crc32(data) == probe.crc
