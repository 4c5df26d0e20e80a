"""Findings of a start as incidents: which of them an operator must see, and their wording.

A torn end that was never synced is normal after a crash: it is truncated without an incident. An
incident is the loss of something that the configuration guaranteed to keep.
"""

from dataclasses import dataclass
from typing import Final

from tianzhou.store import incidents as kinds
from tianzhou.store.checkpoint import NO_QUEUES, Checkpoint
from tianzhou.store.incidents import Incident, Incidents
from tianzhou.store.preflight import LateBegin, Shortfall
from tianzhou.store.recovery import Report
from tianzhou.store.tables import SetBack

_NAMED_MAX: Final = 5
"""Offsets listed in a sentence; the rest are counted."""


@dataclass(slots=True)
class StartReport:
    """Owner: the store's writer, while it opens."""

    incidents: Incidents
    now_ms: int
    is_repaired: bool
    """Whether peers have what this log lacks."""

    def log_ended_early(self, found: Shortfall) -> None:
        """Make the incident durable before anything is changed: the start is about to overwrite the
        evidence, and the queues that show which offsets were used."""
        if not self.is_repaired:
            self.incidents.keep_ends(found.kept_ends, skipped=found.skipped)
        what = "peers replace them" if self.is_repaired else "the lost messages stay lost"
        text = f"{found.text}; {what}"
        if found.reused_max and not self.is_repaired:
            text += f"; up to {found.reused_max} offsets of a queue may be used again"
        self._report(kinds.LOG_ENDED_EARLY, f"{found.end}-{found.vouched}", text)

    def log_begins_late(self, found: LateBegin) -> None:
        what = "peers may have them" if self.is_repaired else "their messages are lost"
        text = f"{found.text}; {what}; later messages are served"
        self._report(kinds.LOG_BEGINS_LATE, f"{found.expected}-{found.found}", text)

    def recovered(
        self, report: Report, before: Checkpoint, *, set_aside: list[str], beyond: list[SetBack]
    ) -> None:
        """Record recovery's findings. `before` is the checkpoint that it started with."""
        for damage in report.damage:
            if report.shortfall is not None and damage.end == report.shortfall.vouched:
                continue  # the same as `log_ended_early`
            if report.quarantine and damage.start == report.cut_at:
                continue  # reported with its copy in quarantine
            self._report(
                kinds.LOG_DAMAGED,
                f"{damage.start}-{damage.end}",
                f"the commit log is damaged from offset {damage.start} to {damage.end} "
                f"({damage.end - damage.start} bytes): {damage.reason}; its messages are lost, "
                "later ones are served",
            )
        for bad in report.malformed:
            self._report(
                kinds.LOG_DAMAGED,
                f"{bad.start}-{bad.end}",
                f"the record at offset {bad.start} ({bad.end - bad.start} bytes) is malformed: it "
                f"{bad.reason}; it was written like this, so no replica has a better copy; it is "
                "not delivered, later ones are served",
            )
        for name in set_aside:
            self._report(
                kinds.LOG_QUARANTINED,
                name,
                f"the end of the commit log could not be trusted and is now in quarantine/{name}; "
                "messages that were not yet durable may be in it",
            )
        # An interrupted rebuild, or a deleted topic, leaves a checkpoint that records it.
        if report.rebuilt and before.exact and before.queues != NO_QUEUES:
            self._rebuilt(report)
        if beyond and not self.is_repaired:
            self._set_back(beyond)

    def _rebuilt(self, report: Report) -> None:
        if report.rebuilt != "it was requested" and report.shortfall is None:
            text = f"queues and index did not fit the log and were derived again: {report.rebuilt}"
            self._report(kinds.QUEUES_REBUILT, str(self.now_ms), text, is_loss=False)

    def _set_back(self, beyond: list[SetBack]) -> None:
        most = max(one.stored - one.end for one in beyond)
        named = [
            f"{one.name} queue {one.queue_id} from {one.stored} to {one.end}"
            for one in beyond[:_NAMED_MAX]
        ]
        if len(beyond) > _NAMED_MAX:
            named.append(f"and {len(beyond) - _NAMED_MAX} more")
        text = (
            f"{len(beyond)} stored offsets lay beyond the end of their queue, by up to {most} "
            f"messages, and were set back: {', '.join(named)}; these offsets are used again"
        )
        self._report(kinds.OFFSETS_SET_BACK, str(self.now_ms), text)

    def _report(self, kind: str, place: str, text: str, *, is_loss: bool = True) -> None:
        is_loss = is_loss and not self.is_repaired
        self.incidents.report(
            [Incident(kind=kind, place=place, text=text, found_ms=self.now_ms, is_loss=is_loss)]
        )
