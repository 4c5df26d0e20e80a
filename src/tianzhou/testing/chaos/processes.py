"""Servers as processes that can be killed, paused and started again.

They run the installed commands: `tianzhou nameserver`, `tianzhou broker`.
"""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tianzhou.testing.kit.patience import Patience, run_patiently

HOST: Final = "127.0.0.1"
TIANZHOU: Final = str(Path(sys.executable).parent / "tianzhou")
FILE_BYTES: Final = 256 * 1024
SMALL_FILES: Final = {
    "vip_port": "false",
    "mappedFileSizeCommitLog": str(FILE_BYTES),
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "commit_log_preallocate_bytes": str(64 * 1024),
}
"""Settings for files that are so small that a test fills many of them."""
READY_S: Final = 30.0
STOP_S: Final = 15.0
PAUSE_S: Final = 0.02


class ProcessFailed(AssertionError):
    """A server did not start, or ended unexpectedly. The text has the end of its log."""


class Server:
    """A server that can be started repeatedly, on the same ports and data. Owner: a scenario."""

    def __init__(
        self, name: str, arguments: list[str], directory: Path, *, within: Sequence[str] = ()
    ) -> None:
        """`within` is a command that prepares the environment and then runs the server."""
        self.name = name
        self.lives = 0
        self._within = within
        self._arguments = arguments
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._is_paused = False
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def life(self) -> str:
        """A name for the current process of this server."""
        return f"{self.name}:{self.lives}"

    @property
    def is_alive(self) -> bool:
        """Whether the process exists; true while it is paused."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    def start(self) -> None:
        """Start the process; `wait_ready` waits until it serves."""
        assert not self.is_alive, f"{self.name} is already running"
        self.lives += 1
        self._ready.unlink(missing_ok=True)
        with (self._directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._within, TIANZHOU, *self._arguments, "--ready-file", str(self._ready)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._directory,
            )  # fmt: skip

    @property
    def _ready(self) -> Path:
        return self._directory / "ready.json"

    def wait_ready(self) -> dict[str, str]:
        """Wait until it serves, and return the content of its ready file."""
        patience = Patience(READY_S)
        while not self._ready.exists():
            if not self.is_alive or patience.is_over():
                raise ProcessFailed(f"{self.name} does not serve: {self.last_words()}")
            time.sleep(PAUSE_S)
        return json.loads(self._ready.read_text())

    def last_words(self) -> str:
        return (self._directory / "server.log").read_text(errors="replace")[-4_000:]

    def wait_ended(self, within_s: float) -> int:
        """Wait until the process ends, and return its exit code."""
        assert self._process is not None, f"{self.name} was never started"
        patience = Patience(within_s)
        while True:
            try:
                return self._process.wait(PAUSE_S)
            except subprocess.TimeoutExpired:
                if patience.is_over():
                    raise

    # Faults

    def kill(self) -> None:
        """Send SIGKILL; works for a paused process too."""
        assert self._process is not None, f"{self.name} was never started"
        self._process.kill()
        self._process.wait()
        self._is_paused = False

    def pause(self) -> None:
        """Send SIGSTOP: the process keeps its connections and does not respond."""
        self._signal(signal.SIGSTOP)
        self._is_paused = True

    def resume(self) -> None:
        self._signal(signal.SIGCONT)
        self._is_paused = False

    def stop(self) -> None:
        """Stop gracefully; the exit code must be 0."""
        self._signal(signal.SIGTERM)
        code = self.wait_ended(STOP_S)
        if code:
            raise ProcessFailed(f"{self.name} ended with {code}: {self.last_words()}")

    def _signal(self, number: signal.Signals) -> None:
        if not self.is_alive:
            raise ProcessFailed(f"{self.name} no longer runs: {self.last_words()}")
        os.kill(self.pid, number)

    def end(self) -> None:
        """Kill the process if it still runs."""
        if self._process is not None and self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                self.kill()


def command(*arguments: str) -> str:
    """Run an operator's command and return its output. Raises ProcessFailed."""
    done = run_patiently([TIANZHOU, *arguments], Patience(READY_S))
    if done.returncode:
        raise ProcessFailed(f"{' '.join(arguments)}: {done.stdout}")
    return done.stdout


def spare_ports(count: int) -> int:
    """Return the first of `count` consecutive free ports. They are below the ephemeral range, so
    that no outgoing connection takes one while its server is dead."""
    dice = random.SystemRandom()
    while True:
        first = dice.randrange(20_000, 32_000)
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    tried = stack.enter_context(socket.socket())
                    tried.bind((HOST, port))
            except OSError:
                continue
            return first
