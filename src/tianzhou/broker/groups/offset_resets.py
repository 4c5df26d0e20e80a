"""When the offsets of a group were last reset or deleted at the master.

A slave hands offsets that consumers committed there over to a master that comes back online.
Offsets alone cannot distinguish a group that was reset meanwhile from a table that a crash rolled
back, so the master keeps a timestamp for each reset, in its table of offsets. The slave compares it
with the one that it knew when the consumer committed: an offset from before a reset is dropped.
"""

from collections.abc import Mapping
from typing import Final

Resets = Mapping[str, Mapping[int, int]]
"""Timestamps by `topic@group` and queue; `topic@` and `@group` are a deleted topic and group."""

EVERY_QUEUE: Final = -1
DELETIONS_MAX: Final = 10_000
"""Deleted topics and groups that are remembered. Only disconnected slaves need them, and only until
they reconnect."""


class OffsetResets:
    """Owner: the broker loop. Timestamps of a row only ever grow."""

    def __init__(self, rows: Resets) -> None:
        self._rows = {key: dict(row) for key, row in rows.items()}

    def note(self, key: str, queue_id: int, now_ms: int) -> None:
        row = self._rows.setdefault(key, {})
        row[queue_id] = max(now_ms, row.get(queue_id, 0) + 1)

    def note_deleted(self, *, topic: str = "", group: str = "", now_ms: int) -> None:
        """Record that the topic or group was deleted, with the offsets of every queue."""
        self.note(f"{topic}@{group}", EVERY_QUEUE, now_ms)
        deletions = [key for key in self._rows if key.startswith("@") or key.endswith("@")]
        if len(deletions) > DELETIONS_MAX:
            del self._rows[min(deletions, key=lambda key: self._rows[key][EVERY_QUEUE])]

    def latest(self, key: str, queue_id: int) -> int:
        """When this queue of this group was last reset; 0 if it never was."""
        topic, _, group = key.partition("@")
        return max(
            self._rows.get(key, {}).get(queue_id, 0),
            self._rows.get(topic + "@", {}).get(EVERY_QUEUE, 0),
            self._rows.get("@" + group, {}).get(EVERY_QUEUE, 0),
        )

    def forget(self, key: str) -> None:
        """Drop a deleted row: the timestamp of its topic or group covers it."""
        self._rows.pop(key, None)

    def merge(self, rows: Resets) -> None:
        """Keep the later timestamp of every row."""
        for key, row in rows.items():
            mine = self._rows.setdefault(key, {})
            for queue_id, at_ms in row.items():
                mine[queue_id] = max(at_ms, mine.get(queue_id, 0))

    def rows(self) -> dict[str, dict[int, int]]:
        return self._rows
