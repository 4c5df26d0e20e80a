"""`tianzhou broker forget`: stop reporting a missing broker that was retired."""

import click

from tianzhou.admin.commands.failures import not_found
from tianzhou.admin.commands.session import Session, asking


@click.command()
@click.argument("name")
@asking
def forget(session: Session, name: str) -> None:
    """Stop reporting the missing broker NAME after it was retired."""
    from tianzhou.client.errors import BrokerNotFound

    try:
        session.admin.brokers.forget(name)
    except BrokerNotFound:
        raise not_found(
            f"no NameServer reports broker {name!r} as missing; `tianzhou cluster` lists all "
            "brokers, including missing ones"
        ) from None
    session.done({"broker": name, "forgotten": True}, f"{name} is no longer reported as missing")
