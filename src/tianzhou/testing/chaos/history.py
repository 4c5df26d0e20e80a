"""The history of a run: every send, every delivery, every offset. Checkers read it afterwards.

Times are of the monotonic clock, which all processes of one machine share. Values are unique: one
value is one send. A send that was neither clearly stored nor clearly refused is UNKNOWN: its
message may be stored or not, and both are correct.
"""

import enum
import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

FOREVER: Final = float("inf")


class Outcome(enum.Enum):
    OK = "ok"
    """Acknowledged: SEND_OK."""
    UNKNOWN = "unknown"
    """No response, or one with a weaker guarantee than configured."""
    REFUSED = "refused"
    """No broker accepted it; it must not be found anywhere."""


class Kind(enum.Enum):
    """When a message becomes visible, if at all."""

    PLAIN = "plain"
    """At once."""
    DELAYED = "delayed"
    """Not before it is due."""
    COMMITTED = "committed"
    """Half message of a transaction that its producer commits, at once or in a check."""
    ROLLED_BACK = "rolled back"
    """Half message of a transaction that is rolled back: never visible."""


class Queue(NamedTuple):
    broker: str
    """The name of the broker group."""
    queue_id: int


class Place(NamedTuple):
    queue: Queue
    offset: int


@dataclass(frozen=True, slots=True)
class Send:
    client: str
    value: str
    began: float
    ended: float
    """When the response arrived; FOREVER if the client died before."""
    outcome: Outcome
    place: Place | None = None
    """Where the message is stored, according to the response; some clients do not report it."""
    status: str = ""
    """The response or the error, as the client reports it."""
    tries_max: int = 1
    """How often the client may have sent it."""
    kind: Kind = Kind.PLAIN
    due: float = 0.0
    """For a delayed message: no consumer may get it before."""


@dataclass(frozen=True, slots=True)
class Delivery:
    client: str
    group: str
    value: str
    place: Place
    at: float


@dataclass(frozen=True, slots=True)
class Commit:
    """The offset of a group, as a broker reported it. A life is one process of the broker."""

    group: str
    queue: Queue
    offset: int
    life: str
    at: float


@dataclass(frozen=True, slots=True)
class Turn:
    """A reader asked for an offset and was sent back to an earlier one."""

    client: str
    queue: Queue
    asked: int
    told: int
    at: float


@dataclass(frozen=True, slots=True)
class Trouble:
    """A fault, and the time in which it may have effects."""

    what: str
    began: float
    ended: float
    severs: bool = False
    """Meanwhile no slave receives from the master, or none can respond."""


ANY: Final = "any"
"""The value after a reset whose response was lost: any offsets are possible."""


def offsets_name(group: str, topic: str) -> str:
    """The name under which a reset is compared. Deleting the topic or the group deletes it too."""
    return f"{group} in {topic}"


def offsets_value(offsets: Mapping[int, int]) -> str | None:
    """The offsets, ordered by queue ID; None if the group has none."""
    return ",".join(str(offset) for _, offset in sorted(offsets.items())) or None


@dataclass(frozen=True, slots=True)
class Change:
    """A request of an administrator. Each name is changed by one administrator, one request after
    the other."""

    client: str
    what: str
    """The request."""
    name: str
    """What the request changes: a topic, a group, a member, the offsets of a group in a topic.
    Empty if it is not compared at the end."""
    value: str | None
    """The value of the name afterwards; None if it does not exist."""
    member: str
    """The member that got the request."""
    began: float
    ended: float
    outcome: Outcome
    status: str = ""


@dataclass(frozen=True, slots=True)
class Placed:
    """An acknowledged message in a topic that is created and deleted meanwhile."""

    value: str
    topic: str
    queue_id: int
    offset: int
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class View:
    """One member's final view of everything that administrators changed."""

    member: str
    names: dict[str, str | None]
    stored: dict[tuple[str, int, int], str]
    """By topic, queue and offset."""


@dataclass(slots=True)
class History:
    """Everything that happened in a run. Owner: a scenario; threads of the load add to it."""

    sends: list[Send] = field(default_factory=list[Send])
    deliveries: list[Delivery] = field(default_factory=list[Delivery])
    commits: list[Commit] = field(default_factory=list[Commit])
    turns: list[Turn] = field(default_factory=list[Turn])
    troubles: list[Trouble] = field(default_factory=list[Trouble])
    changes: list[Change] = field(default_factory=list[Change])
    placed: list[Placed] = field(default_factory=list[Placed])
    views: list[View] = field(default_factory=list[View])
    adding: threading.Lock = field(default_factory=threading.Lock)

    def sent(self, send: Send) -> None:
        with self.adding:
            self.sends.append(send)

    def delivered(self, deliveries: Iterable[Delivery]) -> None:
        with self.adding:
            self.deliveries.extend(deliveries)

    def acknowledged(self, began: float = 0.0, ended: float = FOREVER) -> int:
        """Count the sends that were answered with SEND_OK in this time."""
        with self.adding:
            return sum(
                send.outcome is Outcome.OK and began <= send.ended < ended for send in self.sends
            )

    def values_of(self, group: str) -> set[str]:
        with self.adding:
            return {delivery.value for delivery in self.deliveries if delivery.group == group}

    def longest_silence(self, began: float, ended: float) -> float:
        """Return the longest time without an acknowledged send."""
        with self.adding:
            times = sorted(
                send.ended
                for send in self.sends
                if send.outcome is Outcome.OK and began <= send.ended <= ended
            )
        times = [began, *times, ended]
        return max(later - sooner for sooner, later in pairwise(times))

    def write(self, path: Path) -> None:
        """Write one JSON object per line, ordered by time."""
        with path.open("w", encoding="utf-8") as file:
            for _, row in sorted(_rows(self), key=lambda pair: pair[0]):
                file.write(json.dumps(row) + "\n")


def _rows(history: History) -> Iterator[tuple[float, dict[str, Any]]]:
    for send in history.sends:
        row = asdict(send) | {"outcome": send.outcome.value, "kind": send.kind.value}
        yield send.began, {"f": "send", **row}
    for kind, rows in (
        ("deliver", history.deliveries),
        ("commit", history.commits),
        ("turn", history.turns),
    ):
        for entry in rows:
            yield entry.at, {"f": kind, **asdict(entry)}
    for change in history.changes:
        yield change.began, {"f": "change", **asdict(change), "outcome": change.outcome.value}
    for placed in history.placed:
        yield placed.began, {"f": "place", **asdict(placed)}
    for trouble in history.troubles:
        yield trouble.began, {"f": "trouble", **asdict(trouble)}
