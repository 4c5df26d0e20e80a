"""A group that does not get its messages: who reads what, and whether it moves."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tianzhou.admin.doctor.findings import Finding, fine, problem, warning
from tianzhou.base.errors import TianzhouError
from tianzhou.client.core.subscription import RETRY_PREFIX
from tianzhou.client.errors import GroupNotExist
from tianzhou.wire.heartbeat import ConsumerConnections, MessageModel
from tianzhou.wire.queues import MessageQueue

if TYPE_CHECKING:
    from tianzhou.client.sync.admin import Admin

Subscriptions = Mapping[str, str]
"""Expressions by topic."""


@dataclass(frozen=True)
class Look:
    """A group at one moment."""

    name: str
    exists: bool
    is_enabled: bool = True
    connected: ConsumerConnections | None = None
    subscriptions: Mapping[str, Subscriptions] = field(default_factory=dict[str, Subscriptions])
    """By client id, of those that told."""
    queues: Mapping[str, tuple[MessageQueue, ...]] = field(
        default_factory=dict[str, tuple[MessageQueue, ...]]
    )
    """Of the topics that it subscribes to."""
    owners: Mapping[MessageQueue, str] = field(default_factory=dict[MessageQueue, str])
    offsets: Mapping[MessageQueue, tuple[int, int]] = field(
        default_factory=dict[MessageQueue, tuple[int, int]]
    )
    """Confirmed, and the end of the queue."""

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
    # A broker knows only what the last of them said.
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
            queues[topic] = ()  # the topic is looked at by itself
    progress = admin.offsets.progress(name)
    return Look(
        name,
        exists=True,
        is_enabled=all(config.consume_enable for config in state.configs.values()),
        connected=connected,
        subscriptions={client: wanted for client, wanted in told.items() if wanted is not None},
        queues=queues,
        owners=owners,
        offsets={row.queue: (row.committed, row.end) for row in progress.queues},
    )


def _subscriptions(admin: "Admin", group: str, client_id: str) -> Subscriptions | None:
    try:
        running = admin.groups.running(group, client_id)
    except TianzhouError:
        return None  # some clients can't tell
    return {
        wanted.topic: f"{wanted.expression_type} {wanted.sub_string or '*'}"
        for wanted in running.subscriptions
        if not wanted.topic.startswith(RETRY_PREFIX)
    }


def group_findings(
    before: Look, now: Look, *, topic: str | None = None, is_named: bool = False
) -> Iterable[Finding]:
    """What two looks at a group, a while apart, say together."""
    about = f"group {now.name}"
    if not now.exists:
        said = "no broker has it; its first consumer makes it, unless brokers do not allow that"
        yield problem(about, said, f"tianzhou group create {now.name}")
        return
    found = [*_membership(now, topic, is_named=is_named), *_reading(before, now)]
    yield from found
    if not found:
        count = len(now.connected.connection_set) if now.connected else 0
        yield fine(about, f"{count} members, {now.lag} messages to read")


def _membership(now: Look, topic: str | None, *, is_named: bool) -> Iterable[Finding]:
    about, show = f"group {now.name}", f"tianzhou group show {now.name}"
    if not now.is_enabled:
        said = "it is switched off: brokers give it nothing"
        yield problem(about, said, f"tianzhou group update {now.name} --consume")
    if now.connected is None:
        if is_named or now.lag:
            said = f"none of its consumers is connected; {now.lag} messages wait"
            level = problem if is_named else warning
            yield level(about, said, f"start a consumer; then: {show}")
        return
    if topic is not None and topic not in now.queues:
        wanted = ", ".join(now.queues) or "nothing"
        said = f"its consumers do not subscribe to {topic}; they do to {wanted}"
        yield problem(about, said, f"subscribe to {topic} in the consumer; then: {show}")
    yield from _differences(now)


def _differences(now: Look) -> Iterable[Finding]:
    """Members of one group that want different things get parts of both."""
    about = f"group {now.name}"
    kinds: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for client, wanted in now.subscriptions.items():
        kinds.setdefault(tuple(sorted(wanted.items())), []).append(client)
    if len(kinds) > 1:
        told = "; ".join(
            f"{', '.join(clients)} want {', '.join(f'{t} ({e})' for t, e in wanted) or 'nothing'}"
            for wanted, clients in kinds.items()
        )
        said = f"its members subscribe to different things, so messages get lost: {told}"
        mend = "the same subscription for all, or another group for some; then: "
        yield problem(about, said, f"{mend}tianzhou group show {now.name}")


def _reading(before: Look, now: Look) -> Iterable[Finding]:
    about = f"group {now.name}"
    if now.connected is None or now.connected.message_model is MessageModel.BROADCASTING:
        return
    members = len(now.connected.connection_set)
    for topic, queues in now.queues.items():
        if 0 < len(queues) < members:
            said = f"{members} consumers share the {len(queues)} queues of {topic}: some are idle"
            each = -(-members // len({queue.broker_name for queue in queues}))
            mend = f"tianzhou topic update {topic} --read-queues {each} --write-queues {each}"
            yield warning(about, said, mend)
        # Twice, because queues may be on their way from one member to another.
        alone = [q for q in queues if q not in now.owners and q not in before.owners]
        if alone and before.connected is not None:
            said = f"nobody reads {_named(alone)} of {topic}"
            mend = "start the consumers again that should; their subscriptions must be the same"
            yield problem(about, said, f"{mend}: tianzhou group show {now.name}")
    for queue, (at, end) in now.offsets.items():
        was_at, was_end = before.offsets.get(queue, (-1, end))
        if at == was_at and at < was_end < end:
            owner = now.owners.get(queue, "nobody")
            said = (
                f"it stays at offset {at} in {_named([queue])} of {queue.topic} while its lag grew "
                f"from {was_end - at} to {end - at}; {owner} has the queue"
            )
            mend = (
                "look what that consumer does; to leave the message out: tianzhou group reset "
                f"{now.name} {queue.topic} --broker {queue.broker_name} --queue {queue.queue_id} "
                f"--to-offset {at + 1}"
            )
            yield problem(about, said, mend)


def _named(queues: list[MessageQueue]) -> str:
    names = ", ".join(f"{queue.queue_id} on {queue.broker_name}" for queue in queues)
    return f"queue{'s' if len(queues) > 1 else ''} {names}"
