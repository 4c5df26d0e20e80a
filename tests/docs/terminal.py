"""A terminal that types what documents say, in a directory and with ports of its own.

Lines run as they are written, by bash, one after the other; only ports differ from what a user has.
A line that starts a server leaves it running, as a second window would.
"""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self, cast

import click

from clients import server_process
from clients.server_process import ServerProcess
from docs.pages import NAMESERVER
from tianzhou.cmd.commands import cli

BIN: Final = Path(sys.prefix) / "bin"
LINE_S: Final = 100
"""On a busy machine; most take a second."""
PORT_OPTIONS: Final = {
    "up": ("--nameserver-port", "--broker-port", "--http-port"),
    "nameserver": ("--port",),
    "broker": ("--port", "--http-port"),
}


def joined(block: str) -> list[str]:
    """The commands of a block; a backslash continues one."""
    return [line for line in block.replace("\\\n", "").splitlines() if line.strip()]


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that these words name, and the words that are left for it."""
    command, rest = cast("click.Command", cli), list(words)
    while isinstance(command, click.Group) and rest:
        found = command.get_command(click.Context(command), rest[0])
        if found is None:
            break
        command, rest = found, rest[1:]
    assert command is not cli, f"no such command: {words}"
    return command, rest


def accept(words: list[str]) -> None:
    """Every word is a command, an option or an argument of ours; nothing is run."""
    command, rest = command_of(words)
    command.make_context(command.name, rest)


def know(words: list[str]) -> None:
    """As `accept`, of a command that prose names without all that it needs."""
    command, rest = command_of(words)
    options = {"--help"}.union(*([*p.opts, *p.secondary_opts] for p in command.params))
    unknown = [word for word in rest if word.startswith("-") and word not in options]
    assert not unknown, f"{words}: no option {unknown}"
    is_verb = isinstance(command, click.Group) and rest[:1] and not rest[0].startswith("-")
    assert not is_verb, f"{words}: no command {rest[0]}"


def is_server(words: list[str]) -> bool:
    """`tianzhou broker status` asks one, `tianzhou broker -c FILE` is one."""
    return words[:1] == ["tianzhou"] and command_of(words[1:])[0].name in PORT_OPTIONS


def free_ports(name: str) -> list[str]:
    """Options that let this server take free ports."""
    command, _ = command_of([name])
    known = {option for parameter in command.params for option in parameter.opts}
    return [word for option in PORT_OPTIONS[name] if option in known for word in (option, "0")]


class Terminal:
    """Owner: one test, which closes it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.servers: list[ServerProcess] = []
        if not (place / ".venv").exists():
            (place / ".venv").symlink_to(sys.prefix)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server in reversed(self.servers):
            server.end()

    @property
    def nameserver(self) -> str:
        found = [server.nameserver for server in self.servers if server.process.poll() is None]
        return found[-1] if found else NAMESERVER

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.place),
            "COLUMNS": "120",
            "TMPDIR": str(self.place),
            "TIANZHOU_NAMESERVER": self.nameserver,
            "PYSPARK_PYTHON": sys.executable,
        }

    def here(self, text: str) -> str:
        """With the address that this terminal's cluster has."""
        return text.replace(NAMESERVER, self.nameserver)

    def play(self, block: str) -> str:
        """Type the lines of a block; what they printed."""
        return "".join(self.type(line) for line in joined(block))

    def type(self, line: str) -> str:
        words = shlex.split(line, comments=True)
        if is_server(words):
            command = [*shlex.split(self.here(line), comments=True)[1:], *free_ports(words[1])]
            self.servers.append(server_process.run(command, self.place))
            return ""
        return self.run(["bash", "-c", self.here(line)], shown=line)

    def run(self, command: list[str], *, shown: str) -> str:
        done = subprocess.run(
            command,
            cwd=self.place,
            env=self.environment,
            capture_output=True,
            text=True,
            input="y\n",
            timeout=LINE_S,  # yes, if it asks whether it is meant
        )
        assert done.returncode == 0, f"{shown}: {done.stdout}{done.stderr}"
        return done.stdout

    def save(self, name: str, code: str) -> Path:
        """As an editor does."""
        path = self.place / name
        path.write_text(self.here(code), encoding="utf-8")
        return path

    def run_python(self, code: str) -> str:
        """A program as a user would save and start it."""
        return self.run([sys.executable, str(self.save("example.py", code))], shown=code)

    def stop_servers(self) -> None:
        """Ctrl-C in the other windows."""
        for server in reversed(self.servers):
            server.end()
