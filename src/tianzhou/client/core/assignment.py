"""Strategies that assign the queues of a topic to the members of a group.

There is no coordinator: every member sorts the same queues and the same client ids, and applies the
same rule to find its own queues. The rules must agree with the Java client's for every queue, or a
mixed group would consume some queues twice and others never.

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
    """The input of a strategy."""

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
    """The queues that a member must release and acquire."""

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
    """Return the queues of this client; empty while the broker does not list it as a member.

    Raises UsageError if a strategy returns an unknown queue, or one queue twice.
    """
    known = sorted(queues, key=_queue_order)
    members = sorted(clients, key=_text_order)
    if client_id not in members or not known:
        return []
    mine = list(strategy(Occasion(group, client_id, known, members)))
    unknown = set(mine) - set(known)
    if unknown or len(set(mine)) != len(mine):
        reason = f"does not have {unknown}" if unknown else f"was given twice: {mine}"
        raise UsageError(f"the strategy of group {group}: the topic {reason}")
    return mine


def difference(held: Iterable[MessageQueue], wanted: Iterable[MessageQueue]) -> Changes:
    """Compare two assignments. The order of the arguments is kept, so results are reproducible."""
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
    """Assign neighbouring queues, in shares that differ by at most one.

    The first clients get the larger shares. Eight queues and three clients: 0 1 2, 3 4 5, 6 7.
    """
    share, left = divmod(len(occasion.queues), len(occasion.clients))
    rank = occasion.rank
    start = rank * share + min(rank, left)
    return occasion.queues[start : start + share + (rank < left)]


def circle(occasion: Occasion) -> Sequence[MessageQueue]:
    """Assign queues in turn, so that every client gets some of every broker.

    Eight queues and three clients: 0 3 6, 1 4 7, 2 5.
    """
    return occasion.queues[occasion.rank :: len(occasion.clients)]


def consistent_hash(virtual_nodes: int = VIRTUAL_NODES) -> Strategy:
    """Assign each queue to the next client on a hash ring; a change of members moves few queues."""
    if virtual_nodes < 1:
        raise UsageError(f"{virtual_nodes} virtual nodes: every client needs at least 1")

    def strategy(occasion: Occasion) -> list[MessageQueue]:
        # A later client replaces an earlier one at the same place, as in Java's map.
        ring: dict[int, str] = {}
        for client in occasion.clients:
            # A client that is listed twice continues with the next numbers.
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
    """Return the text of Java's `MessageQueue.toString`, which Java hashes."""
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name},"
        f" queueId={queue.queue_id}]"
    )


def machine_room(rooms: Iterable[str]) -> Strategy:
    """Assign only queues of brokers named `room@name` in these rooms.

    Queues in other rooms are for other groups.
    """
    wanted = frozenset(rooms)

    def strategy(occasion: Occasion) -> list[MessageQueue]:
        near = [queue for queue in occasion.queues if _room_of(queue) in wanted]
        clients, rank = len(occasion.clients), occasion.rank
        share, left = divmod(len(near), clients)
        mine = near[rank * share : rank * share + share]
        # Unlike `average`, this distributes the remaining queues from the end.
        return [*mine, near[share * clients + rank]] if rank < left else mine

    return strategy


def _room_of(queue: MessageQueue) -> str | None:
    # Java's split drops empty parts at the end, and there must be exactly two parts.
    parts = queue.broker_name.rstrip("@").split("@")
    return parts[0] if len(parts) == 2 else None


def machine_room_nearby(
    room_of_queue: Callable[[MessageQueue], str],
    room_of_client: Callable[[str], str],
    within: Strategy = average,
) -> Strategy:
    """Assign queues to clients in the same room; a room without clients is shared by all.

    Both functions must return a room for every queue and client. The strategy raises UsageError
    otherwise.
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
    """Assign fixed queues to each client id, whatever other members exist. The lists must not
    overlap and must cover every queue together; this is not checked."""

    def strategy(occasion: Occasion) -> list[MessageQueue]:
        known = set(occasion.queues)
        return [queue for queue in mine.get(occasion.client_id, ()) if queue in known]

    return strategy
