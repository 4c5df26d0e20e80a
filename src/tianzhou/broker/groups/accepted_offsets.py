"""Offsets that consumers committed at a slave and that its master may not know.

While the master is down, consumers read from a slave and commit there. The slave keeps these
offsets on disk, so that they survive its restart, until one of these events:

    the master returns    the slave sends them (`ahead`); the master adopts those ahead of its own
    the slave is promoted  they are its own offsets already
    the master knows more  consumers committed later offsets at the master itself
    the group was reset    or deleted at the master: a later reset overrides earlier commits
    the log is cut         offsets beyond the new end are lowered to it: other messages get them

A follower of a Raft group does the same. It learns from committed records what its leader knows.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from tianzhou.base.kinds import queue_key
from tianzhou.broker.groups.offset_resets import OffsetResets
from tianzhou.store.protocols import StorePlace
from tianzhou.store.tables import EndOf, Table
from tianzhou.wire.tables import ConsumerOffsetTable, decode_consumer_offsets

FORWARD_ONLY: Final = "tzForwardOnly"
"""Field of UPDATE_CONSUMER_OFFSET, Tianzhou only: `true` if the offset must not move a group
backwards. Other masters ignore it."""
RESET_SEEN: Final = "tzResetSeen"
"""Field beside it: the timestamp of the latest reset that the slave knows for this row. The master
ignores the offset if it has executed a later reset."""

Rows = dict[str, dict[int, int]]
"""By `topic@group` and queue."""


def accepted_table(store: StorePlace) -> Table[ConsumerOffsetTable]:
    path = f"{store.paths.tables}/acceptedOffset.json"
    empty, needs = ConsumerOffsetTable(), ("offsetTable",)
    return Table(store.files, path, decode_consumer_offsets, empty, needs=needs)


class AcceptedOffsets:
    """Owner: the broker loop, while this broker is a slave."""

    def __init__(self, table: Table[ConsumerOffsetTable]) -> None:
        self._table = table
        stored = table.load()
        self._rows = _copy(stored.offset_table)
        self.resets = OffsetResets(stored.tz_resets or {})
        """Resets that the master had executed when it last sent its offsets."""
        self._is_dirty = False
        self._master: Rows = {}
        """The offsets that the master last sent on this connection."""

    def note(self, key: str, queue_id: int, offset: int) -> None:
        """Record an offset that a consumer committed at this slave."""
        self._rows.setdefault(key, {})[queue_id] = offset
        self._is_dirty = True

    def of(self, key: str, queue_id: int) -> int:
        return self._rows.get(key, {}).get(queue_id, 0)

    def reconnected(self) -> None:
        """Handle a new connection to the master, which may have restarted and lost offsets it had
        not saved. Within one connection, an offset that goes back was reset; this also detects
        resets at RocketMQ's brokers, which keep no timestamps of them."""
        self._master = {}

    def record_master(self, master: ConsumerOffsetTable) -> list[str]:
        """Record the master's offsets; return rows that the master has deleted since."""
        offsets, before = master.offset_table, self._master
        resets = OffsetResets(master.tz_resets or {})
        for key, row in list(self._rows.items()):
            for queue_id, offset in list(row.items()):
                known = offsets.get(key, {}).get(queue_id, -1)
                went_back = known < before.get(key, {}).get(queue_id, -1)
                was_reset = resets.latest(key, queue_id) > self.resets.latest(key, queue_id)
                if known >= offset or went_back or was_reset:
                    del row[queue_id]
                    self._is_dirty = True
            if not row:
                del self._rows[key]
        self._master = _copy(offsets)
        self._is_dirty |= resets.rows() != self.resets.rows()
        self.resets = resets
        return [key for key in before if key not in offsets]

    def settle(self, committed: Mapping[str, Mapping[str, int]], resets: OffsetResets) -> list[str]:
        """In a Raft group: drop offsets that the group has committed or reset since; returns the
        keys of their rows."""
        settled: list[str] = []
        for key, row in list(self._rows.items()):
            for queue_id, offset in list(row.items()):
                known = committed.get(key, {}).get(str(queue_id), -1)
                was_reset = resets.latest(key, queue_id) > self.resets.latest(key, queue_id)
                if known >= offset or was_reset:
                    del row[queue_id]
                    settled.append(key)
            if not row:
                del self._rows[key]
        self._is_dirty |= bool(settled)
        self.resets.merge(resets.rows())
        return settled

    def row(self, key: str) -> Mapping[int, int]:
        return self._rows.get(key, {})

    def ahead(self) -> list[tuple[str, int, int]]:
        """Offsets that the master does not have: key, queue and offset."""
        return [
            (key, queue_id, offset)
            for key, row in self._rows.items()
            for queue_id, offset in row.items()
        ]

    def drop(self, key: str, queue_id: int) -> None:
        """Drop an offset that the master rejected."""
        self._rows.get(key, {}).pop(queue_id, None)
        self._is_dirty = True

    def clamp(self, end_of: EndOf) -> None:
        """Lower offsets to the ends of their queues, beyond which other messages will be stored."""
        for key, row in self._rows.items():
            topic = key.partition("@")[0]
            for queue_id, offset in row.items():
                end = end_of(queue_key(topic, queue_id))
                if offset > end:
                    row[queue_id] = end
                    self._is_dirty = True

    def forget(self) -> None:
        """Clear the table: this broker is the master now, and these are its regular offsets."""
        self._is_dirty |= bool(self._rows)
        self._rows.clear()
        self.save()

    def save(self) -> None:
        """Write the table if anything changed."""
        if self._is_dirty:
            resets = self.resets.rows() or msgspec.UNSET
            self._table.save(ConsumerOffsetTable(offset_table=self._rows, tz_resets=resets))
            self._is_dirty = False


def _copy(rows: Mapping[str, Mapping[int, int]]) -> Rows:
    return {key: dict(row) for key, row in rows.items()}
