"""A server in its own process, which a test can stop, kill, pause and start again.

    server = ServerProcess("broker-a", server_command(["up", "--ephemeral"]), directory)
    server.start()
    facts = server.wait_ready()      # the content of its ready file
    ...
    assert server.stop() == 0

Every test that needs a real process starts it here. The command must write a ready file when it
serves: `--ready-file` of `tianzhou up`, `nameserver` and `broker`. Standard output and standard
error go to a log file, whose end is part of every failure message.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tianzhou.net import acceptor
from tianzhou.testing.kit.patience import Patience

HOST: Final = "127.0.0.1"
TIANZHOU: Final = str(Path(sys.executable).parent / "tianzhou")
"""The installed command."""
READY_S: Final = 30.0
STOP_S: Final = 15.0
PAUSE_S: Final = 0.02
_SHOWN_CHARS_MAX: Final = 4_000


class ProcessFailed(AssertionError):
    """A server did not start, or ended unexpectedly. The text has the end of its log."""


def server_command(arguments: Sequence[str], within: Sequence[str] = ()) -> list[str]:
    """Return the command of a `tianzhou` server, for `ServerProcess`.

    `within` is a command that prepares the environment and then runs the server, as `env` does.
    """
    return [*within, TIANZHOU, *arguments, "--ready-file"]


class ServerProcess:
    """A server that can be started repeatedly, with the same command in the same directory.

    The path of the ready file is appended to `command`, which may change between two starts. `cwd`
    defaults to `directory`, which holds the log and the ready file; `env` defaults to the
    environment of this process. Only the process itself is signalled, by its id.

    Owner: a test, which calls `end`.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        directory: Path,
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.command = command
        self.log_path = directory / "server.log"
        self.ready_path = directory / "ready.json"
        self.facts: dict[str, str] = {}
        """The content of the ready file."""
        self.ready_after_s = 0.0
        """Seconds from the start of the process until its ready file was found."""
        self.lives = 0
        """How often the server was started."""
        self._cwd = cwd or directory
        self._env = env
        self._started_s = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def life(self) -> str:
        """A name for the current process of this server."""
        return f"{self.name}:{self.lives}"

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """The current or last process. Raises AssertionError if the server was never started."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process

    @property
    def is_alive(self) -> bool:
        """Whether the process exists; true while it is paused."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        return self.process.pid

    # Starting

    def start(self) -> None:
        """Start the process; `wait_ready` waits until it serves."""
        assert not self.is_alive, f"{self.name} is already running"
        self.lives += 1
        self.ready_path.unlink(missing_ok=True)
        self._started_s = time.monotonic()
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*self.command, str(self.ready_path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._cwd,
                env=self._env,
            )

    def wait_ready(self, within_s: float = READY_S) -> dict[str, str]:
        """Wait until the server serves, and return the content of its ready file.

        Raises ProcessFailed if it ends, or is not ready in time; it is killed then.
        """
        patience = Patience(within_s)
        while not self.ready_path.exists():
            if not self.is_alive:
                code = self.process.returncode
                raise ProcessFailed(f"{self.name} ended with {code}: {self.last_words()}")
            if patience.is_over():
                self.kill()
                raise ProcessFailed(
                    f"{self.name} is not ready after {within_s} s: {self.last_words()}"
                )
            time.sleep(PAUSE_S)
        self.ready_after_s = time.monotonic() - self._started_s
        self.facts = json.loads(self.ready_path.read_text())
        return self.facts

    # The log

    def log(self) -> str:
        """Return the output of all processes of this server."""
        return self.log_path.read_text(errors="replace")

    def last_words(self) -> str:
        """Return the end of the log, for the message of a failed test."""
        return self.log()[-_SHOWN_CHARS_MAX:]

    # Ending

    def stop(self, number: signal.Signals = signal.SIGTERM, *, within_s: float = STOP_S) -> int:
        """Stop the server gracefully and return its exit code.

        Raises ProcessFailed if it does not run, or does not end in time; it is killed then.
        """
        self._signal(number)
        try:
            return self.wait_ended(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ProcessFailed(
                f"{self.name} did not stop within {within_s} s: {self.last_words()}"
            ) from None

    def wait_ended(self, within_s: float) -> int:
        """Wait until the process ends, and return its exit code. Raises TimeoutExpired."""
        patience = Patience(within_s)
        while True:
            try:
                return self.process.wait(PAUSE_S)
            except subprocess.TimeoutExpired:
                if patience.is_over():
                    raise

    def kill(self) -> None:
        """Send SIGKILL; works for a paused process too."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """Kill the process if it still runs."""
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                self.kill()

    # Faults

    def pause(self) -> None:
        """Send SIGSTOP: the process keeps its connections and does not respond."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT after `pause`."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if not self.is_alive:
            raise ProcessFailed(f"{self.name} is not running: {self.last_words()}")
        os.kill(self.pid, number)


def spare_ports(count: int) -> int:
    """Return the first of `count` consecutive free ports, which no outgoing connection takes while
    their server is dead."""
    return acceptor.spare_ports(HOST, count)
