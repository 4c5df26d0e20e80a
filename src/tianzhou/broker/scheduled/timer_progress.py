"""The progress of the timer, as saved in `config/timerProgress.json`.

    low      every message of the timer's topic before this offset is delivered or cancelled
    scanned  messages before this offset had been read
    `moment`, offset, roll_ms
             of the messages that had been read, those before (`moment`, offset) are delivered;
             `moment` is a time in milliseconds, see `timer.py`

A restart therefore reads from `low` on, and skips messages before `scanned` that are due before
`moment`.
"""

import msgspec

from tianzhou.store.protocols import StorePlace
from tianzhou.store.tables import Table
from tianzhou.wire.fastjson import BodyReader


class TimerProgress(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    low: int = 0
    scanned: int = 0
    moment: int = 0
    offset: int = 0
    roll_ms: int = 0


def progress_table(store: StorePlace) -> Table[TimerProgress]:
    path = f"{store.paths.tables}/timerProgress.json"
    needs = ("low", "scanned", "moment")
    return Table(store.files, path, BodyReader(TimerProgress).read, TimerProgress(), needs=needs)
