"""The `tianzhou` command: one name for everything, each part loaded when it is asked for."""

import importlib
import sys
from collections.abc import Mapping
from typing import Final

import click

import tianzhou
from tianzhou.base.errors import TianzhouError
from tianzhou.cmd.clock import SystemClock

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "demo": (
        "tianzhou.cmd.demo:demo",
        "The main job: cluster, clients, pipelines, SQL.",
    ),
    "broker": ("tianzhou.cmd.broker:broker", "Start a Broker, or drain a running one."),
    "nameserver": ("tianzhou.cmd.nameserver:nameserver", "Start a NameServer."),
    "up": ("tianzhou.cmd.up:up", "Start a NameServer and a Broker in one process."),
    "pipeline": ("tianzhou.cmd.pipeline:pipeline", "Topics to tables: declare, run, watch."),
    "sql": ("tianzhou.cmd.sql:sql", "Ask topics and their archive with SQL."),
    "dead-letters": ("tianzhou.cmd.dead_letters:dead_letters", "Look, repair, send again."),
    "store": ("tianzhou.admin.commands.store:store", "Inspect, verify and rebuild a directory."),
}


class LazyGroup(click.Group):
    """Knows its commands by name; imports only the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, name = place[0].partition(":")
        return getattr(importlib.import_module(module), name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in sorted(COMMANDS.items())])


@click.command(cls=LazyGroup)
@click.version_option(tianzhou.__version__, prog_name="tianzhou")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Tianzhou: a RocketMQ-compatible message queue in Python."""
    ctx.obj = SystemClock()


def main() -> None:
    """Errors of ours are one sentence and exit code 1; anything else is a bug and shows itself."""
    try:
        cli()
    except (TianzhouError, OSError) as error:
        click.echo(f"tianzhou: {error}", err=True)
        sys.exit(1)
