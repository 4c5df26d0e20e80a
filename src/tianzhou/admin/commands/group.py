"""`tianzhou group`: inspect, create, reset, clone and delete consumer groups."""

from typing import TYPE_CHECKING, Any

import click

from tianzhou.admin.commands import output, queues
from tianzhou.admin.commands.failures import Failure, not_found
from tianzhou.admin.commands.session import (
    Session,
    asking,
    force,
    group_name,
    topic_name,
    watched,
)
from tianzhou.admin.commands.times import parse_time
from tianzhou.wire.names import RETRY_PREFIX

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tianzhou.client.core.admin_results import OffsetMove
    from tianzhou.client.sync.admin import Admin
    from tianzhou.wire.queues import MessageQueue


@click.group()
def group() -> None:
    """Inspect, create, reset, clone and delete consumer groups."""


@group.command("list")
@click.option("--internal", is_flag=True, help="Include internal groups of brokers and tools.")
@watched
def list_(session: Session, internal: bool) -> None:
    """List all groups with members and lag."""

    def look() -> list[dict[str, Any]]:
        from tianzhou.client.core.subscription import is_internal_group

        rows = _listed(session.admin, click.get_current_context().find_root().obj.now_ms())
        return [row for row in rows if internal or not is_internal_group(row["group"])]

    columns = {
        "group": "group",
        "members": "members",
        "topics": "topics",
        "lag": "lag",
        "behind_s": "behind, s",
        "read_per_second": "read/s",
        "stuck": "stuck",
    }

    def view(rows: list[dict[str, Any]]) -> "RenderableType":
        shown = [{**row, "topics": ", ".join(row["topics"])} for row in rows]
        return output.listing(shown, columns, "no groups; the first consumer of a group creates it")

    session.show(look, view)


def _listed(admin: "Admin", now_ms: int) -> list[dict[str, Any]]:
    """With one request to each broker, however many groups there are. If a broker does not support
    this request, each group is requested separately."""
    rows, looked = admin.views.groups()
    if looked.missing:
        return [_listed_alone(admin, name) for name in admin.groups.all()]
    return [
        {
            "group": row.name,
            "members": row.members,
            "topics": [name for name in row.topics if not name.startswith(RETRY_PREFIX)],
            "lag": row.lag,
            "behind_s": _seconds_since(row.oldest_ms, now_ms),
            "read_per_second": row.get_per_second,
            "stuck": row.stuck,
        }
        for row in rows
    ]


def _seconds_since(time_ms: int, now_ms: int) -> float | None:
    """None if the broker has not determined it yet."""
    if time_ms < 0:
        return None
    return max(0, now_ms - time_ms) / 1000 if time_ms else 0.0


def _listed_alone(admin: "Admin", name: str) -> dict[str, Any]:
    connected = admin.groups.consumers(name)
    progress = admin.offsets.progress(name)
    return {
        "group": name,
        "members": len(connected.connection_set) if connected else 0,
        "topics": sorted({row.queue.topic for row in progress.queues}),
        "lag": progress.lag,
        "behind_s": progress.behind_s,
        "read_per_second": progress.get_per_second,
        "stuck": 0,  # these brokers have no watchdog
    }


@group.command()
@group_name
@watched
def show(session: Session, group: str) -> None:
    """Show the members, subscriptions and queue offsets of a group."""
    session.show(lambda: _shown(session, group), _view)


def _shown(session: Session, name: str) -> dict[str, Any]:
    admin = session.admin
    state = admin.groups.show(name)
    connected = admin.groups.consumers(name)
    progress = admin.offsets.progress(name)
    owners: dict[MessageQueue, str] = {}
    if connected:
        for topic in state.topics:
            owners |= admin.offsets.owners(name, topic)
    return {
        "group": name,
        "lag": progress.lag,
        "behind_s": progress.behind_s,
        "read_per_second": progress.get_per_second,
        "model": connected.message_model.value if connected else None,
        "settings": {
            broker: {
                "retry_max_times": config.retry_max_times,
                "retry_queues": config.retry_queue_nums,
                "consume_enabled": config.consume_enable,
            }
            for broker, config in state.configs.items()
        },
        "members": [
            {
                "client_id": member.client_id,
                "address": member.client_addr,
                "language": member.language,
            }
            for member in (connected.connection_set if connected else ())
        ],
        "subscriptions": [
            {"topic": s.topic, "expression": s.sub_string, "type": s.expression_type}
            for s in (connected.subscription_table.values() if connected else ())
        ],
        "queues": [
            {
                "topic": row.queue.topic,
                "broker": row.queue.broker_name,
                "queue_id": row.queue.queue_id,
                "committed": row.committed,
                "end_offset": row.end,
                "lag": row.lag,
                "behind_s": row.behind_s,
                "owner": owners.get(row.queue),
            }
            for row in progress.queues
        ],
        "stands_still": [
            {"kind": event.kind, "said": event.said, "fix": event.remedy}
            for look in admin.views.group(name).found.values()
            for event in look.events
        ],
    }


def _view(found: dict[str, Any]) -> "RenderableType":
    facts = {
        "group": found["group"],
        "lag": found["lag"],
        "behind, seconds": found["behind_s"],
        "read per second": found["read_per_second"],
        "model": found["model"] or "no member is connected",
    }
    parts: list[RenderableType] = [output.pairs(facts)]
    if found["members"]:
        rows = [(m["client_id"], m["address"], m["language"]) for m in found["members"]]
        parts.append(output.table(("member", "address", "language"), rows))
        rows = [(s["topic"], s["expression"], s["type"]) for s in found["subscriptions"]]
        parts.append(output.table(("topic", "expression", "type"), rows))
    names = ("topic", "broker", "queue_id", "committed", "end_offset", "lag", "behind_s", "owner")
    titles = ("topic", "broker", "queue", "committed", "end", "lag", "behind, s", "owner")
    rows = [[queue[name] for name in names] for queue in found["queues"]]
    parts.append(output.table(titles, rows))
    for one in found["stands_still"]:
        parts += [output.sentence(one["said"]), output.sentence(f"  → {one['fix']}")]
    return output.stack(*parts)


@group.command()
@group_name
@click.option(
    "--retries",
    default=16,
    show_default=True,
    type=click.IntRange(0),
    metavar="COUNT",
    help="Retry a message COUNT times before it becomes a dead letter.",
)
@asking
def create(session: Session, group: str, retries: int) -> None:
    """Create a group, for brokers that do not create groups automatically."""
    lacking = _lacking(session, group)
    if not lacking:
        raise Failure(f"group {group} exists; change it with `tianzhou group update {group}`")
    session.admin.groups.create(group, retry_max_times=retries, brokers=lacking)
    session.done({"group": group, "retry_max_times": retries}, f"group {group} created")


def _lacking(session: Session, group: str) -> list[str]:
    """Brokers without the group: a broker may have joined the cluster later."""
    from tianzhou.client.errors import GroupNotExist

    masters = {place.name for place in session.admin.brokers.all() if 0 in place.addresses}
    try:
        return sorted(masters - session.admin.groups.show(group).configs.keys())
    except GroupNotExist:
        return sorted(masters)


@group.command()
@group_name
@click.option(
    "--retries",
    type=click.IntRange(0),
    metavar="COUNT",
    help="Retry a message COUNT times before it becomes a dead letter.",
)
@click.option("--consume/--no-consume", default=None, help="Allow or forbid the group to consume.")
@asking
def update(session: Session, group: str, retries: int | None, consume: bool | None) -> None:
    """Update settings of a group on every broker that has it."""
    if retries is consume is None:
        raise click.UsageError("nothing to change; pass --retries, --consume or --no-consume")
    session.admin.groups.update(group, retry_max_times=retries, consume_enabled=consume)
    session.done(_shown(session, group), f"group {group} updated")


@group.command()
@group_name
@topic_name
@click.option(
    "--to-time",
    type=parse_time,
    metavar="TIME",
    help="Move to the first message stored at or after TIME.",
)
@click.option("--to-earliest", is_flag=True, help="Move to the oldest stored message.")
@click.option(
    "--to-latest", is_flag=True, help="Move to the end of each queue: skip all stored messages."
)
@click.option(
    "--to-offset",
    type=click.IntRange(0),
    metavar="OFFSET",
    help="Move to OFFSET; requires --queue.",
)
@queues.queue_id
@queues.broker
@click.option("--dry-run", is_flag=True, help="Show the effect without changing anything.")
@force
@asking
def reset(
    session: Session,
    *,
    group: str,
    topic: str,
    to_time: int | None,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    queue_id: int | None,
    broker: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Move the offsets of a group in a topic. Connected consumers follow immediately."""
    wanted = (to_time is not None, to_earliest, to_latest, to_offset is not None)
    if sum(wanted) != 1:
        raise click.UsageError(
            "pass exactly one of --to-time, --to-earliest, --to-latest, --to-offset"
        )
    if (to_offset is None) != (queue_id is None):
        raise click.UsageError("--to-offset and --queue must be used together")
    _check_known(session, group)
    time_ms = to_time if to_time is not None else 0 if to_earliest else -1

    def move(dry_run: bool) -> "list[OffsetMove]":
        if to_offset is not None and queue_id is not None:
            queue = queues.one(session, topic, queue_id, broker)
            offsets = session.admin.offsets
            return [offsets.reset_to_offset(group, queue, offset=to_offset, dry_run=dry_run)]
        return session.admin.offsets.reset_to_time(group, topic, time_ms=time_ms, dry_run=dry_run)

    moves = move(dry_run=True)
    if not dry_run:
        session.confirm(f"Move group {group}: {_told(moves)}?", yes=yes)
        moves = move(dry_run=False)
    _show_moves(session, group, topic, moves, dry_run=dry_run)


def _show_moves(
    session: Session, group: str, topic: str, moves: "list[OffsetMove]", *, dry_run: bool
) -> None:
    rows = [
        {
            "broker": move.queue.broker_name,
            "queue_id": move.queue.queue_id,
            "committed": move.committed,
            "target": move.target,
            "skipped": move.skipped,
        }
        for move in moves
    ]
    said = f"{'would move' if dry_run else 'moved'} group {group} in topic {topic}: {_told(moves)}"
    facts = {"group": group, "topic": topic, "dry_run": dry_run, "queues": rows}
    columns = {
        "broker": "broker",
        "queue_id": "queue",
        "committed": "from",
        "target": "to",
        "skipped": "skipped",
    }
    session.show(
        lambda: facts,
        lambda _: output.stack(output.listing(rows, columns, "no queues"), output.sentence(said)),
    )


def _check_known(session: Session, group: str) -> None:
    """Raise if no broker has the group, and suggest the most similar name."""
    from tianzhou.base.settings import suggestion
    from tianzhou.client.errors import GroupNotExist

    try:
        session.admin.groups.show(group)
    except GroupNotExist:
        near = suggestion(group, session.admin.groups.all())
        hint = f"did you mean {near}?" if near else "`tianzhou group list` lists all groups"
        raise not_found(
            f"group {group} does not exist on any broker, so there is nothing to reset; {hint}"
        ) from None


def _told(moves: "list[OffsetMove]") -> str:
    from tianzhou.client.core.admin_results import effect_of

    skipped, again = effect_of(moves)
    return f"{skipped:,} messages will be skipped, {again:,} will be delivered again"


@group.command()
@group_name
@click.argument("target")
@click.option("--topic", help="Clone only this topic; default: all topics.")
@asking
def clone(session: Session, group: str, target: str, topic: str | None) -> None:
    """Copy the offsets of GROUP to the group TARGET."""
    session.admin.groups.show(group)
    session.admin.offsets.clone(group, target, topic)
    facts = {"group": group, "target": target, "topic": topic}
    session.done(
        facts, f"copied the offsets of {group} to {target}, in {topic or 'all its topics'}"
    )


@group.command()
@group_name
@click.option(
    "--keep-offsets", is_flag=True, help="Keep the offsets, for a group that will be created again."
)
@click.option("--force", "connected", is_flag=True, help="Delete even while members are connected.")
@force
@asking
def delete(session: Session, *, group: str, keep_offsets: bool, connected: bool, yes: bool) -> None:
    """Delete a group from all brokers, with its retries and dead letters."""
    members = session.admin.groups.show(group).client_ids
    if members and yes and not connected:
        raise Failure(
            f"group {group} has {len(members)} connected members ({', '.join(sorted(members))}); "
            "stop them first, or pass --force: they then run without offsets and retries"
        )
    told = f" ({len(members)} members are connected)" * bool(members)
    question = f"Delete group {group}{told} and its dead letters?"
    session.confirm(question, yes=yes or connected)
    session.admin.groups.delete(group, keep_offsets=keep_offsets)
    session.done({"group": group, "kept_offsets": keep_offsets}, f"group {group} deleted")
