"""`tianzhou dlq`: what groups have given up, looked at and sent again.

Dead letters that need a repair first, or a choice by SQL: `tianzhou dead-letters`, on Spark.
"""

from typing import Any, Final

import click

from tianzhou.admin.commands import message_facts, output
from tianzhou.admin.commands.bars import progress_bar
from tianzhou.admin.commands.session import Session, asking, force, group_name, watched

STEP: Final = 20
"""Dead letters that are sent between two looks at the bar."""


@click.group()
def dlq() -> None:
    """Dead letters: list, look at, send again."""


@dlq.command("list")
@watched
def list_(session: Session) -> None:
    """Show groups that have dead letters."""

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
        "last_ms": "last one",
    }  # fmt: skip
    none = "no group has dead letters"
    session.show(look, lambda rows: output.listing(rows, columns, none, moments=("last_ms",)))


@dlq.command()
@group_name
@click.option("--max", "count", default=32, show_default=True, type=click.IntRange(1),
              help="The newest of each broker.")  # fmt: skip
@asking
def peek(session: Session, group: str, count: int) -> None:
    """Show dead letters of a group; nothing changes."""
    session.admin.groups.show(group)
    found = session.admin.dead_letters.peek(group, count=count)
    session.show(lambda: message_facts.rows(found), message_facts.view_rows)


@dlq.command()
@group_name
@click.option("--max", "count", type=click.IntRange(1), help="So many, the oldest first.")
@click.option("--to-topic", is_flag=True, help="For every group of the topic they came from.")
@force
@asking
def replay(session: Session, group: str, count: int | None, to_topic: bool, yes: bool) -> None:
    """Send dead letters again that were not replayed yet, each once.

    They go to the group alone, unless --to-topic. How far this came is kept on the broker.
    """
    session.admin.groups.show(group)
    box = session.admin.dead_letters.show(group)
    wanted = min(box.not_replayed, count or box.not_replayed)
    if wanted:
        session.confirm(f"Send {wanted} dead letters of group {group} again?", yes=yes)
    sent, done = 0, session.admin.dead_letters.replay(group, count=0, to_topic=to_topic)
    with progress_bar(wanted, "sent") as tell:
        while sent < wanted:
            step = min(STEP, wanted - sent)
            done = session.admin.dead_letters.replay(group, count=step, to_topic=to_topic)
            if not done.count:
                break  # somebody else replayed the rest
            sent += done.count
            tell(sent)
    facts = {"group": group, "topic": done.topic, "sent": sent, "left": done.left}
    session.done(facts, f"{sent:,} sent to {done.topic}, {done.left:,} left")
