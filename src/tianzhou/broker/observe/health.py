"""Whether the broker lives, and whether it can do its work: what a supervisor asks.

Alive is a broker that a restart would not help. Ready is one that clients find and that takes their
messages; it says in sentences what is missing.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tianzhou.broker.alarms import Alarm
from tianzhou.broker.topics.permission import Permission
from tianzhou.store.store import MessageStore
from tianzhou.wire import fastjson
from tianzhou.wire.names import PERM_READ, PERM_WRITE

OK = 200
UNAVAILABLE = 503

Answer = tuple[int, bytes]
"""A status of HTTP, and JSON."""


@dataclass(slots=True)
class Health:
    """Owner: the broker loop. That it answers at all says that the loop turns."""

    name: str
    store: MessageStore
    permission: Permission
    unregistered: Callable[[], dict[str, str]]
    """NameServers that do not know of this broker, and why."""
    nameservers: int
    alarms: Callable[[], list[Alarm]] = list
    """Conditions that an operator must see, whether or not they stop the broker from serving."""

    def live(self) -> Answer:
        """`/healthz`"""
        return _answer("alive", self._broken())

    def _broken(self) -> list[str]:
        return [f"{self.store.broken_reason}; {_BROKEN}"] if self.store.is_broken else []

    def ready(self) -> Answer:
        """`/readyz`"""
        reasons = self._broken()
        if self.store.refusal:
            reasons.append(self.store.refusal)
        if not self.permission.bits & PERM_READ:
            say = f"tianzhou broker config {self.name} --set brokerPermission=6"
            reasons.append(f"the broker gives no messages: {say}")
        if not self.permission.bits & PERM_WRITE:
            say = f"tianzhou broker drain {self.name} --undo"
            reasons.append(f"the broker takes no messages, it is being drained: {say}")
        missing = self.unregistered()
        if missing and len(missing) == self.nameservers:
            told = "; ".join(f"{server}: {reason}" for server, reason in missing.items())
            reasons.append(
                f"no NameServer knows of this broker, so that clients do not find it: {told}; "
                "check that they run: tianzhou doctor"
            )
        # Losses found at a start do not make a broker unready: waiting cannot restore the messages.
        said = [f"{alarm.text}; {alarm.remedy}" for alarm in self.alarms()]
        return _answer("ready", reasons, {"alarms": said} if said else {})


_BROKEN = (
    "the disk failed, and nothing is stored any more; check it, then start the broker again; "
    "tianzhou store verify tells what is sound"
)


def _answer(state: str, reasons: list[str], more: dict[str, list[str]] | None = None) -> Answer:
    status = f"not {state}" if reasons else state
    body: dict[str, object] = {"status": status, "reasons": reasons, **(more or {})}
    return UNAVAILABLE if reasons else OK, fastjson.encode(body)
