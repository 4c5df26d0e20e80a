"""Whether the broker lives, and whether it can do its work: what a supervisor asks.

Alive is a broker that a restart would not help. Ready is one that clients find and that takes their
messages; it says in sentences what is missing.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tianzhou.broker.permission import Permission
from tianzhou.store.store import MessageStore
from tianzhou.wire import fastjson
from tianzhou.wire.tables import PERM_READ, PERM_WRITE

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

    def live(self) -> Answer:
        """`/healthz`"""
        broken = [_BROKEN] if self.store.is_broken else []
        return _answer("alive", broken)

    def ready(self) -> Answer:
        """`/readyz`"""
        reasons = [_BROKEN] if self.store.is_broken else []
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
        return _answer("ready", reasons)


_BROKEN = (
    "the disk failed, and nothing is stored any more; check it, then start the broker again; "
    "tianzhou store verify tells what is sound"
)


def _answer(state: str, reasons: list[str]) -> Answer:
    body = {"status": f"not {state}" if reasons else state, "reasons": reasons}
    return UNAVAILABLE if reasons else OK, fastjson.encode(body)
