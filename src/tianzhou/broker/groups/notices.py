"""Notices to the members of consumer groups, upon which they rebalance.

Members rebalance when one of them joins or leaves, and when the queues or the permission of a topic
change that they subscribe to. A notice of the second kind names the topics, so that Tianzhou's
clients refresh their routes first; it is sent once the NameServers know the change.

Changes of topics are coalesced: a tool that updates a thousand topics causes two notices a second
for each group, not a thousand.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from tianzhou.broker.groups.groups import Groups, Sessions
from tianzhou.broker.role import RoleState
from tianzhou.wire._generated_codes import RequestCode
from tianzhou.wire.names import CHANGED_TOPICS

PAUSE_S: Final = 0.5
"""Pause between two rounds of notices about topics. A single change is reported at once."""
GROUPS_MAX: Final = 200
"""Groups that are notified in one tick, so that thousands of them do not delay requests."""
TOPICS_MAX: Final = 64
"""Topics that a notice names: 8 KiB with the longest names. A header has 64 KiB at most."""


class Notices:
    """Owner: the broker loop."""

    def __init__(
        self,
        sessions: Sessions,
        groups: Groups,
        role_state: RoleState,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._sessions = sessions
        self._groups = groups
        self._role_state = role_state
        self._monotonic_s = monotonic_s
        self._changed: set[str] = set()
        self._due: deque[tuple[str, list[str]]] = deque()
        """Groups that are yet to be notified, each with its changed topics."""
        self._next_s = 0.0

    def members_changed(self, group: str) -> None:
        """Notify all members of a group that one of them joined or left."""
        self._tell(group, {})

    def topics_changed(self, topics: frozenset[str]) -> None:
        """Notify the groups that subscribe to these topics with one of the next ticks."""
        self._changed |= topics

    def tick(self) -> bool:
        now_s = self._monotonic_s()
        if self._changed and not self._due and now_s >= self._next_s:
            self._next_s = now_s + PAUSE_S
            changed, self._changed = self._changed, set()
            # Clients are connected to the replicas as well, which adopt the change from the master.
            if self._role_state.is_master:
                self._due.extend(self._readers(changed))
        for _ in range(min(len(self._due), GROUPS_MAX)):
            group, topics = self._due.popleft()
            text = ",".join(sorted(topics)) if len(topics) <= TOPICS_MAX else ""
            self._tell(group, {CHANGED_TOPICS: text})
        return bool(self._due)

    def finish(self) -> None:
        """Clients refresh their routes when they lose the connection."""

    def _readers(self, changed: set[str]) -> list[tuple[str, list[str]]]:
        found: list[tuple[str, list[str]]] = []
        for name, members in self._sessions.consumers.items():
            topics = [topic for topic in members.subscriptions if topic in changed]
            group = self._groups.get(name)
            if topics and (group is None or group.notify_consumer_ids_changed_enable):
                found.append((name, topics))
        return found

    def _tell(self, group: str, more: dict[str, str]) -> None:
        members = self._sessions.consumers.get(group)
        for peer in list(members.clients) if members else []:
            peer.tell(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group, **more})
