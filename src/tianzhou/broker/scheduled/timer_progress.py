"""How far the timer came, as it is saved in `config/timerProgress.json`.

    low      no message of the timer's topic before this offset waits
    scanned  messages before this offset had been read
    moment, offset, roll_ms
             of those that had been read, the ones before (moment, offset) are delivered;
             moments are counted as described in `timer.py`, with this roll

So a start reads from `low` on, and passes over what is before `scanned` and before the moment.
"""

import msgspec

from tianzhou.store.store import MessageStore
from tianzhou.store.tables import Table
from tianzhou.wire.fastjson import BodyReader


class TimerProgress(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    low: int = 0
    scanned: int = 0
    moment: int = 0
    offset: int = 0
    roll_ms: int = 0


def progress_table(store: MessageStore) -> Table[TimerProgress]:
    path = f"{store.paths.tables}/timerProgress.json"
    needs = ("low", "scanned", "moment")
    return Table(store.files, path, BodyReader(TimerProgress).read, TimerProgress(), needs=needs)
