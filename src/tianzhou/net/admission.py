"""Admission of connections: one mechanism for every port that Tianzhou listens on.

Every descriptor that a connection takes is one less for the store's files. So connections are
counted at accept, before anything is allocated for them, and the ports of a process together never
exceed the `DescriptorBudget`.

A new connection is *unproven*: the peer has only connected. The owner of the port calls
`Slot.prove` when the peer has sent a valid frame, a request or a proof of the secret. Unproven
connections have an absolute deadline, however many bytes they send, and a separate limit; beyond it
the oldest is closed to make room, because a legitimate peer proves itself within milliseconds.
Proven connections are never closed to make room; beyond their limit the new connection is closed.
"""

import asyncio
import ipaddress
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final

from tianzhou.net.limits import PortLimits, connection_budget

FULL_S: Final = 60.0
"""How long after the last refusal a port still counts as full."""


class DescriptorBudget:
    """Descriptors for connections, divided among the listening ports by their weights.

    Owner: the event loop. There is one per process, because the limit is one per process.
    """

    def __init__(self, total: Callable[[], int] = connection_budget) -> None:
        self._measure = total
        self._total = 0
        self._ports: tuple[PortAdmission, ...] = ()
        """Replaced, never mutated: a test may run several loops in one process."""

    def join(self, port: "PortAdmission") -> None:
        """Add a port that starts to listen; descriptors that are already open are not divided."""
        self._total = self._measure() + sum(other.count for other in self._ports)
        self._ports = (*self._ports, port)

    def leave(self, port: "PortAdmission") -> None:
        self._ports = tuple(other for other in self._ports if other is not port)

    def share(self, port: "PortAdmission") -> int:
        """How many connections the port may have; all shares together are at most the budget."""
        weights = sum(other.limits.weight for other in self._ports)
        return max(1, self._total * port.limits.weight // max(1, weights))

    def full_ports(self) -> "list[PortAdmission]":
        """Ports that closed connections for lack of room in the last minute."""
        return sorted(
            (port for port in self._ports if port.is_full), key=lambda port: port.limits.name
        )

    @property
    def is_spent(self) -> bool:
        """Whether all ports together have used up the budget: shares shrink when a port joins
        later."""
        return sum(port.count for port in self._ports) >= self._total


PROCESS_BUDGET: Final = DescriptorBudget()


class Slot:
    """The slot of one connection. Its protocol must call `release` when the connection ends."""

    __slots__ = ("_admission", "_is_held", "_transport", "is_proven", "source")

    def __init__(self, admission: "PortAdmission", source: str) -> None:
        self._admission = admission
        self._transport: asyncio.Transport | None = None
        self._is_held = True
        self.source = source
        """The address that the connection counts for; empty if it counts for none."""
        self.is_proven = False

    def prove(self) -> bool:
        """Record that the peer has proven itself; False if there is no slot for another proven
        peer."""
        return self.is_proven or self._admission.prove(self)

    def release(self) -> None:
        """Release the slot. Calls after the first do nothing."""
        if self._is_held:
            self._is_held = False
            self._admission.released(self)

    def attach(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        if not self._is_held:
            transport.abort()

    def drop(self) -> None:
        """Close the connection at once."""
        self.release()
        if self._transport is not None:
            self._transport.abort()


class PortAdmission:
    """Decides which connections one port accepts, and counts them. Owner: the event loop."""

    def __init__(self, limits: PortLimits, budget: DescriptorBudget) -> None:
        self.limits = limits
        self._budget = budget
        self._loop = asyncio.get_running_loop()
        self._unproven: OrderedDict[Slot, float] = OrderedDict()
        """Oldest first, with the time at which each was accepted."""
        self._unproven_of: dict[str, OrderedDict[Slot, None]] = {}
        self._proven: set[Slot] = set()
        self._of_source: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None
        self._refused_at = -FULL_S
        self.refused_count = 0
        """Connections closed at the limit: new ones, and old ones to make room."""
        self.expired_count = 0
        """Connections closed because the peer proved nothing in time."""

    def open(self) -> None:
        """Claim a share of the budget before the port listens."""
        self._budget.join(self)

    def close(self) -> None:
        """Return the share of the budget; the protocols close their own connections."""
        self._budget.leave(self)
        if self._timer is not None:
            self._timer.cancel()

    @property
    def count(self) -> int:
        return len(self._proven) + len(self._unproven)

    @property
    def is_full(self) -> bool:
        return self._loop.time() - self._refused_at < FULL_S

    @property
    def proven_count(self) -> int:
        return len(self._proven)

    @property
    def _total_max(self) -> int:
        return min(self.limits.connections_max, self._budget.share(self))

    @property
    def _unproven_max(self) -> int:
        """At most half of the port, so that unproven peers never crowd out proven ones."""
        return max(1, min(self.limits.unproven_max, self._total_max // 2))

    @property
    def _proven_max(self) -> int:
        kept_free = self._unproven_max if self.limits.serves_unproven else 0
        return max(1, self._total_max - kept_free)

    @property
    def _per_source_total_max(self) -> int:
        """One address, too, must not fill the port with proven connections if unproven ones are to
        be served: health requests may come from the address of a busy proxy."""
        limits = self.limits
        kept_free = limits.unproven_per_source_max if limits.serves_unproven else 0
        return limits.per_source_max + kept_free

    def _has_room_for_source(self, source: str) -> bool:
        """Whether the address may have another proven connection."""
        proven = self._of_source[source] - len(self._unproven_of.get(source, ()))
        return not source or proven < self.limits.per_source_max

    def admit(self, source: str) -> Slot | None:
        """Return a slot for a new connection from this address, or None if there is no room."""
        limits = self.limits
        of_source = self._unproven_of.get(source, OrderedDict[Slot, None]())
        if source and (
            len(of_source) >= limits.unproven_per_source_max
            or self._of_source[source] >= self._per_source_total_max
        ):
            if not of_source:
                self._count_refused()
                return None
            self._make_room(next(iter(of_source)))
        if (
            len(self._unproven) >= self._unproven_max
            or self.count >= self._total_max
            or self._budget.is_spent
        ):
            if not self._unproven:
                self._count_refused()
                return None
            self._make_room(next(iter(self._unproven)))
        slot = Slot(self, source)
        self._unproven[slot] = self._loop.time()
        if source:
            self._of_source[source] += 1
            self._unproven_of.setdefault(source, OrderedDict())[slot] = None
        if self._timer is None:
            self._timer = self._loop.call_later(limits.prove_s, self._expire)
        return slot

    def _make_room(self, oldest: Slot) -> None:
        self._count_refused()
        oldest.drop()

    def _count_refused(self) -> None:
        self.refused_count += 1
        self._refused_at = self._loop.time()

    def prove(self, slot: Slot) -> bool:
        """Called by a slot."""
        if slot not in self._unproven or len(self._proven) >= self._proven_max:
            return False
        if not self._has_room_for_source(slot.source):
            return False
        self._forget_unproven(slot)
        self._proven.add(slot)
        slot.is_proven = True
        return True

    def released(self, slot: Slot) -> None:
        """Called by a slot, once."""
        if slot.is_proven:
            self._proven.discard(slot)
        else:
            self._forget_unproven(slot)
        if slot.source:
            self._of_source[slot.source] -= 1
            if not self._of_source[slot.source]:
                del self._of_source[slot.source]

    def _forget_unproven(self, slot: Slot) -> None:
        del self._unproven[slot]
        if slot.source:
            of_source = self._unproven_of[slot.source]
            del of_source[slot]
            if not of_source:
                del self._unproven_of[slot.source]

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._unproven:
            oldest, since = next(iter(self._unproven.items()))
            if since + self.limits.prove_s > now:
                self._timer = self._loop.call_at(since + self.limits.prove_s, self._expire)
                return
            self.expired_count += 1
            oldest.drop()


def source_of(host: str) -> str:
    """The address that a connection counts for; empty for this machine, whose tools open many.

    An IPv6 network of 64 bits counts as one: its owner chooses the rest freely.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            network = ipaddress.IPv6Network((address, 64), strict=False)
            return "" if address.is_loopback else str(network)
        address = address.ipv4_mapped
    return "" if address.is_loopback else str(address)
