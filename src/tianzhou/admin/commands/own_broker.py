"""A broker for the duration of a command: `tianzhou up --ephemeral` in a separate process."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Final

from tianzhou.admin.commands.failures import Failure

READY_S: Final = 30.0
STOP_S: Final = 10.0
_PAUSE_S: Final = 0.02


@contextmanager
def own_broker() -> Generator[str]:
    """Yield the address of its NameServer. Stop it and delete its files when the block ends."""
    with tempfile.TemporaryDirectory(prefix="tianzhou-") as place:
        ready, log = Path(place, "ready.json"), Path(place, "log.txt")
        arguments = [
            "up",
            "--ephemeral",
            "--nameserver-port",
            "0",
            "--broker-port",
            "0",
            "--no-http",
            "--ready-file",
            str(ready),
        ]
        with log.open("wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "tianzhou", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )
        try:
            _wait(process, ready, log)
            yield json.loads(ready.read_text())["nameserver"]
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(process: "subprocess.Popen[bytes]", ready: Path, log: Path) -> None:
    deadline = monotonic() + READY_S
    while not ready.exists():
        if process.poll() is not None or monotonic() > deadline:
            last = log.read_text(errors="replace").strip().rpartition("\n")[2]
            raise Failure(f"the temporary broker did not start: {last or 'it logged nothing'}")
        sleep(_PAUSE_S)
