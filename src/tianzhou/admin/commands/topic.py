"""`tianzhou topic`: create, inspect, update, spread, shrink and delete topics.

This is one file because its commands show what they did with the view of `topic show`.
"""

from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final

import click

from tianzhou.admin.commands import output
from tianzhou.admin.commands.bars import progress_bar
from tianzhou.admin.commands.failures import Failure
from tianzhou.admin.commands.session import (
    Session,
    asking,
    force,
    topic_name,
    topic_name_or_all,
    watched,
)
from tianzhou.wire.names import (
    DEAD_LETTER_PREFIX,
    PERM_READ,
    PERM_READ_WRITE,
    PERM_WRITE,
    RETRY_PREFIX,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tianzhou.client.core.admin_results import Shrinking
    from tianzhou.client.sync.admin import Admin
    from tianzhou.wire.tables import TopicConfig
    from tianzhou.wire.view_bodies import GroupRow

PERMISSIONS: Final = {
    "rw": PERM_READ_WRITE,
    "r": PERM_READ,
    "w": PERM_WRITE,
    "none": 0,
}
PERMISSION_NAMES: Final = {bits: name for name, bits in PERMISSIONS.items()}
MESSAGE_TYPES: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "UNSPECIFIED")
LOOK_S: Final = 0.5

read_queues_option = click.option(
    "--read-queues",
    type=click.IntRange(1),
    metavar="COUNT",
    help="Set the number of queues to read on each broker.",
)
write_queues_option = click.option(
    "--write-queues",
    type=click.IntRange(1),
    metavar="COUNT",
    help="Set the number of queues to write on each broker.",
)
permission_option = click.option(
    "--permission", type=click.Choice([*PERMISSIONS]), help="Set what clients may do."
)
reorder_option = click.option(
    "--reorder",
    is_flag=True,
    help="Accept that messages of an ordered topic may be consumed out of order.",
)


@click.group()
def topic() -> None:
    """Create, inspect, update, spread, shrink and delete topics."""


@topic.command("list")
@click.option(
    "--internal",
    is_flag=True,
    help="Include internal topics: system, retry and dead-letter topics.",
)
@watched
def list_(session: Session, internal: bool) -> None:
    """List all topics with message counts."""

    def view(rows: list[dict[str, Any]]) -> "RenderableType":
        shown = [{**row, "groups": ", ".join(row["groups"])} for row in rows]
        columns = {
            "topic": "topic",
            "brokers": "brokers",
            "queues": "queues",
            "messages": "messages",
            "sent_per_second": "sent/s",
            "groups": "read by",
        }
        return output.listing(
            shown, columns, "no topics; create one with `tianzhou topic create NAME`"
        )

    session.show(lambda: _listed(session.admin, internal=internal), view)


def _listed(admin: "Admin", *, internal: bool) -> list[dict[str, Any]]:
    """With two requests to each broker, however many topics there are. If a broker does not support
    these requests, each topic is requested separately."""
    rows, looked = admin.views.topics()
    groups, also = admin.views.groups()
    if looked.missing or also.missing:
        return _listed_one_by_one(admin, internal=internal)
    brokers: dict[str, int] = {}
    for look in looked.found.values():
        for row in look.topics:
            brokers[row.name] = brokers.get(row.name, 0) + 1
    readers = _readers(groups)
    return [
        {
            "topic": row.name,
            "brokers": brokers[row.name],
            "queues": row.read_queues,
            "messages": row.count,
            "sent_per_second": row.put_per_second,
            "groups": readers.get(row.name, []),
        }
        for row in rows
        if internal
        or not (row.is_system or row.name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)))
    ]


def _readers(groups: "list[GroupRow]") -> dict[str, list[str]]:
    """Names of groups by topic."""
    readers: dict[str, list[str]] = {}
    for group in groups:
        for topic in group.topics:
            readers.setdefault(topic, []).append(group.name)
    return readers


def _listed_one_by_one(admin: "Admin", *, internal: bool) -> list[dict[str, Any]]:
    return [
        {
            "topic": state.name,
            "brokers": len(state.configs),
            "queues": len(state.queues),
            "messages": state.count,
            "sent_per_second": state.put_per_second,
            "groups": list(state.groups),
        }
        for state in map(admin.topics.show, admin.topics.all(internal=internal))
    ]


@topic.command()
@topic_name
@watched
def show(session: Session, topic: str) -> None:
    """Show the settings, queues and consumer groups of a topic."""
    session.show(lambda: _shown(session, topic), _view)


def _shown(session: Session, name: str) -> dict[str, Any]:
    state = session.admin.topics.show(name)
    return {
        "topic": name,
        "messages": state.count,
        "sent_per_second": state.put_per_second,
        "groups": list(state.groups),
        "brokers": [
            {
                "broker": broker,
                **settings_of(config),
                "order": config.order,
                "attributes": config.attributes,
            }
            for broker, config in state.configs.items()
        ],
        "queues": [
            {
                "broker": row.queue.broker_name,
                "queue_id": row.queue.queue_id,
                "first_offset": row.min_offset,
                "end_offset": row.max_offset,
                "messages": row.count,
                "last_stored_ms": row.last_ms,
            }
            for row in state.queues
        ],
    }


def settings_of(config: "TopicConfig") -> dict[str, Any]:
    return {
        "read_queues": config.read_queue_nums,
        "write_queues": config.write_queue_nums,
        "permission": PERMISSION_NAMES.get(config.perm & PERM_READ_WRITE, str(config.perm)),
    }


def _view(found: dict[str, Any]) -> "RenderableType":
    brokers = output.table(
        ("broker", "read queues", "write queues", "permission", "ordered", "attributes"),
        [
            (
                row["broker"],
                row["read_queues"],
                row["write_queues"],
                row["permission"],
                row["order"],
                " ".join(f"{k}={v}" for k, v in row["attributes"].items()),
            )
            for row in found["brokers"]
        ],
    )
    queues = output.table(
        ("broker", "queue", "first offset", "end offset", "messages", "last message"),
        [
            (
                row["broker"],
                row["queue_id"],
                row["first_offset"],
                row["end_offset"],
                row["messages"],
                output.time_text(row["last_stored_ms"]),
            )
            for row in found["queues"]
        ],
    )
    facts = {
        "topic": found["topic"],
        "messages": found["messages"],
        "sent per second": found["sent_per_second"],
        "read by": ", ".join(found["groups"]) or "no group",
    }
    return output.stack(output.pairs(facts), brokers, queues)


@topic.command("light-queues")
@click.argument("text", default="")
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    metavar="COUNT",
    help="List at most COUNT light queues.",
)
@watched
def light_queues(session: Session, text: str, limit: int) -> None:
    """List light queues with TEXT in their name.

    Their messages belong to topics as well. Print them with: tianzhou consume %LMQ%NAME.
    """

    def view(rows: list[dict[str, Any]]) -> "RenderableType":
        columns = {"light_queue": "light queue", "brokers": "brokers", "messages": "messages"}
        return output.listing(rows, columns, "no light queues")

    def listed() -> list[dict[str, Any]]:
        rows, _ = session.admin.views.light_queues(text, count=limit)
        return [
            {"light_queue": row.name, "brokers": row.brokers, "messages": row.count} for row in rows
        ]

    session.show(listed, view)


@topic.command()
@topic_name
@click.option(
    "-q",
    "--queues",
    default=8,
    show_default=True,
    metavar="COUNT",
    help="Create COUNT queues on each broker.",
)
@read_queues_option
@write_queues_option
@permission_option
@click.option(
    "-b",
    "--broker",
    "brokers",
    multiple=True,
    metavar="NAME",
    help="Create it only on this broker; repeatable; default: all brokers.",
)
@click.option("--order", is_flag=True, help="Mark its messages as ordered.")
@click.option(
    "--type",
    "message_type",
    type=click.Choice(MESSAGE_TYPES, case_sensitive=False),
    help="Set the type of its messages.",
)
@asking
def create(
    session: Session,
    *,
    topic: str,
    queues: int,
    read_queues: int | None,
    write_queues: int | None,
    permission: str | None,
    brokers: tuple[str, ...],
    order: bool,
    message_type: str | None,
) -> None:
    """Create a topic. Clients can use it as soon as the command returns.

    --read-queues and --write-queues override --queues.
    """
    if topic in session.admin.topics.all(internal=True):
        raise Failure(f"topic {topic} exists; change it with `tianzhou topic update {topic}`")
    session.admin.topics.create(
        topic,
        queues=queues,
        read_queues=read_queues,
        write_queues=write_queues,
        permission=PERMISSIONS[permission or "rw"],
        brokers=brokers or None,
        order=order,
        message_type=message_type,
    )
    configs = session.admin.topics.show(topic).configs
    places = sorted(configs)
    facts: dict[str, Any] = {"topic": topic, "queues": write_queues or queues, "brokers": places}
    if read_queues or write_queues or permission:
        facts |= settings_of(configs[places[0]])
    session.done(
        facts, f"topic {topic} has {settings_text(configs[places[0]])} on {', '.join(places)}"
    )


def settings_text(config: "TopicConfig") -> str:
    """The queues of a topic on one broker, and its permission unless it is the usual one."""
    read, write = config.read_queue_nums, config.write_queue_nums
    queues = f"{write} queues" if read == write else f"{read} queues to read, {write} to write"
    permission = settings_of(config)["permission"]
    return queues if permission == "rw" else f"{queues}, permission {permission}"


@topic.command()
@topic_name
@click.option(
    "-b",
    "--broker",
    "brokers",
    multiple=True,
    metavar="NAME",
    help="Update it only on this broker, or add it there; repeatable.",
)
@read_queues_option
@write_queues_option
@permission_option
@click.option("--order/--no-order", default=None, help="Mark its messages as ordered or not.")
@reorder_option
@asking
def update(
    session: Session,
    *,
    topic: str,
    brokers: tuple[str, ...],
    read_queues: int | None,
    write_queues: int | None,
    permission: str | None,
    order: bool | None,
    reorder: bool,
) -> None:
    """Update settings of a topic on every broker that has it, or on chosen brokers.

    With --broker, a broker that does not have the topic gets it, with the settings that it has
    elsewhere unless other options are given. Connected consumers notice within a second.
    """
    if not brokers and read_queues is write_queues is permission is order is None:
        raise click.UsageError(
            "nothing to change; pass --read-queues, --write-queues, --permission, --order or "
            "--broker"
        )
    session.admin.topics.update(
        topic,
        brokers=brokers or None,
        read_queues=read_queues,
        write_queues=write_queues,
        order=order,
        permission=None if permission is None else PERMISSIONS[permission],
        allow_reorder=reorder,
    )
    where = f" on {', '.join(brokers)}" if brokers else ""
    session.done(_shown(session, topic), f"topic {topic} updated{where}")


@topic.command()
@topic_name_or_all
@click.option("--all", "all_topics", is_flag=True, help="Spread all topics except ordered ones.")
@reorder_option
@click.option("--dry-run", is_flag=True, help="Show the plan without changing anything.")
@force
@asking
def spread(
    session: Session,
    *,
    topic: str | None,
    all_topics: bool,
    reorder: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Put a topic on every broker of its cluster, so that a new broker gets its share.

    Shows a plan first. A broker that has the topic keeps its settings; the others get those of the
    broker with the most queues, and the groups that read the topic. Producers use a new broker
    within 30 seconds, consumers within one. Safe to run again.
    """
    from tianzhou.admin.commands import topic_plan
    from tianzhou.client.core.replays import REPLAY_TOPIC

    if (topic is None) != all_topics:
        raise click.UsageError("pass the name of a topic, or --all")
    topics = session.admin.topics
    names = [name for name in topics.all() if name != REPLAY_TOPIC] if topic is None else [topic]
    plans = [topics.spread(name, dry_run=True) for name in names]
    ordered = [plan.topic for plan in plans if plan.is_ordered and not plan.is_complete]
    left_out = ordered if all_topics and not reorder else []
    plans = [plan for plan in plans if plan.topic not in left_out]
    wanted = [plan.topic for plan in plans if not plan.is_complete]
    if not session.as_json:
        output.show(topic_plan.view(plans, left_out))
    if wanted and not dry_run:
        if reorder or not set(ordered).intersection(wanted):
            session.confirm(f"Spread {', '.join(wanted)}?", yes=yes)
        for name in wanted:
            topics.spread(name, allow_reorder=reorder)
    if session.as_json:
        facts = {
            "dry_run": dry_run,
            "left_out": left_out,
            "topics": [*map(topic_plan.facts, plans)],
        }
        output.echo_json(facts)
    elif wanted and not dry_run:
        click.echo(output.plain(f"spread {', '.join(wanted)}"))


@topic.command()
@topic_name
@click.option("-q", "--queues", required=True, type=int, metavar="COUNT", help="Keep COUNT queues.")
@click.option(
    "--wait",
    "wait_s",
    type=float,
    default=0.0,
    metavar="SECONDS",
    help="Wait up to SECONDS until every group has read the removed queues.",
)
@asking
def shrink(session: Session, topic: str, queues: int, wait_s: float) -> None:
    """Reduce the number of queues of a topic without losing a message.

    Producers stop writing to the last queues; once every group has read them, consumers stop
    reading them too. Run the command again until it is done, or use --wait. Exits with code 1 if
    messages are still unread.
    """
    deadline = monotonic() + wait_s
    progress = session.admin.topics.shrink(topic, queues=queues)
    unread = sum(progress.unread.values())
    with progress_bar(unread, "read") as tell:
        while not progress.is_done and monotonic() < deadline:
            sleep(LOOK_S)
            progress = session.admin.topics.shrink(topic, queues=queues)
            tell(unread - sum(progress.unread.values()))
    _check_shrunk(session, topic, queues)
    session.done(
        {"topic": topic, "queues": queues, "done": progress.is_done, "unread": {**progress.unread}},
        _shrunk(progress),
    )
    if not progress.is_done:
        raise SystemExit(1)


def _check_shrunk(session: Session, topic: str, queues: int) -> None:
    """Raise if the topic has fewer queues than requested."""
    count = max(one.write_queue_nums for one in session.admin.topics.show(topic).configs.values())
    if count < queues:
        raise click.UsageError(
            f"topic {topic} has only {count} queues; add queues with: tianzhou topic update "
            f"{topic} --write-queues {queues} --read-queues {queues}"
        )


def _shrunk(progress: "Shrinking") -> str:
    if progress.is_done:
        return f"topic {progress.topic} has {progress.queues} queues"
    left = ", ".join(f"{group} {count}" for group, count in progress.unread.items())
    return (
        f"producers now write only {progress.queues} queues of topic {progress.topic}; unread "
        f"messages in the others by group: {left}; run the command again when they are read"
    )


@topic.command()
@topic_name
@force
@asking
def delete(session: Session, topic: str, yes: bool) -> None:
    """Delete a topic from all brokers, with its messages and offsets."""
    from tianzhou.client.errors import TopicNotExist

    try:
        count = session.admin.topics.show(topic).count
    except TopicNotExist:
        count = 0  # only its route is left: an earlier deletion was incomplete
    session.confirm(f"Delete topic {topic} with {count} messages?", yes=yes)
    session.admin.topics.delete(topic)
    session.done({"topic": topic, "messages": count}, f"topic {topic} deleted")
