"""Who in a group consumes which queues of a topic.

Nobody hands queues out: every member sorts the same queues and the same client ids, applies the
same rule, and takes what the rule gives to it. So the rules here must agree with the Java client's
to the last queue, or a mixed group would read some queues twice and others never.

A strategy is any function that takes an `Occasion` and returns queues of it. An occasion is sorted
as Java sorts: by UTF-16 units, topic before broker before queue.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import md5
from typing import Final, NamedTuple, TypeAlias, TypeVar

from tianzhou.base.errors import UsageError
from tianzhou.wire.queues import MessageQueue

_T = TypeVar("_T")

VIRTUAL_NODES: Final = 10
"""Places on the ring for each client, as in Java."""


@dataclass(frozen=True, slots=True)
class Occasion:
    """Everything that a strategy may look at."""

    group: str
    client_id: str
    queues: Sequence[MessageQueue]
    """All queues of one topic, sorted."""
    clients: Sequence[str]
    """All members of the group, sorted; one of them is `client_id`."""

    @property
    def rank(self) -> int:
        return self.clients.index(self.client_id)


Strategy: TypeAlias = Callable[[Occasion], Sequence[MessageQueue]]


class Changes(NamedTuple):
    """What a member must do to have what it should have."""

    dropped: list[MessageQueue]
    gained: list[MessageQueue]


def assign(
    strategy: Strategy,
    *,
    group: str,
    client_id: str,
    queues: Iterable[MessageQueue],
    clients: Iterable[str],
) -> list[MessageQueue]:
    """The queues of this client. None, while the broker does not count it as a member yet.

    Raises UsageError when a strategy returns a queue that it was not shown, or one twice.
    """
    known = sorted(queues, key=_queue_order)
    members = sorted(clients, key=_text_order)
    if client_id not in members or not known:
        return []
    mine = list(strategy(Occasion(group, client_id, known, members)))
    strangers = set(mine) - set(known)
    if strangers or len(set(mine)) != len(mine):
        reason = f"does not have {strangers}" if strangers else f"was given twice: {mine}"
        raise UsageError(f"the strategy of group {group}: the topic {reason}")
    return mine


def difference(held: Iterable[MessageQueue], wanted: Iterable[MessageQueue]) -> Changes:
    """In the order of the arguments, so that a round is the same every time."""
    held, wanted = list(held), list(wanted)
    return Changes(
        dropped=[queue for queue in held if queue not in wanted],
        gained=[queue for queue in wanted if queue not in held],
    )


def _text_order(text: str) -> bytes:
    """Java compares 16-bit units, which differs beyond the basic plane."""
    return text.encode("utf-16-be", "surrogatepass")


def _queue_order(queue: MessageQueue) -> tuple[bytes, bytes, int]:
    return _text_order(queue.topic), _text_order(queue.broker_name), queue.queue_id


# The strategies


def average(occasion: Occasion) -> Sequence[MessageQueue]:
    """Neighbouring queues, in shares that differ by at most one; the first have more.

    Eight queues and three clients: 0 1 2, 3 4 5, 6 7.
    """
    share, left = divmod(len(occasion.queues), len(occasion.clients))
    rank = occasion.rank
    start = rank * share + min(rank, left)
    return occasion.queues[start : start + share + (rank < left)]


def circle(occasion: Occasion) -> Sequence[MessageQueue]:
    """Queues dealt out like cards: every client gets some of every broker.

    Eight queues and three clients: 0 3 6, 1 4 7, 2 5.
    """
    return occasion.queues[occasion.rank :: len(occasion.clients)]


def consistent_hash(virtual_nodes: int = VIRTUAL_NODES) -> Strategy:
    """Each queue goes to the next client on a ring; who comes or goes moves few queues."""
    if virtual_nodes < 1:
        raise UsageError(f"{virtual_nodes} virtual nodes: every client needs at least 1")

    def strategy(occasion: Occasion) -> list[MessageQueue]:
        # A later client takes a place that is already taken, as in Java's map.
        ring: dict[int, str] = {}
        for client in occasion.clients:
            # A client that is listed twice goes on counting where it stopped.
            placed = sum(owner == client for owner in ring.values())
            for number in range(placed, placed + virtual_nodes):
                ring[_place(f"{client}-{number}")] = client
        places = sorted(ring)

        def owner_of(queue: MessageQueue) -> str:
            at = bisect_left(places, _place(_java_text(queue)))
            return ring[places[at % len(places)]]

        return [queue for queue in occasion.queues if owner_of(queue) == occasion.client_id]

    return strategy


def _place(text: str) -> int:
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def _java_text(queue: MessageQueue) -> str:
    """`MessageQueue.toString` of Java, which is what it hashes."""
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name},"
        f" queueId={queue.queue_id}]"
    )


def machine_room(rooms: Iterable[str]) -> Strategy:
    """Only brokers named `room@name` in these rooms. Queues elsewhere are for other groups."""
    wanted = frozenset(rooms)

    def strategy(occasion: Occasion) -> list[MessageQueue]:
        near = [queue for queue in occasion.queues if _room_of(queue) in wanted]
        clients, rank = len(occasion.clients), occasion.rank
        share, left = divmod(len(near), clients)
        mine = near[rank * share : rank * share + share]
        # Unlike with `average`, what is left over comes from the end.
        return [*mine, near[share * clients + rank]] if rank < left else mine

    return strategy


def _room_of(queue: MessageQueue) -> str | None:
    # Java's split drops what is empty at the end, and wants exactly two parts.
    parts = queue.broker_name.rstrip("@").split("@")
    return parts[0] if len(parts) == 2 else None


def machine_room_nearby(
    room_of_queue: Callable[[MessageQueue], str],
    room_of_client: Callable[[str], str],
    within: Strategy = average,
) -> Strategy:
    """Queues go to clients in their own room; a room without clients is shared by all.

    Both functions must name a room for everything they are asked about.
    """

    def strategy(occasion: Occasion) -> list[MessageQueue]:
        queues = _by_room(occasion.queues, room_of_queue, "queue")
        clients = _by_room(occasion.clients, room_of_client, "client")
        own = room_of_client(occasion.client_id)
        mine = [*_share(occasion, within, queues.pop(own, []), clients[own])]
        for room in sorted(queues, key=_text_order):
            if room not in clients:
                mine += _share(occasion, within, queues[room], occasion.clients)
        return mine

    return strategy


def _share(
    occasion: Occasion,
    within: Strategy,
    queues: Sequence[MessageQueue],
    clients: Sequence[str],
) -> Sequence[MessageQueue]:
    if not queues:
        return []
    return within(Occasion(occasion.group, occasion.client_id, queues, clients))


def _by_room(items: Sequence[_T], room_of: Callable[[_T], str], kind: str) -> dict[str, list[_T]]:
    rooms: dict[str, list[_T]] = {}
    for item in items:
        room = room_of(item)
        if not room:
            raise UsageError(f"{kind} {item} has no machine room; each needs one")
        rooms.setdefault(room, []).append(item)
    return rooms


def by_configuration(mine: Mapping[str, Sequence[MessageQueue]]) -> Strategy:
    """Fixed queues for each client id, whoever else is there. The lists must not overlap, and
    together they must name every queue; nobody checks that."""

    def strategy(occasion: Occasion) -> list[MessageQueue]:
        known = set(occasion.queues)
        return [queue for queue in mine.get(occasion.client_id, ()) if queue in known]

    return strategy
