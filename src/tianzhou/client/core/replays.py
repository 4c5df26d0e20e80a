"""The record of replayed dead letters, shared by the command line, the dashboard and Spark.

It is stored on the brokers and has two parts. The committed offset of the group in its dead-letter
topic covers every dead letter before it. Dead letters replayed out of order are listed in messages
of the topic `DLQ_REPLAYS`, on the broker that has the dead letters:

    {"kind": "letters", "group": "billing", "broker": "broker-a", "queueId": 0, "offsets": [4, 7]}

Such a message is younger than its dead letters and in the same log, so retention never deletes it
first. A replay with SQL also writes a `ReplayRun`, before its first message and after its last one.
"""

from dataclasses import dataclass, field
from typing import Final

import msgspec

from tianzhou.record.message import MessageView

REPLAY_TOPIC: Final = "DLQ_REPLAYS"
REPLAY_ID: Final = "REPLAY_ID"
"""Property of a replayed message: the id of its replay."""
REPLAYED_FROM: Final = "REPLAYED_FROM"
"""Property of a replayed message: the `origin` of its dead letter."""


class ReplayedLetters(
    msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, tag_field="kind", tag="letters"
):
    """Dead letters of one queue that were replayed."""

    group: str
    broker: str
    queue_id: int
    offsets: tuple[int, ...]
    replay: str = ""
    """Id of the replay with SQL that sent them; empty for other replays."""


class ReplayRun(
    msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, tag_field="kind", tag="run"
):
    """A started or finished replay with SQL."""

    id: str
    group: str
    where: str
    changes: dict[str, str]
    topic: str
    ends: dict[str, dict[str, dict[str, int]]]
    """Where the target topics ended before the first message, by topic, broker and queue."""
    started_ms: int
    is_done: bool = False
    sent: int = 0


ReplayEntry = ReplayedLetters | ReplayRun


def encode_entry(entry: ReplayEntry) -> bytes:
    return msgspec.json.encode(entry)


def decode_entry(body: bytes) -> ReplayEntry | None:
    """Return None for a message that is not an entry of the record: any client can write one."""
    try:
        return msgspec.json.decode(body, type=ReplayEntry)
    except msgspec.MsgspecError:
        return None


@dataclass(slots=True)
class ReplayRecord:
    """Which dead letters of one group were replayed."""

    group: str
    floors: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])
    """By broker and queue: every dead letter before this offset counts as replayed."""
    letters: dict[tuple[str, int], dict[int, int]] = field(
        default_factory=dict[tuple[str, int], dict[int, int]]
    )
    """Dead letters replayed out of order: offset to the time in ms at which it was recorded."""
    runs: dict[str, ReplayRun] = field(default_factory=dict[str, ReplayRun])

    def add(self, entry: ReplayEntry, recorded_ms: int) -> None:
        """Apply the next entry of the record; entries of other groups have no effect."""
        if entry.group != self.group:
            return
        if isinstance(entry, ReplayedLetters):
            found = self.letters.setdefault((entry.broker, entry.queue_id), {})
            found.update(dict.fromkeys(entry.offsets, recorded_ms))
        elif entry.is_done or entry.id not in self.runs:
            self.runs[entry.id] = entry

    def has(self, broker: str, letter: MessageView) -> bool:
        """Return whether a dead letter was replayed."""
        place = (broker, letter.queue_id)
        if letter.queue_offset < self.floors.get(place, 0):
            return True
        # A dead letter that is younger than the entry has the offset of an earlier one, whose topic
        # was deleted with its group.
        recorded_ms = self.letters.get(place, {}).get(letter.queue_offset, -1)
        return letter.store_timestamp <= recorded_ms

    def beyond_floor(self, broker: str, queue_id: int, *, since_ms: int) -> int:
        """Count the dead letters replayed out of order, without entries before `since_ms`."""
        place = (broker, queue_id)
        floor = self.floors.get(place, 0)
        found = self.letters.get(place, {}).items()
        return sum(offset >= floor and recorded_ms >= since_ms for offset, recorded_ms in found)

    def unfinished(self, *, where: str, changes: dict[str, str], topic: str) -> ReplayRun | None:
        """Return the latest interrupted replay of the same request, if any."""
        wanted = (where, changes, topic)
        found = [
            run
            for run in self.runs.values()
            if not run.is_done and (run.where, run.changes, run.topic) == wanted
        ]
        return max(found, key=lambda run: run.started_ms, default=None)
