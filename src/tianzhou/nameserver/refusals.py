"""Brokers that wanted to register lately and were refused: who, from where and why."""

from collections.abc import Iterable
from typing import Final

from tianzhou.wire.nameserver_bodies import RefusedBroker

REMEMBERED_S: Final = 120.0
"""A broker that is refused tries again every second; who is silent for so long has given up."""
BROKERS_MAX: Final = 16
CHARS_MAX: Final = 128
"""Of names that strangers chose."""


class Refusals:
    """Owner: the event loop of the NameServer."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], tuple[float, RefusedBroker]] = {}
        """By name and address; the latest is the last."""

    def refuse(self, refused: RefusedBroker, now_s: float) -> bool:
        """Remember it. False: it is the same as at its last try."""
        key = (refused.name, refused.address)
        before = self._rows.pop(key, None)
        self._rows[key] = now_s, refused
        if len(self._rows) > BROKERS_MAX:
            del self._rows[next(iter(self._rows))]
        return before is None or before[1].reason != refused.reason

    def current(self, now_s: float) -> Iterable[RefusedBroker]:
        return [row for at_s, row in self._rows.values() if now_s < at_s + REMEMBERED_S]

    def registered(self, name: str, address: str) -> None:
        """It was let in: what was before is over."""
        self._rows.pop((name, address), None)
