"""`tianzhou broker acknowledge`: close the incidents that starts of a running broker reported."""

import click

from tianzhou.admin.commands.session import Session, asking


@click.command()
@click.argument("name", required=False)
@asking
def acknowledge(session: Session, name: str | None) -> None:
    """Close the incidents that broker NAME and its slaves reported when they started.

    For a broker that is stopped: tianzhou store acknowledge DIRECTORY.
    """
    name = session.broker(name)
    closed = session.admin.brokers.acknowledge(name)
    texts = [f"{address}: {text}" for address, found in closed.items() for text in found]
    said = "\n".join(f"acknowledged: {text}" for text in texts) or (
        f"{name} has no incidents to acknowledge"
    )
    session.done({"broker": name, "acknowledged": closed}, said)
