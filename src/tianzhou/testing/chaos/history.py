"""What clients did and saw: every send, every delivery, every offset. Checkers read it afterwards.

Times are of the monotonic clock, which all processes of one machine share. Values are unique: one
value is one send. A send that was neither clearly stored nor clearly refused is UNKNOWN: its
message may be there or not, and whatever is found is right.
"""

import enum
import json
import threading
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

FOREVER: Final = float("inf")


class Outcome(enum.Enum):
    OK = "ok"
    """Acknowledged: SEND_OK."""
    UNKNOWN = "unknown"
    """No answer, or one that promises less than was asked."""
    REFUSED = "refused"
    """No broker took it; it must not be found anywhere."""


class Kind(enum.Enum):
    """When a message is to be seen, and whether."""

    PLAIN = "plain"
    """At once."""
    DELAYED = "delayed"
    """Not before it is due."""
    COMMITTED = "committed"
    """Half of a transaction, whose producer commits it, or says so when it is asked."""
    ROLLED_BACK = "rolled back"
    """The same, and taken back: never."""


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
    """When the answer was there; FOREVER if the client did not live to see it."""
    outcome: Outcome
    place: Place | None = None
    """Where the answer says that it is stored; some clients do not tell."""
    status: str = ""
    """The answer, or the error, in the client's words."""
    tries_max: int = 1
    """How often the client may have sent it."""
    kind: Kind = Kind.PLAIN
    due: float = 0.0
    """Of a delayed one: nobody may get it before."""


@dataclass(frozen=True, slots=True)
class Delivery:
    client: str
    group: str
    value: str
    place: Place
    at: float


@dataclass(frozen=True, slots=True)
class Commit:
    """How far a group had come, as a broker said. A life is one process of it."""

    group: str
    queue: Queue
    offset: int
    life: str
    at: float


@dataclass(frozen=True, slots=True)
class Turn:
    """A reader that asked for an offset was told to go on before it."""

    client: str
    queue: Queue
    asked: int
    told: int
    at: float


@dataclass(frozen=True, slots=True)
class Trouble:
    """A fault: what, and from when to when its effects may last."""

    what: str
    began: float
    ended: float
    severs: bool = False
    """Meanwhile no slave can hear the master, or none can answer."""


@dataclass(frozen=True, slots=True)
class Change:
    """A request of an administrator. Each name is changed by one administrator, one request after
    the other."""

    client: str
    what: str
    """The request."""
    name: str
    """What the request changes: a topic, a group, a member. Empty if it is not compared at the
    end."""
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
    """Owner: a scenario. Loads of several threads add to it."""

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
        """How many sends were answered with SEND_OK in this time."""
        with self.adding:
            return sum(
                send.outcome is Outcome.OK and began <= send.ended < ended for send in self.sends
            )

    def values_of(self, group: str) -> set[str]:
        with self.adding:
            return {delivery.value for delivery in self.deliveries if delivery.group == group}

    def longest_silence(self, began: float, ended: float) -> float:
        """The longest time without an acknowledged send."""
        with self.adding:
            times = sorted(
                send.ended
                for send in self.sends
                if send.outcome is Outcome.OK and began <= send.ended <= ended
            )
        times = [began, *times, ended]
        return max(later - sooner for sooner, later in pairwise(times))

    def write(self, path: Path) -> None:
        """One JSON object a line, in the order of time."""
        with path.open("w", encoding="utf-8") as file:
            for _, row in sorted(_rows(self), key=lambda pair: pair[0]):
                file.write(json.dumps(row) + "\n")


def _rows(history: History) -> Iterator[tuple[float, dict[str, Any]]]:
    for send in history.sends:
        row = asdict(send) | {"outcome": send.outcome.value, "kind": send.kind.value}
        yield send.began, {"f": "send", **row}
    for kind, rows in (("deliver", history.deliveries), ("commit", history.commits),
                       ("turn", history.turns)):  # fmt: skip
        for entry in rows:
            yield entry.at, {"f": kind, **asdict(entry)}
    for change in history.changes:
        yield change.began, {"f": "change", **asdict(change), "outcome": change.outcome.value}
    for placed in history.placed:
        yield placed.began, {"f": "place", **asdict(placed)}
    for trouble in history.troubles:
        yield trouble.began, {"f": "trouble", **asdict(trouble)}
