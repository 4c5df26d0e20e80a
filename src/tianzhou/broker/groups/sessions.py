"""Who is connected: producers and consumers by group, with what they subscribe to.

A client is known by its connection and the id it gives itself. It lives as long as its connection
and its heartbeats.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tianzhou.net.rpc import Peer
from tianzhou.wire.header import Header, Language
from tianzhou.wire.heartbeat import ConsumerData, SubscriptionData


@dataclass(slots=True)
class Client:
    client_id: str
    peer: Peer
    language: Language
    version: int
    heard_ms: int
    """Its last heartbeat, in monotonic time."""


@dataclass(slots=True)
class ConsumerGroup:
    """The living members of a group."""

    clients: dict[Peer, Client] = field(default_factory=dict[Peer, Client])
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict[str, SubscriptionData])
    """By topic: the newest that any member told us."""
    described: ConsumerData | None = None
    told_by: dict[Peer, frozenset[tuple[str, str, str]]] = field(
        default_factory=dict[Peer, frozenset[tuple[str, str, str]]]
    )
    """Topic, kind and expression of each member: they must all be alike."""

    @property
    def is_consistent(self) -> bool:
        return len(set(self.told_by.values())) <= 1


class Sessions:
    """Owner: the broker loop."""

    def __init__(self) -> None:
        self.producers: dict[str, dict[Peer, Client]] = {}
        self.consumers: dict[str, ConsumerGroup] = {}
        self.abandoned: set[str] = set()
        """Consumer groups whose last member is gone."""

    def heard_producer(
        self, group: str, client_id: str, header: Header, peer: Peer, now_ms: int
    ) -> None:
        clients = self.producers.setdefault(group, {})
        _hear(clients, client_id, header, peer, now_ms)

    def heard_consumer(
        self, told: ConsumerData, client_id: str, header: Header, peer: Peer, now_ms: int
    ) -> bool:
        """Note a member and what it subscribes to; whether the others must be told."""
        group = self.consumers.setdefault(told.group_name, ConsumerGroup())
        self.abandoned.discard(told.group_name)
        is_new = _hear(group.clients, client_id, header, peer, now_ms)
        group.described = told
        group.told_by[peer] = frozenset(
            (s.topic, s.expression_type, s.sub_string) for s in told.subscription_data_set
        )
        return self._subscribe(group, told) or is_new

    def _subscribe(self, group: ConsumerGroup, told: ConsumerData) -> bool:
        changed = False
        wanted = {s.topic: s for s in told.subscription_data_set}
        for topic, subscription in wanted.items():
            known = group.subscriptions.get(topic)
            if known is None or subscription.sub_version > known.sub_version:
                changed |= known is None
                group.subscriptions[topic] = subscription
        for topic in [topic for topic in group.subscriptions if topic not in wanted]:
            del group.subscriptions[topic]
            changed = True
        return changed

    def remove_producer(self, group: str, peer: Peer) -> None:
        clients = self.producers.get(group)
        if clients is not None:
            clients.pop(peer, None)
            if not clients:
                del self.producers[group]

    def remove_consumer(self, group: str, peer: Peer) -> bool:
        """Whether the peer was a member; the others must be told then."""
        found = self.consumers.get(group)
        if found is None or found.clients.pop(peer, None) is None:
            return False
        found.told_by.pop(peer, None)
        if not found.clients:
            del self.consumers[group]
            self.abandoned.add(group)
        return True

    def remove(self, peer: Peer) -> list[str]:
        """The connection is gone; the consumer groups that lost a member."""
        for group in [g for g, clients in self.producers.items() if peer in clients]:
            self.remove_producer(group, peer)
        groups = [g for g, found in self.consumers.items() if peer in found.clients]
        for group in groups:
            self.remove_consumer(group, peer)
        return groups

    def expired(self, before_ms: int) -> list[Peer]:
        """Clients whose last heartbeat is older than this."""
        return [c.peer for c in self._all() if c.heard_ms < before_ms]

    def _all(self) -> Iterator[Client]:
        for clients in self.producers.values():
            yield from clients.values()
        for group in self.consumers.values():
            yield from group.clients.values()


def _hear(
    clients: dict[Peer, Client], client_id: str, header: Header, peer: Peer, now_ms: int
) -> bool:
    known = clients.get(peer)
    if known is not None and known.client_id == client_id:
        known.heard_ms = now_ms
        return False
    # A client that reconnects is heard on its new connection before the old one is closed.
    for old in [p for p, c in clients.items() if c.client_id == client_id]:
        del clients[old]
    clients[peer] = Client(client_id, peer, header.language, header.version, now_ms)
    return True
