"""Servers of clusters: `tianzhou nameserver` and `tianzhou broker` as processes."""

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tianzhou.testing.kit.patience import Patience, run_patiently
from tianzhou.testing.kit.server_process import (
    HOST,
    READY_S,
    STOP_S,
    TIANZHOU,
    ProcessFailed,
    ServerProcess,
    server_command,
    spare_ports,
)

__all__ = [
    "FILE_BYTES",
    "HOST",
    "SMALL_FILES",
    "TIANZHOU",
    "ProcessFailed",
    "Server",
    "command",
    "spare_ports",
]

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


class Server(ServerProcess):
    """A NameServer or broker of a cluster, which must exit with code 0 when it is stopped.

    `arguments` and `within` may change between two starts. Owner: a scenario.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], directory: Path, *, within: Sequence[str] = ()
    ) -> None:
        """`within` is a command that prepares the environment and then runs the server."""
        super().__init__(name, (), directory)
        self._arguments = arguments
        self._within = within

    def start(self) -> None:
        self.command = server_command(self._arguments, self._within)
        super().start()

    def stop(self, number: signal.Signals = signal.SIGTERM, *, within_s: float = STOP_S) -> int:
        """Stop the server gracefully. Raises ProcessFailed if its exit code is not 0."""
        code = super().stop(number, within_s=within_s)
        if code:
            raise ProcessFailed(f"{self.name} ended with {code}: {self.last_words()}")
        return code


def command(*arguments: str) -> str:
    """Run an operator's command and return its output. Raises ProcessFailed."""
    done = run_patiently([TIANZHOU, *arguments], Patience(READY_S))
    if done.returncode:
        raise ProcessFailed(f"{' '.join(arguments)}: {done.stdout}")
    return done.stdout
