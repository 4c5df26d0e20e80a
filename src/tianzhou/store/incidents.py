"""Incidents: losses and damage that a start found, kept until an operator acknowledges them.

Stored in `config/incidents.json`. A start that repairs a directory also removes the evidence, so
its findings are written and synced here before anything is changed. Acknowledged incidents stay in
the file for a while, so that the same damage, found again, is not reported a second time.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from tianzhou.store.files import Files
from tianzhou.store.tables import Table

FILE: Final = "incidents.json"
KEPT_MAX: Final = 64
"""The file holds at most this many open, and this many acknowledged, incidents."""

LOG_ENDED_EARLY: Final = "log_ended_early"
LOG_BEGINS_LATE: Final = "log_begins_late"
LOG_DAMAGED: Final = "log_damaged"
LOG_QUARANTINED: Final = "log_quarantined"
OFFSETS_SET_BACK: Final = "offsets_set_back"
QUEUES_REBUILT: Final = "queues_rebuilt"


class Incident(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    kind: str
    text: str
    """What happened, as a sentence with its values."""
    found_ms: int
    """When the start found it."""
    place: str = ""
    """Distinguishes incidents of one kind: the range of the log, or the name of a file."""
    is_loss: bool = True
    """False if nothing was lost but an operator should know."""
    acknowledged_ms: int = 0


class _Stored(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    incidents: tuple[Incident, ...] = ()
    left_out: int = 0
    """Open incidents that did not fit into the file."""
    queue_ends: dict[str, dict[int, int]] = msgspec.field(default_factory=dict[str, dict[int, int]])
    """Topic to queue to the offset below which no message may be stored: those offsets belonged to
    messages that are lost."""
    skipped: int = 0
    """Offsets still to be skipped at the end of every queue, for the same reason."""


_decode: Final = msgspec.json.Decoder(_Stored).decode


class Incidents:
    """Owner: the store's writer, or a tool that has the lock of the directory."""

    def __init__(self, files: Files, tables_path: str) -> None:
        self._table = Table(
            files, f"{tables_path}/{FILE}", _decode, _Stored(), needs=("incidents",)
        )
        self._stored = self._table.load()

    @property
    def open(self) -> list[Incident]:
        """Unacknowledged incidents, oldest first."""
        return [one for one in self._stored.incidents if not one.acknowledged_ms]

    @property
    def left_out(self) -> int:
        return self._stored.left_out

    @property
    def queue_ends(self) -> Mapping[str, Mapping[int, int]]:
        return self._stored.queue_ends

    def report(self, found: Iterable[Incident]) -> None:
        """Add new incidents; they are durable when this returns."""
        known = {(one.kind, one.place) for one in self._stored.incidents}
        new = [one for one in found if (one.kind, one.place) not in known]
        if not new:
            return
        room = max(KEPT_MAX - len(self.open), 0)
        self._save(
            incidents=(*self._stored.incidents, *new[:room]),
            left_out=self._stored.left_out + len(new[room:]),
        )

    @property
    def skipped(self) -> int:
        return self._stored.skipped

    def keep_ends(self, ends: Mapping[str, Mapping[int, int]], *, skipped: int) -> None:
        """Ensure that no queue ends before these offsets again, and that the next recovery skips
        this many more at the end of every queue."""
        kept = {topic: dict(row) for topic, row in self._stored.queue_ends.items()}
        for topic, row in ends.items():
            known = kept.setdefault(topic, {})
            for queue_id, end in row.items():
                known[queue_id] = max(end, known.get(queue_id, 0))
        if (kept, skipped) != (self._stored.queue_ends, self._stored.skipped):
            self._save(queue_ends=kept, skipped=skipped)

    def forget_topic(self, topic: str) -> None:
        """Drop the offsets of a deleted topic: its queues restart at 0."""
        if topic in self._stored.queue_ends:
            rest = {name: row for name, row in self._stored.queue_ends.items() if name != topic}
            self._save(queue_ends=rest)

    def acknowledge(self, now_ms: int) -> list[Incident]:
        """Close every open incident and return them."""
        closed = self.open
        if closed or self.left_out:
            marked = [
                one if one.acknowledged_ms else msgspec.structs.replace(one, acknowledged_ms=now_ms)
                for one in self._stored.incidents
            ]
            self._save(incidents=tuple(marked[-KEPT_MAX:]), left_out=0)
        return closed

    def _save(self, **changes: object) -> None:
        changed = msgspec.structs.replace(self._stored, **changes)
        self._table.save(changed)
        self._stored = changed


Report = Callable[[Iterable[Incident]], None]
