"""Diagnose a group that receives no messages: its members, queues and progress."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tianzhou.admin.doctor.findings import Finding, fine, from_view, problem, warning
from tianzhou.base.errors import TianzhouError
from tianzhou.client.core import findings as core
from tianzhou.client.errors import GroupNotExist
from tianzhou.wire.heartbeat import ConsumerConnections, MessageModel
from tianzhou.wire.names import RETRY_PREFIX
from tianzhou.wire.queues import MessageQueue
from tianzhou.wire.view_bodies import GroupView, HeldQueue

if TYPE_CHECKING:
    from tianzhou.client.sync.admin import Admin

Subscriptions = Mapping[str, str]
"""Expressions by topic."""

STUCK_S: Final = 120.0
"""A queue whose offset moved more recently is slow, not stuck; the same as the watchdog's
default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the user wants to know about a group."""

    topic: str | None = None
    is_named: bool = False
    """Whether the user asked about this group, not about the whole cluster."""
    observed_s: float
    """Seconds between the two samples."""


@dataclass(frozen=True)
class Look:
    """A sample of a group."""

    name: str
    exists: bool
    is_enabled: bool = True
    connected: ConsumerConnections | None = None
    subscriptions: Mapping[str, Subscriptions] = field(default_factory=dict[str, Subscriptions])
    """By client id, of clients that report them."""
    queues: Mapping[str, tuple[MessageQueue, ...]] = field(
        default_factory=dict[str, tuple[MessageQueue, ...]]
    )
    """By topic that the group subscribes to."""
    owners: Mapping[MessageQueue, str] = field(default_factory=dict[MessageQueue, str])
    offsets: Mapping[MessageQueue, tuple[int, int]] = field(
        default_factory=dict[MessageQueue, tuple[int, int]]
    )
    """The committed offset and the end of the queue."""
    waited_s: Mapping[MessageQueue, float] = field(default_factory=dict[MessageQueue, float])
    """How long a message has waited at the same offset; RocketMQ's brokers do not report it."""
    has_view: bool = False
    """Whether the brokers of the group reported its state."""

    @property
    def lag(self) -> int:
        return sum(max(end - at, 0) for at, end in self.offsets.values())


def look_at(admin: "Admin", name: str) -> Look:
    try:
        state = admin.groups.show(name)
    except GroupNotExist:
        return Look(name, exists=False)
    connected = admin.groups.consumers(name)
    members = connected.connection_set if connected else ()
    told = {member.client_id: _subscriptions(admin, name, member.client_id) for member in members}
    # A broker knows only the subscriptions of the latest heartbeat.
    wanted = {topic for one in told.values() if one for topic in one}
    wanted |= set(connected.subscription_table if connected else ())
    topics = sorted(topic for topic in wanted if not topic.startswith(RETRY_PREFIX))
    queues: dict[str, tuple[MessageQueue, ...]] = {}
    owners: dict[MessageQueue, str] = {}
    for topic in topics:
        try:
            queues[topic] = tuple(row.queue for row in admin.topics.show(topic).queues)
            owners |= admin.offsets.owners(name, topic)
        except TianzhouError:
            queues[topic] = ()  # the topic has findings of its own
    progress = admin.offsets.progress(name)
    views = admin.views.group(name).found
    return Look(
        name,
        exists=True,
        is_enabled=all(config.consume_enable for config in state.configs.values()),
        connected=connected,
        subscriptions={client: wanted for client, wanted in told.items() if wanted is not None},
        queues=queues,
        owners=owners,
        offsets={row.queue: (row.committed, row.end) for row in progress.queues},
        waited_s={
            MessageQueue(broker_name=broker, queue_id=held.queue_id, topic=held.topic): _waited_s(
                view, held
            )
            for broker, view in views.items()
            for held in view.queues
        },
        has_view=bool(views),
    )


def _waited_s(view: GroupView, held: HeldQueue) -> float:
    """Seconds since the offset moved, or since the message at it was stored, by the broker's
    clock."""
    since_ms = max(held.moved_ms or view.started_ms, held.oldest_ms)
    return max(0, view.now_ms - since_ms) / 1000


def _subscriptions(admin: "Admin", group: str, client_id: str) -> Subscriptions | None:
    try:
        running = admin.groups.running(group, client_id)
    except TianzhouError:
        return None  # some clients do not report it
    return {
        wanted.topic: f"{wanted.expression_type} {wanted.sub_string or '*'}"
        for wanted in running.subscriptions
        if not wanted.topic.startswith(RETRY_PREFIX)
    }


def group_findings(
    before: Look, now: Look, asked: Asked, seen: core.Finding | None = None
) -> Iterable[Finding]:
    """Findings from two samples of a group, some seconds apart; findings in `seen`, which its
    brokers reported, are not repeated."""
    about = f"group {now.name}"
    if not now.exists:
        said = "no broker has it; its first consumer creates it, unless brokers forbid that"
        yield problem(about, said, f"tianzhou group create {now.name}")
        return
    kinds = frozenset(seen.kinds if seen else ())
    found = [from_view(seen, is_problem=asked.is_named)] if seen else []
    found += _membership(now, asked, kinds)
    found += _reading(before, now, kinds)
    if not kinds & core.NO_PROGRESS:
        found += _standing(before, now, asked)
    yield from found
    if not found:
        count = len(now.connected.connection_set) if now.connected else 0
        yield fine(about, f"{count} members, {now.lag} messages to read")


def _membership(now: Look, asked: Asked, kinds: frozenset[str]) -> Iterable[Finding]:
    about, show = f"group {now.name}", f"tianzhou group show {now.name}"
    off = core.disabled(now.name, now.lag)
    if not now.is_enabled and off.kind not in kinds:
        yield problem(about, off.said, off.remedy)
    if now.connected is None:
        # A job that commits offsets without joining the group is not a problem; brokers know the
        # difference.
        if asked.is_named or (now.lag and not now.has_view):
            alone = core.without_consumers(now.name, now.lag)
            level = problem if asked.is_named else warning
            yield level(about, alone.said, alone.remedy)
        return
    if asked.topic is not None and asked.topic not in now.queues:
        wanted = ", ".join(now.queues) or "nothing"
        said = f"its consumers do not subscribe to {asked.topic}; they subscribe to {wanted}"
        yield problem(about, said, f"subscribe to {asked.topic} in the consumer; then: {show}")
    yield from _differences(now)


def _differences(now: Look) -> Iterable[Finding]:
    kinds: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for client, wanted in now.subscriptions.items():
        kinds.setdefault(tuple(sorted(wanted.items())), []).append(client)
    if len(kinds) > 1:
        told = "; ".join(
            f"{', '.join(clients)}: {', '.join(f'{t} ({e})' for t, e in wanted) or 'nothing'}"
            for wanted, clients in kinds.items()
        )
        found = core.differing(now.name, told)
        yield problem(f"group {now.name}", found.said, found.remedy)


def _reading(before: Look, now: Look, kinds: frozenset[str]) -> Iterable[Finding]:
    about = f"group {now.name}"
    if now.connected is None or now.connected.message_model is MessageModel.BROADCASTING:
        return
    members = len(now.connected.connection_set)
    for topic, queues in now.queues.items():
        if 0 < len(queues) < members:
            said = f"{members} consumers share the {len(queues)} queues of {topic}: some are idle"
            each = -(-members // len({queue.broker_name for queue in queues}))
            fix = f"tianzhou topic update {topic} --read-queues {each} --write-queues {each}"
            yield warning(about, said, fix)
        # Twice, because queues may be on their way from one member to another.
        alone = [q for q in queues if q not in now.owners and q not in before.owners]
        if alone and before.connected is not None and core.UNOWNED not in kinds:
            said = f"no member consumes {_named(alone)} of {topic}"
            fix = "restart the consumers; all need the same subscription"
            yield problem(about, said, f"{fix}: tianzhou group show {now.name}")


def _standing(before: Look, now: Look, asked: Asked) -> Iterable[Finding]:
    """Queues whose offset did not move between the samples while messages arrived. If it moved
    shortly before, the consumer is only slow, and advice to skip messages would lose them for
    nothing."""
    if now.connected is None or now.connected.message_model is MessageModel.BROADCASTING:
        return
    still = {
        queue: max(asked.observed_s, now.waited_s.get(queue, 0.0))
        for queue, (at, end) in now.offsets.items()
        if at == before.offsets.get(queue, (-1, end))[0] and at < before.offsets[queue][1] < end
    }
    if not still:
        return
    worst = max(still, key=lambda queue: still[queue])
    lags = [sum(look.offsets[q][1] - look.offsets[q][0] for q in still) for look in (before, now)]
    grew = f"while its lag there grew from {lags[0]:,} to {lags[1]:,}"
    if still[worst] < STUCK_S:
        said = (
            f"it is slow: in {asked.observed_s:g} s it committed nothing in {len(still)} of its "
            f"queues, {grew}"
        )
        fix = f"start more consumers, or make them faster: tianzhou group show {now.name}"
        yield warning(f"group {now.name}", said, fix)
        return
    at, owner = now.offsets[worst][0], now.owners.get(worst, "no member")
    more = f"; and {len(still) - 1} more queues" if len(still) > 1 else ""
    said = (
        f"for {still[worst]:,.0f} s it has stayed at offset {at} in {_named([worst])} of "
        f"{worst.topic}, {grew}; the queue is assigned to {owner}{more}"
    )
    fix = (
        "check what that consumer is doing; to skip the message: tianzhou group reset "
        f"{now.name} {worst.topic} --broker {worst.broker_name} --queue {worst.queue_id} "
        f"--to-offset {at + 1}"
    )
    yield problem(f"group {now.name}", said, fix)


def _named(queues: list[MessageQueue]) -> str:
    names = ", ".join(f"{queue.queue_id} on {queue.broker_name}" for queue in queues)
    return f"queue{'s' if len(queues) > 1 else ''} {names}"
