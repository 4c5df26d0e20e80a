"""`tianzhou transaction`: inspect and decide pending transactions."""

from typing import TYPE_CHECKING, Any, Final

import click

from tianzhou.admin.commands import output, waiting
from tianzhou.admin.commands.failures import Failure, not_found
from tianzhou.admin.commands.session import Session, asking, force, watched

if TYPE_CHECKING:
    from tianzhou.client.admin.transactions import ParkedTransaction, PendingTransaction

COLUMNS: Final = {
    "stored_ms": "since",
    "broker": "broker",
    "topic": "topic",
    "group": "producer group",
    "message_id": "message id",
    "checks": "checks",
}


@click.group()
def transaction() -> None:
    """List, commit, roll back, recheck and resume transactions."""


@transaction.command("list")
@click.option(
    "--parked",
    is_flag=True,
    help="List parked transactions: no producer decided them within the allowed checks.",
)
@waiting.of_topic
@waiting.at_most("oldest")
@watched
def list_(session: Session, topic: str | None, count: int, parked: bool) -> None:
    """List pending transactions, the oldest first."""
    transactions = session.admin.transactions
    found = transactions.parked if parked else transactions.all
    empty = "no transaction is parked" if parked else "no transaction is pending"
    hints: list[str] = []

    def look() -> list[dict[str, Any]]:
        rows = [_facts(one) for one in found(topic=topic, count=count)]
        if not parked and not session.as_json:  # a parked transaction is undecided too
            hints[:] = _parked_hint(len(transactions.parked(topic=topic, count=count)))
        return rows

    session.show(
        look,
        lambda rows: output.stack(
            output.listing(rows, COLUMNS, empty, times=("stored_ms",)),
            *map(output.sentence, hints),
        ),
    )


def _parked_hint(count: int) -> list[str]:
    return [f"{count} parked; list them with: tianzhou transaction list --parked"] if count else []


def _facts(pending: "PendingTransaction | ParkedTransaction") -> dict[str, Any]:
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


def _find(session: Session, message_id: str, topic: str | None) -> "PendingTransaction":
    transactions = session.admin.transactions
    found = transactions.all(topic=topic, count=waiting.LOOKED_AT_MAX)
    try:
        return waiting.find(found, _facts, message_id, command="transaction list")
    except Failure:
        for parked in map(_facts, transactions.parked(topic=topic, count=waiting.LOOKED_AT_MAX)):
            if message_id in (parked["message_id"], parked["offset_id"]):
                raise not_found(
                    f"transaction {message_id} is parked; tianzhou transaction resume {message_id} "
                    "makes it pending again, and then it can be decided"
                ) from None
        raise


@transaction.command()
@waiting.named
@force
@asking
def commit(session: Session, message_id: str, topic: str | None, yes: bool) -> None:
    """Commit a pending transaction, so that consumers get the message."""
    pending = _find(session, message_id, topic)
    session.confirm(f"Commit {message_id} of topic {pending.half.topic} by hand?", yes=yes)
    session.admin.transactions.commit(pending)
    session.done(_facts(pending) | {"decision": "commit"}, f"{message_id} committed")


@transaction.command()
@waiting.named
@force
@asking
def rollback(session: Session, message_id: str, topic: str | None, yes: bool) -> None:
    """Roll back a pending transaction, so that its message is never delivered."""
    pending = _find(session, message_id, topic)
    session.confirm(f"Roll back {message_id} of topic {pending.half.topic} by hand?", yes=yes)
    session.admin.transactions.rollback(pending)
    session.done(_facts(pending) | {"decision": "rollback"}, f"{message_id} rolled back")


@transaction.command()
@waiting.named
@asking
def recheck(session: Session, message_id: str, topic: str | None) -> None:
    """Check a transaction with its producers now, and reset its check count."""
    pending = _find(session, message_id, topic)
    session.admin.transactions.recheck(pending)
    said = f"checking {message_id} with the producers of group {pending.half.group}"
    session.done(_facts(pending) | {"decision": None}, said)


@transaction.command()
@waiting.named
@asking
def resume(session: Session, message_id: str, topic: str | None) -> None:
    """Make a parked transaction pending again, with a check count of 0."""
    found = session.admin.transactions.parked(topic=topic, count=waiting.LOOKED_AT_MAX)
    parked = waiting.find(found, _facts, message_id, command="transaction list --parked")
    session.admin.transactions.resume(parked)
    said = (
        f"{message_id} is pending again; checking with the producers of group {parked.half.group}"
    )
    session.done(_facts(parked) | {"decision": None}, said)
