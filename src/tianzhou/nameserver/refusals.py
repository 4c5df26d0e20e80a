"""Brokers whose recent registrations were refused: name, address and reason."""

from collections.abc import Iterable
from typing import Final

from tianzhou.wire.nameserver_bodies import RefusedBroker

REMEMBERED_S: Final = 120.0
"""A refused broker retries every second; one that is silent for this long has given up."""
BROKERS_MAX: Final = 16
CHARS_MAX: Final = 128
"""Upper bound for text from untrusted peers."""


class Refusals:
    """Owner: the event loop of the NameServer."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], tuple[float, RefusedBroker]] = {}
        """By name and address; the latest is the last."""

    def refuse(self, refused: RefusedBroker, now_s: float) -> bool:
        """Record a refusal. Returns False if the reason is the same as at the last attempt."""
        key = (refused.name, refused.address)
        before = self._rows.pop(key, None)
        self._rows[key] = now_s, refused
        if len(self._rows) > BROKERS_MAX:
            del self._rows[next(iter(self._rows))]
        return before is None or before[1].reason != refused.reason

    def current(self, now_s: float) -> Iterable[RefusedBroker]:
        return [row for at_s, row in self._rows.values() if now_s < at_s + REMEMBERED_S]

    def registered(self, name: str, address: str) -> None:
        """Drop the refusals of a broker that has registered."""
        self._rows.pop((name, address), None)
