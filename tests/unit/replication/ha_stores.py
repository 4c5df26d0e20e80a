"""Small stores on simulated disks, one following the other by hand."""

from typing import Final

from tianzhou.base.kinds import PhysicalOffset, QueueOffset, queue_key
from tianzhou.record.chunk import Entry, build
from tianzhou.record.message import decode_all
from tianzhou.replication.ha_epochs import Marks
from tianzhou.replication.ha_frames import Welcome
from tianzhou.store.config import StoreConfig
from tianzhou.store.read import ReadLimit
from tianzhou.store.store import MessageStore
from tianzhou.testing.sim.clock import ManualClock
from tianzhou.testing.sim.disk import SimDisk

FILE_BYTES: Final = 4096
KEY: Final = queue_key("orders", 0)


def open_store(disk: SimDisk | None = None) -> MessageStore:
    config = StoreConfig(
        commit_log_file_bytes=FILE_BYTES,
        consume_queue_file_bytes=200,
        commit_log_preallocate_bytes=4096,
        index_slots=8,
        index_entries=40,
    )
    return MessageStore(disk or SimDisk(), "data", config, ManualClock())


def put(store: MessageStore, *bodies: bytes) -> None:
    properties = b"KEYS\x01k\x02UNIQ_KEY\x01U1\x02"
    for body in bodies:
        store.append(build([Entry(KEY, body, properties)], store_host=bytes(8), record_crc=True))
    store.dispatch_all()


def bodies(store: MessageStore) -> list[bytes]:
    start, found = QueueOffset(store.min_offset(KEY)), list[bytes]()
    with store.read(KEY, start, ReadLimit(999, 1 << 24)) as result:
        for span in result.spans:
            found += [view.body for view in decode_all(span)]
    return found


def copy_to(follower: MessageStore, leader: MessageStore, end: int | None = None) -> None:
    """What replication does, without a connection."""
    end = leader.log.end if end is None else end
    while follower.log.end < end:
        at = follower.log.end
        segment = leader.log.segment_at(at)
        assert segment is not None
        stop = min(end, segment.start + FILE_BYTES)
        data = segment.read(at - segment.start, stop - segment.start)
        follower.append_raw(PhysicalOffset(at), data)
    follower.dispatch_all()


def welcome_of(store: MessageStore, marks: Marks) -> Welcome:
    return Welcome(
        cluster="c",
        name="n",
        marks=marks,
        min=store.log.min_offset,
        end=store.log.end,
        file_bytes=FILE_BYTES,
    )
