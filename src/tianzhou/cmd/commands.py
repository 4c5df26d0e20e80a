"""The tree of the `tianzhou` command. Each subcommand is imported when it is called."""

import errno
import importlib
from collections.abc import Mapping
from typing import Any, Final

import click

import tianzhou
from tianzhou.admin.commands.failures import (
    WANTS_JSON,
    ExitCode,
    Failure,
    echo_error,
    failure_of,
)
from tianzhou.admin.commands.output import is_undecoded
from tianzhou.base.errors import TianzhouError
from tianzhou.base.extras import missing_extra
from tianzhou.cmd import interrupts
from tianzhou.cmd.clock import SystemClock

_ADMIN: Final = "tianzhou.admin.commands"

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "demo": (
        "tianzhou.cmd.demo:demo",
        "Run the demo: cluster, clients, pipelines, SQL.",
    ),
    "broker": ("tianzhou.cmd.broker:broker", "Start a Broker, or manage a running one."),
    "nameserver": ("tianzhou.cmd.nameserver:nameserver", "Start a NameServer."),
    "up": ("tianzhou.cmd.up:up", "Start a NameServer and a Broker in one process."),
    "pipeline": (f"{_ADMIN}.pipeline:pipeline", "Declare, run and monitor Spark pipelines."),
    "sql": (f"{_ADMIN}.sql:sql", "Query topics and their archive with SQL."),
    "topic": (f"{_ADMIN}.topic:topic", "Create, inspect, update and delete topics."),
    "group": (f"{_ADMIN}.group:group", "Inspect, reset and delete consumer groups."),
    "produce": (f"{_ADMIN}.produce:produce", "Send lines, JSON or test messages to a topic."),
    "consume": (f"{_ADMIN}.consume:consume", "Print the messages of a topic as they arrive."),
    "message": (f"{_ADMIN}.message:message", "Find, show and trace messages."),
    "dlq": (f"{_ADMIN}.dlq:dlq", "List, show and replay dead letters."),
    "transaction": (
        f"{_ADMIN}.transaction:transaction",
        "Inspect and decide pending transactions.",
    ),
    "scheduled": (f"{_ADMIN}.scheduled:scheduled", "List and cancel scheduled messages."),
    "cluster": (f"{_ADMIN}.cluster:cluster", "List all brokers."),
    "raft": (f"{_ADMIN}.raft:raft", "Inspect and change Raft groups."),
    "witness": ("tianzhou.cmd.witness:witness", "Start the witness of a Raft group."),
    "bench": (f"{_ADMIN}.bench:bench", "Measure the throughput and latency of a broker."),
    "doctor": (f"{_ADMIN}.doctor:doctor", "Diagnose why a send or a consumer does not work."),
    "grafana-dashboard": (
        f"{_ADMIN}.grafana_dashboard:grafana_dashboard",
        "Print a Grafana dashboard as JSON.",
    ),
    "completion": (
        f"{_ADMIN}.completion:completion",
        "Print a completion script for bash, zsh or fish.",
    ),
    "store": (
        "tianzhou.admin.commands.store:store",
        "Inspect, verify, rebuild and convert a store directory.",
    ),
}


class LazyGroup(click.Group):
    """A group that lists its commands by name and imports only the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, name = place[0].partition(":")
        return getattr(importlib.import_module(module), name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest the correct name for a misspelt one; click itself knows only loaded commands."""
        if args[0] not in COMMANDS and not ctx.resilient_parsing:
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, n=1)
            if near:
                raise click.UsageError(
                    f"unknown command {args[0]!r}; did you mean {near[0]!r}?", ctx
                )
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[WANTS_JSON] = "--json" in args
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Report an error as one sentence and an exit code, or as one JSON object with --json."""
        try:
            return self._invoke(ctx)
        except click.ClickException as error:
            if not ctx.meta[WANTS_JSON]:
                raise
            echo_error(error)
            ctx.exit(error.exit_code)

    def _invoke(self, ctx: click.Context) -> Any:
        """Exceptions other than Tianzhou's and the system's are bugs; their traceback is shown."""
        try:
            with interrupts.Interruptible():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(ExitCode.INTERRUPTED)
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # the reader of the output has closed the pipe; click exits quietly
            raise failure_of(error) from error
        except TianzhouError as error:
            raise failure_of(error) from error
        except UnicodeEncodeError as error:
            if not is_undecoded(error.object):
                raise
            raise Failure(f"{error.object!r} is not UTF-8 text", ExitCode.WRONG_USE) from error
        except ModuleNotFoundError as error:
            advice = missing_extra(error)
            if advice is None:
                raise  # a module of Tianzhou or a core dependency: the installation is broken
            raise Failure(advice, ExitCode.WRONG_USE) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in sorted(COMMANDS.items())])


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(tianzhou.__version__, prog_name="tianzhou")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Tianzhou: a RocketMQ-compatible message queue in Python."""
    ctx.obj = SystemClock()
