"""`tianzhou broker config`: show and change the settings of a running broker."""

import click

from tianzhou.admin.commands import output
from tianzhou.admin.commands.failures import not_found
from tianzhou.admin.commands.session import Session, asking
from tianzhou.base.settings import masked


@click.command()
@click.argument("name", required=False)
@click.option(
    "--set", "changes", multiple=True, metavar="NAME=VALUE",
    help="Change a setting of the running broker until it restarts; repeatable.",
)  # fmt: skip
@click.option(
    "--like", default="", metavar="TEXT", help="Show only settings whose name contains TEXT."
)
@asking
def config(session: Session, name: str | None, changes: tuple[str, ...], like: str) -> None:
    """Show or change the settings of broker NAME, under RocketMQ's names."""
    pairs = [change.partition("=") for change in changes]
    wrong = [change for change, pair in zip(changes, pairs, strict=True) if not pair[1]]
    if wrong:
        raise click.BadParameter(f"{wrong[0]!r} must be NAME=VALUE", param_hint="--set")
    name = session.broker(name)
    wanted = {key.strip(): value.strip() for key, _, value in pairs}
    if wanted:
        session.admin.brokers.configure(name, wanted)
    found = session.admin.brokers.config(name)
    if wanted:
        now = {key: found.get(key, value) for key, value in wanted.items()}
        told = ", ".join(f"{key}={value}" for key, value in now.items())
        session.done(now, f"{name} runs with {told} until it restarts")
        return
    shown = {
        key: masked(key, value)
        for key, value in sorted(found.items())
        if like.lower() in key.lower()
    }
    if not shown:
        raise not_found(f"no setting of {name} contains {like!r}; omit --like to list all settings")
    session.show(lambda: shown, output.pairs)
