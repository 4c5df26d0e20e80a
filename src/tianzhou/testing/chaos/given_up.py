"""Deliveries that nobody must answer for: what an old master showed and then gave up.

A master that hangs while its slave is promoted does not know of that when it resumes. Until a
NameServer tells it, and it has followed the new master, readers see messages that only it has:
their senders are not told SEND_OK. It sets these messages aside, and their offsets are used again.
docs/replication.md says so, under promotion. Everything else that a reader got must stay.
"""

from tianzhou.testing.chaos.evidence import Evidence
from tianzhou.testing.chaos.history import Delivery, History, Outcome, Place
from tianzhou.testing.chaos.promise import Promise

Shown = tuple[Place, str]


def given_up(history: History, found: Evidence, promise: Promise) -> set[Shown]:
    """Places and values that readers got while the fault and its effects lasted, that are not
    stored there in the end, and that no sender was promised."""
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
