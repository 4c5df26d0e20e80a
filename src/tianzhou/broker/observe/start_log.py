"""One line about what recovery did when the broker started.

Loss and damage raise alarms, which have log lines of their own. This line covers the expected
traces of a crash.
"""

import logging
from typing import Final

from tianzhou.store.store import MessageStore

log: Final = logging.getLogger("tianzhou.broker")


def log_recovery(store: MessageStore) -> None:
    """Log what the start found, unless the last stop was clean and there was nothing to repair."""
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
