"""`tianzhou dlq`: list, inspect and replay dead letters.

To select dead letters with SQL, or edit them before a replay: `tianzhou dead-letters`, on Spark.
"""

from typing import Any, Final

import click

from tianzhou.admin.commands import message_facts, output
from tianzhou.admin.commands.bars import progress_bar
from tianzhou.admin.commands.session import Session, asking, force, group_name, watched

STEP: Final = 20
"""Dead letters sent between two updates of the progress bar."""


@click.group()
def dlq() -> None:
    """List, inspect and replay dead letters."""


@dlq.command("list")
@watched
def list_(session: Session) -> None:
    """List groups that have dead letters."""

    def look() -> list[dict[str, Any]]:
        return [
            {
                "group": box.group,
                "dead_letters": box.count,
                "not_replayed": box.not_replayed,
                "last_ms": box.last_ms,
            }
            for box in session.admin.dead_letters.all()
        ]

    columns = {
        "group": "group", "dead_letters": "dead letters", "not_replayed": "not replayed",
        "last_ms": "latest",
    }  # fmt: skip
    none = "no group has dead letters"
    session.show(look, lambda rows: output.listing(rows, columns, none, moments=("last_ms",)))


@dlq.command()
@group_name
@click.option("--max", "count", default=32, show_default=True, type=click.IntRange(1),
              metavar="COUNT", help="Show at most COUNT per broker, the newest ones.")  # fmt: skip
@asking
def peek(session: Session, group: str, count: int) -> None:
    """Show dead letters of a group without changing anything."""
    session.admin.groups.show(group)
    found = session.admin.dead_letters.peek(group, count=count)
    session.show(lambda: message_facts.rows(found), message_facts.view_rows)


@dlq.command()
@group_name
@click.option(
    "--max",
    "count",
    type=click.IntRange(1),
    metavar="COUNT",
    help="Replay at most COUNT, the oldest first.",
)
@click.option("--to-topic", is_flag=True, help="Send to the original topic, for all of its groups.")
@force
@asking
def replay(session: Session, group: str, count: int | None, to_topic: bool, yes: bool) -> None:
    """Replay dead letters that were not replayed yet, each once.

    They are delivered only to the group, unless --to-topic is given. The broker records the
    progress.
    """
    session.admin.groups.show(group)
    box = session.admin.dead_letters.show(group)
    wanted = min(box.not_replayed, count or box.not_replayed)
    if wanted:
        session.confirm(f"Replay {wanted} dead letters of group {group}?", yes=yes)
    sent, done = 0, session.admin.dead_letters.replay(group, count=0, to_topic=to_topic)
    with progress_bar(wanted, "sent") as tell:
        while sent < wanted:
            step = min(STEP, wanted - sent)
            done = session.admin.dead_letters.replay(group, count=step, to_topic=to_topic)
            if not done.count:
                break  # another client replayed the rest
            sent += done.count
            tell(sent)
    facts = {"group": group, "topic": done.topic, "sent": sent, "left": done.left}
    session.done(facts, f"{sent:,} sent to {done.topic}, {done.left:,} left")
