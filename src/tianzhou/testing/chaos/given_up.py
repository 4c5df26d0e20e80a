"""Deliveries that no guarantee covers: messages that an old master delivered and then gave up.

A master that hangs while its slave is promoted does not know about the promotion when it resumes.
Until it learns of it from a NameServer and follows the new master, readers see messages that only
the old master has: their senders do not get SEND_OK. The old master sets these messages aside, and
their offsets are reused, as docs/replication.md describes under promotion. All other delivered
messages must be kept.
"""

from tianzhou.testing.chaos.evidence import Evidence
from tianzhou.testing.chaos.history import Delivery, History, Outcome, Place
from tianzhou.testing.chaos.promise import Promise

Shown = tuple[Place, str]


def given_up(history: History, found: Evidence, promise: Promise) -> set[Shown]:
    """Offsets and values that readers got during the fault and its effects, that are not stored
    there in the end, and that were never acknowledged."""
    if not promise.old_master_resumes:
        return set()
    stored = found.stored()
    promised = {(send.place, send.value) for send in history.sends if send.outcome is Outcome.OK}

    def is_given_up(row: Delivery) -> bool:
        return (
            stored.get(row.place) != row.value
            and (row.place, row.value) not in promised
            and any(trouble.began <= row.at <= trouble.ended for trouble in history.troubles)
        )

    return {(row.place, row.value) for row in history.deliveries if is_given_up(row)}
