"""What all commands share: the NameServer, and output for people or programs.

    @topic.command("list")
    @watched
    def list_(session: Session, internal: bool) -> None:
        session.show(lambda: ..., view)

`asking` gives a command -n and --json; `watched` adds --watch for commands that only read.
`telling` and `looking` are the same for commands without a NameServer, and pass a `Teller`.
"""

import functools
import math
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Self, TypeVar, cast

import click
from click.shell_completion import CompletionItem

from tianzhou.admin.commands import output
from tianzhou.admin.commands.failures import Failure
from tianzhou.base.errors import UsageError
from tianzhou.base.nameserver_addresses import NAMESERVER_VARIABLES, split_list

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tianzhou.client.sync.admin import Admin

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_NAMESERVER: Final = "127.0.0.1:9876"
COMPLETE_S: Final = 0.5
"""The timeout for names when a shell completes a word."""
CALL_S: Final = 3.0
TIMEOUT_VARIABLE: Final = "TIANZHOU_TIMEOUT"
CREDENTIALS_VARIABLE: Final = "TIANZHOU_CREDENTIALS"
"""Not an option: other users of a machine can read command lines."""


def addresses(_ctx: click.Context, _param: click.Parameter, text: str) -> str:
    """Reject URLs with a clear message, before they fail as a host name."""
    if "://" in text:
        raise click.BadParameter(f"{text!r} must be HOST:PORT; omit {text.partition('://')[0]}://")
    return ";".join(split_list(text)) or text


nameserver = click.option(
    "-n",
    "--nameserver",
    envvar=NAMESERVER_VARIABLES,
    default=DEFAULT_NAMESERVER,
    show_default=True,
    show_envvar=True,
    metavar="HOST:PORT",
    callback=addresses,
    help="Use these NameServers, separated by semicolons; the default port is 9876.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
watch = click.option("-w", "--watch", is_flag=True, help="Refresh until Ctrl-C.")
every = click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Refresh every SECONDS with --watch.",
)
force = click.option("-y", "--yes", is_flag=True, help="Skip the confirmation prompt.")


class Teller:
    """The output of one command. Owner: the command."""

    def __init__(self, *, as_json: bool, watch: bool = False, every_s: float = 2.0) -> None:
        self.as_json = as_json
        self._watch = watch
        self._every_s = every_s

    def show(self, look: Callable[[], T], view: "Callable[[T], RenderableType]") -> None:
        """Print what `look` returns, once or repeatedly; --json prints it unchanged."""
        if not self._watch:
            self._print(look(), view)
            return
        from tianzhou.admin.commands import watching

        if self.as_json or not sys.stdout.isatty():
            watching.print_again(look, lambda found: self._print(found, view), self._every_s)
        else:
            watching.draw_again(look, view, self._every_s)

    def _print(self, found: T, view: "Callable[[T], RenderableType]") -> None:
        if self.as_json:
            output.echo_json(found)
        else:
            output.show(view(found))

    def done(self, facts: object, sentence: str) -> None:
        """Report what was done, as JSON or as a sentence."""
        if self.as_json:
            output.echo_json(facts)
        else:
            click.echo(output.plain(sentence))

    def busy(self, what: str) -> AbstractContextManager[Any]:
        """Show a spinner on the error stream, unless the output is JSON."""
        return nullcontext() if self.as_json else output.console(err=True).status(what)

    def confirm(self, question: str, *, yes: bool) -> None:
        """Prompt before a change that cannot be undone; --yes skips the prompt."""
        if yes:
            return
        # Not click's prompt, which cannot distinguish Ctrl-C from the end of input.
        if not self.as_json or sys.stdin.isatty():  # programs parse the error stream as JSON
            click.echo(f"{output.plain(question)} [y/N]: ", nl=False, err=True)
        answer = sys.stdin.readline()
        if not answer:
            raise Failure("cannot prompt for confirmation (stdin is closed); pass --yes to skip it")
        if answer.strip().lower() not in ("y", "yes"):
            raise Failure("cancelled; nothing was changed")


class Session(Teller):
    """The output and the cluster connection of one command. Owner: the command."""

    def __init__(
        self, nameserver: str, *, as_json: bool, watch: bool = False, every_s: float = 2.0
    ) -> None:
        super().__init__(as_json=as_json, watch=watch, every_s=every_s)
        self.nameserver = nameserver
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @functools.cached_property
    def admin(self) -> "Admin":
        """The admin client, connected from its first use until the command ends."""
        from tianzhou.client.options import ClientOptions
        from tianzhou.client.sync.admin import Admin
        from tianzhou.wire.signing import Credentials

        options = ClientOptions(
            credentials=Credentials.read(credentials_from_environment()),
            call_timeout_s=timeout_from_environment(),
        )
        return self._stack.enter_context(Admin(nameserver=self.nameserver, client=options))

    def broker(self, name: str | None) -> str:
        """The broker a command refers to: the only one in the cluster if no name was given. Raises
        NoRoute while there is none, so that `--watch` keeps running."""
        if name is not None:
            return name
        names = [place.name for place in self.admin.brokers.all()]
        if len(names) == 1:
            return names[0]
        if not names:
            from tianzhou.client.errors import NoRoute

            raise NoRoute("no broker is registered with the NameServer; check that one runs")
        raise click.UsageError(f"there are several brokers; pass one of {', '.join(names)}")


def telling(command: Callable[Concatenate[Teller, P], None]) -> Callable[..., None]:
    @as_json
    @functools.wraps(command)
    def call(as_json: bool, *args: P.args, **rest: P.kwargs) -> None:
        command(Teller(as_json=as_json), *args, **rest)

    return call


def looking(command: Callable[Concatenate[Teller, P], None]) -> Callable[..., None]:
    @as_json
    @watch
    @every
    @functools.wraps(command)
    def call(as_json: bool, watch: bool, every_s: float, *args: P.args, **rest: P.kwargs) -> None:
        command(Teller(as_json=as_json, watch=watch, every_s=every_s), *args, **rest)

    return call


def asking(command: Callable[Concatenate[Session, P], None]) -> Callable[..., None]:
    @nameserver
    @as_json
    @functools.wraps(command)
    def call(nameserver: str, as_json: bool, *args: P.args, **rest: P.kwargs) -> None:
        _check_text(click.get_current_context())
        with Session(nameserver, as_json=as_json) as session:
            command(session, *args, **rest)

    return call


def watched(command: Callable[Concatenate[Session, P], None]) -> Callable[..., None]:
    @nameserver
    @as_json
    @watch
    @every
    @functools.wraps(command)
    def call(
        nameserver: str,
        as_json: bool,
        watch: bool,
        every_s: float,
        *args: P.args,
        **rest: P.kwargs,
    ) -> None:
        _check_text(click.get_current_context())
        with Session(nameserver, as_json=as_json, watch=watch, every_s=every_s) as session:
            command(session, *args, **rest)

    return call


def _check_text(ctx: click.Context) -> None:
    """Reject arguments that are not UTF-8 before one of them becomes part of a request."""
    for param in ctx.command.params:
        value: object = ctx.params.get(param.name or "")
        for text in cast("tuple[object, ...]", value if isinstance(value, tuple) else (value,)):
            if isinstance(text, str) and output.is_undecoded(text):
                raise click.BadParameter(f"{text!r} is not UTF-8 text", ctx, param)


def credentials_from_environment() -> str:
    """The credentials in the format of the setting; empty if not set. Raises UsageError."""
    text = os.environ.get(CREDENTIALS_VARIABLE, "")
    if text:
        from tianzhou.wire.signing import checked_credentials

        try:
            return checked_credentials(text)
        except ValueError as error:
            raise UsageError(f"{CREDENTIALS_VARIABLE}: {error}") from None
    return text


def timeout_from_environment() -> float:
    """How long to wait for one response, in seconds. Raises UsageError for an invalid value."""
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    try:
        timeout_s = float(text or CALL_S)
    except ValueError:
        timeout_s = 0.0
    if not 0 < timeout_s < math.inf:
        raise click.UsageError(f"{TIMEOUT_VARIABLE} must be a number of seconds, got {text!r}")
    return timeout_s


# Shell completion of names


def _complete(names: "Callable[[Admin], list[str]]") -> Callable[..., list[CompletionItem]]:
    def complete(
        ctx: click.Context, _param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from tianzhou.base.errors import TianzhouError
        from tianzhou.client.options import ClientOptions
        from tianzhou.client.sync.admin import Admin

        options = ClientOptions(call_timeout_s=COMPLETE_S, connect_timeout_s=COMPLETE_S)
        address = ctx.params.get("nameserver") or DEFAULT_NAMESERVER
        try:
            with Admin(nameserver=address, client=options) as admin:
                found = names(admin)
        except TianzhouError:
            return []  # completion must not print errors
        return [CompletionItem(name) for name in found if name.startswith(incomplete)]

    return complete


topic_name = click.argument("topic", shell_complete=_complete(lambda admin: admin.topics.all()))
topic_name_or_all = click.argument(
    "topic", required=False, shell_complete=_complete(lambda admin: admin.topics.all())
)
group_name = click.argument("group", shell_complete=_complete(lambda admin: admin.groups.all()))
