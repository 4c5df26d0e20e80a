"""`tianzhou broker config`: the settings of a running broker, and changing them."""

import click

from tianzhou.admin.commands import output
from tianzhou.admin.commands.failures import not_found
from tianzhou.admin.commands.session import Session, asking
from tianzhou.base.settings import masked


@click.command()
@click.argument("name", required=False)
@click.option(
    "--set", "changes", multiple=True, metavar="NAME=VALUE",
    help="Change a live setting until the broker restarts.",
)  # fmt: skip
@click.option("--like", default="", metavar="TEXT", help="Only settings with this in their name.")
@asking
def config(session: Session, name: str | None, changes: tuple[str, ...], like: str) -> None:
    """Show or change the settings of the broker NAME, by RocketMQ's names."""
    pairs = [change.partition("=") for change in changes]
    wrong = [change for change, pair in zip(changes, pairs, strict=True) if not pair[1]]
    if wrong:
        raise click.BadParameter(f"{wrong[0]!r} is not NAME=VALUE", param_hint="--set")
    name = session.broker(name)
    wanted = {key.strip(): value.strip() for key, _, value in pairs}
    if wanted:
        session.admin.brokers.configure(name, wanted)
    found = session.admin.brokers.config(name)
    if wanted:
        now = {key: found.get(key, value) for key, value in wanted.items()}
        told = ", ".join(f"{key}={value}" for key, value in now.items())
        session.done(now, f"{name} runs with {told} until it is started again")
        return
    shown = {
        key: masked(key, value)
        for key, value in sorted(found.items())
        if like.lower() in key.lower()
    }
    if not shown:
        raise not_found(
            f"no setting of {name} has {like!r} in its name; without --like all are shown"
        )
    session.show(lambda: shown, output.pairs)
