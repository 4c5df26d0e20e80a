"""Before a slave follows: its log is made a beginning of the master's."""

import logging
from typing import Final

from tianzhou.base.kinds import PhysicalOffset
from tianzhou.replication import ha_epochs as epochs
from tianzhou.replication.errors import PeerRefused
from tianzhou.replication.ha_epochs import Marks
from tianzhou.replication.ha_frames import Welcome
from tianzhou.replication.ha_set_aside import set_aside
from tianzhou.store.store import MessageStore

log: Final = logging.getLogger("tianzhou.replication")


def check_master(store: MessageStore, marks: Marks, welcome: Welcome) -> None:
    """Whether this master can be followed at all. Raises PeerRefused."""
    if welcome.file_bytes != store.log.file_bytes:
        raise PeerRefused(
            f"the master's log has files of {welcome.file_bytes} bytes, ours of "
            f"{store.log.file_bytes}; set commit_log_file_bytes alike"
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
    """Cut what the master does not have, and begin again if it has no more what comes next. Raises
    PeerRefused."""
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
    """What we hold and the master does not was never confirmed."""
    held = store.log
    if parting >= held.end:
        return
    start = max(parting, held.min_offset)
    path = set_aside(store, start)
    log.error(
        "log.set_aside",
        extra={
            "start": int(start), "end": int(held.end), "messages": path,
            "remedy": "these messages were never confirmed; send again what is still wanted",
        },
    )  # fmt: skip
    store.truncate(start)
