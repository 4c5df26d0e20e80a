"""`tianzhou transaction`: messages whose producers have not said whether they count."""

from typing import TYPE_CHECKING, Any

import click

from tianzhou.admin.commands import output
from tianzhou.admin.commands.failures import not_found
from tianzhou.admin.commands.session import Session, asking, force, watched

if TYPE_CHECKING:
    from tianzhou.client.aio.admin_transactions import PendingTransaction

LOOKED_AT_MAX = 10_000

transaction_id = click.argument("message_id")


@click.group()
def transaction() -> None:
    """Pending transactions: list, commit, roll back, ask the producer again."""


@transaction.command("list")
@click.option("--topic", help="Only of this topic.")
@click.option("--max", "count", default=100, show_default=True, type=click.IntRange(1),
              help="The oldest of each broker.")  # fmt: skip
@watched
def list_(session: Session, topic: str | None, count: int) -> None:
    """Show transactions that nobody decided, the oldest first."""

    def look() -> list[dict[str, Any]]:
        return [
            _facts(pending) for pending in session.admin.transactions.all(topic=topic, count=count)
        ]

    columns = {
        "stored": "since", "broker": "broker", "topic": "topic", "group": "producer group",
        "message_id": "message id", "checks": "asked",
    }  # fmt: skip
    session.show(
        look,
        lambda rows: output.listing(
            [row | {"stored": output.moment_text(row["stored_ms"])} for row in rows],
            columns,
            "no transaction is pending",
        ),
    )


def _facts(pending: "PendingTransaction") -> dict[str, Any]:
    half = pending.half
    return {
        "broker": pending.broker_name,
        "topic": half.topic,
        "group": half.group,
        "message_id": half.msg_id,
        "offset_id": half.offset_msg_id,
        "checks": half.checks,
        "stored_ms": half.store_timestamp,
    }


def _find(session: Session, message_id: str) -> "PendingTransaction":
    for pending in session.admin.transactions.all(count=LOOKED_AT_MAX):
        if message_id in (pending.half.msg_id, pending.half.offset_msg_id):
            return pending
    raise not_found(
        f"no transaction {message_id} is pending; it may be decided: `tianzhou transaction list`"
    )


@transaction.command()
@transaction_id
@force
@asking
def commit(session: Session, message_id: str, yes: bool) -> None:
    """Let consumers have the message, whatever its producer says."""
    pending = _find(session, message_id)
    session.confirm(f"Commit {message_id} of topic {pending.half.topic} by hand?", yes=yes)
    session.admin.transactions.commit(pending)
    session.done(_facts(pending) | {"decision": "commit"}, f"{message_id} is committed")


@transaction.command()
@transaction_id
@force
@asking
def rollback(session: Session, message_id: str, yes: bool) -> None:
    """Let nobody have the message, whatever its producer says."""
    pending = _find(session, message_id)
    session.confirm(f"Roll back {message_id} of topic {pending.half.topic} by hand?", yes=yes)
    session.admin.transactions.rollback(pending)
    session.done(_facts(pending) | {"decision": "rollback"}, f"{message_id} is rolled back")


@transaction.command()
@transaction_id
@asking
def recheck(session: Session, message_id: str) -> None:
    """Ask the producer again now, and count from the first time."""
    pending = _find(session, message_id)
    session.admin.transactions.recheck(pending)
    said = f"the producers of group {pending.half.group} are asked about {message_id}"
    session.done(_facts(pending) | {"decision": None}, said)
