"""`tianzhou broker forget`: a broker that vanished will not come back."""

import click

from tianzhou.admin.commands.failures import not_found
from tianzhou.admin.commands.session import Session, asking


@click.command()
@click.argument("name")
@asking
def forget(session: Session, name: str) -> None:
    """Stop reporting the missing broker NAME, which will not come back."""
    from tianzhou.client.errors import BrokerNotFound

    try:
        session.admin.brokers.forget(name)
    except BrokerNotFound:
        raise not_found(
            f"no NameServer misses a broker {name!r}; `tianzhou cluster` shows all brokers, "
            "missing ones included"
        ) from None
    session.done({"broker": name, "forgotten": True}, f"{name} is not reported as missing any more")
