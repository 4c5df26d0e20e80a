"""Connected clients: producers and consumers by group, with their subscriptions.

A client is identified by its connection and the id that it chose. It is alive while its connection
is open and it sends heartbeats.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tianzhou.net.rpc import Peer
from tianzhou.wire.header import Language
from tianzhou.wire.heartbeat import ConsumerData, SubscriptionData


@dataclass(slots=True)
class Client:
    client_id: str
    peer: Peer
    language: Language
    version: int
    heartbeat_ms: int
    """Time of its last heartbeat, monotonic."""


@dataclass(slots=True)
class ConsumerGroup:
    """The connected members of a group."""

    clients: dict[Peer, Client] = field(default_factory=dict[Peer, Client])
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict[str, SubscriptionData])
    """By topic: the newest subscription that any member sent."""
    described: ConsumerData | None = None
    subscribed_by: dict[Peer, frozenset[tuple[str, str, str]]] = field(
        default_factory=dict[Peer, frozenset[tuple[str, str, str]]]
    )
    """Topic, kind and expression of each member; they must be the same for all."""

    @property
    def is_consistent(self) -> bool:
        return len(set(self.subscribed_by.values())) <= 1


class Sessions:
    """Owner: the broker loop."""

    def __init__(self) -> None:
        self.producers: dict[str, dict[Peer, Client]] = {}
        self.consumers: dict[str, ConsumerGroup] = {}
        self.abandoned: set[str] = set()
        """Consumer groups whose last member has left."""

    def record_producer(self, group: str, client: Client) -> None:
        """Record a heartbeat of a producer."""
        _record(self.producers.setdefault(group, {}), client)

    def record_consumer(self, data: ConsumerData, client: Client) -> bool:
        """Record a heartbeat of a consumer and its subscriptions; returns whether the other members
        must be notified."""
        group = self.consumers.setdefault(data.group_name, ConsumerGroup())
        self.abandoned.discard(data.group_name)
        is_new = _record(group.clients, client)
        group.described = data
        group.subscribed_by[client.peer] = frozenset(
            (s.topic, s.expression_type, s.sub_string) for s in data.subscription_data_set
        )
        return self._subscribe(group, data) or is_new

    def _subscribe(self, group: ConsumerGroup, data: ConsumerData) -> bool:
        changed = False
        wanted = {s.topic: s for s in data.subscription_data_set}
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
        """Remove a member; returns whether it was one, and the others must be notified."""
        found = self.consumers.get(group)
        if found is None or found.clients.pop(peer, None) is None:
            return False
        found.subscribed_by.pop(peer, None)
        if not found.clients:
            del self.consumers[group]
            self.abandoned.add(group)
        return True

    def remove(self, peer: Peer) -> list[str]:
        """Remove a closed connection; returns the consumer groups that lost a member."""
        for group in [g for g, clients in self.producers.items() if peer in clients]:
            self.remove_producer(group, peer)
        groups = [g for g, found in self.consumers.items() if peer in found.clients]
        for group in groups:
            self.remove_consumer(group, peer)
        return groups

    def expired(self, before_ms: int) -> list[Peer]:
        """Clients whose last heartbeat is older than this."""
        return [c.peer for c in self._all() if c.heartbeat_ms < before_ms]

    def _all(self) -> Iterator[Client]:
        for clients in self.producers.values():
            yield from clients.values()
        for group in self.consumers.values():
            yield from group.clients.values()


def _record(clients: dict[Peer, Client], client: Client) -> bool:
    """Record a heartbeat; returns whether the client is new on this connection."""
    known = clients.get(client.peer)
    if known is not None and known.client_id == client.client_id:
        known.heartbeat_ms = client.heartbeat_ms
        return False
    # A client that reconnects sends heartbeats on its new connection before the old one is closed.
    for old in [peer for peer, other in clients.items() if other.client_id == client.client_id]:
        del clients[old]
    clients[client.peer] = replace(client)  # each group has its own time of the last heartbeat
    return True
