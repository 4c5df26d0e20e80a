"""RocketMQ's C++ client, as published on PyPI, in its own processes.

It is installed into a virtual environment beside ours, because it is not part of Tianzhou and
another package has the same import name. Its scripts print JSON lines.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from clients.server_process import ServerProcess
from clients.waiting import wait_until
from tianzhou.testing.kit.patience import Patience, run_patiently

PACKAGE: Final = "rocketmq==0.4.4"
ROOT: Final = Path(__file__).parents[2]
PLACE: Final = ROOT / "build" / "cpp-client"
SCRIPTS: Final = Path(__file__).parent / "scripts"
INSTALL_S: Final = 90
START_S: Final = 20.0
END_S: Final = 30.0
_SHOWN_CHARS_MAX: Final = 4_000

Facts = dict[str, Any]
"""One line of a script."""


def installed() -> Path:
    """The interpreter that has the client; created on first use, by one process at a time."""
    python = PLACE / "bin" / "python"
    mark = PLACE / "installed.txt"
    PLACE.parent.mkdir(parents=True, exist_ok=True)
    with (PLACE.parent / "cpp-client.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not mark.exists() or mark.read_text() != PACKAGE or not python.exists():
            _install(python)
            mark.write_text(PACKAGE)
    return python


def _install(python: Path) -> None:
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(PLACE)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PACKAGE],
    ):
        try:
            done = run_patiently(command, Patience(INSTALL_S))
            done.check_returncode()
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise AssertionError(
                f"These tests need RocketMQ's C++ client, and {PACKAGE} could not be installed "
                f"into {PLACE}: is there a package index? {error}: {error.stdout}"
            ) from error


class ClientProcess:
    """A running script. Its lines are read as they arrive."""

    def __init__(self, python: Path, directory: Path, script: str, *arguments: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._output = directory / "output.jsonl"
        with self._output.open("wb") as output, (directory / "errors.txt").open("wb") as errors:
            self._process = subprocess.Popen(
                [str(python), str(SCRIPTS / script), *arguments],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
                cwd=directory,
                # The library writes its log into the home directory.
                env={**os.environ, "HOME": str(directory)},
                text=True,
            )

    def lines(self, event: str) -> list[Facts]:
        """The lines of one kind so far."""
        whole = self._output.read_text().rpartition("\n")[0]
        rows: list[Facts] = [json.loads(line) for line in whole.splitlines()]
        return [row for row in rows if row["event"] == event]

    def wait_lines(self, event: str, count: int, within_s: float = START_S) -> list[Facts]:
        """Wait until there are `count` lines of one kind, or more."""

        def enough() -> list[Facts] | None:
            rows = self.lines(event)
            assert len(rows) >= count or self._process.poll() is None, self.output()
            return rows if len(rows) >= count else None

        try:
            return wait_until(enough, within_s=within_s, what=f"{count} lines {event}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output()}") from error

    def output(self) -> str:
        """Everything that the script printed and the end of the library's log, for the report of a
        failure."""
        home = self._output.parent
        logs = [
            path.read_text(errors="replace")[-_SHOWN_CHARS_MAX:]
            for path in sorted(home.glob("logs/**/*.log.*"))
        ]
        return "\n".join([self._output.read_text(), (home / "errors.txt").read_text(), *logs])

    def write(self, wish: Facts) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(wish) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """Let the script end by itself; it shuts its client down."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(END_S) == 0, self.output()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def end(self) -> None:
        """Kill the script. How a client ends is checked only by tests about that."""
        if self._process.poll() is None:
            self.kill()


class Producing:
    """A producer that sends what the test writes to it."""

    def __init__(self, process: ClientProcess) -> None:
        self._process = process
        process.wait_lines("ready", 1)
        self._count = 0

    def send(self, how: str, topic: str, body: str = "", **more: object) -> Facts:
        """Send one message; returns the result."""
        self._process.write({"how": how, "topic": topic, "body": body, **more})
        self._count += 1
        row = self._process.wait_lines("done", self._count)[-1]
        assert "error" not in row, f"{row}\n{self._process.output()}"
        return row

    def close(self) -> None:
        self._process.close()


class Clients:
    """Starts C++ clients of one server, and ends those that still run."""

    def __init__(self, python: Path, directory: Path, nameserver: str) -> None:
        self._python = python
        self._directory = directory
        self._nameserver = nameserver
        self._started: list[ClientProcess] = []

    def _start(self, script: str, *arguments: str) -> ClientProcess:
        place = self._directory / f"client-{len(self._started)}"
        process = ClientProcess(self._python, place, script, self._nameserver, *arguments)
        self._started.append(process)
        return process

    def producer(self, group: str = "producers") -> Producing:
        return Producing(self._start("produce.py", group))

    def push(
        self,
        group: str,
        topic: str,
        *,
        expression: str = "*",
        model: str = "concurrent",
        failures: int = 0,
    ) -> ClientProcess:
        """A push consumer that has started."""
        process = self._start("push.py", group, topic, expression, model, str(failures))
        process.wait_lines("ready", 1)
        return process

    def pull(self, group: str, topic: str, expression: str = "*") -> list[Facts]:
        """Run a pull consumer; returns everything it finds."""
        process = self._start("pull.py", group, topic, expression)
        process.close()
        assert process.lines("closed")
        return process.lines("got")

    def pull_light(self, group: str, topic: str, light: str) -> list[Facts]:
        """Run a pull consumer of a light queue; returns everything it finds."""
        process = self._start("pull_light.py", group, topic, light)
        process.close()
        assert process.lines("closed")
        return process.lines("got")

    def end(self) -> None:
        for process in self._started:
            process.end()


def clients_of(server: ServerProcess, python: Path, directory: Path) -> Clients:
    return Clients(python, directory, server.nameserver)
