"""One line about what recovery did when the broker started.

What is lost or damaged is an alarm, with a line of its own. This line is for what a crash leaves
behind in the ordinary course of things.
"""

import logging
from typing import Final

from tianzhou.store.store import MessageStore

log: Final = logging.getLogger("tianzhou.broker")


def log_recovery(store: MessageStore) -> None:
    """Say what the start found, unless the last stop was clean and nothing was to be done."""
    found = store.recovered
    done: dict[str, object] = {}
    if found.cut_at is not None:
        done["cut_at"] = found.cut_at
    if found.rebuilt:
        done["rebuilt"] = found.rebuilt
    if found.damage:
        done["damaged_ranges"] = len(found.damage)
    if found.quarantine:
        done["quarantine"] = found.quarantine
    if found.clamped:
        done["offsets_set_back"] = found.clamped
    if not store.was_clean or done:
        facts = {"records": found.records, "scanned_bytes": found.scanned_bytes, **done}
        log.info("store.recovered", extra=facts)
