"""A `tianzhou` server whose disk stalls on demand:

    stalling_server.py FIFO POINT ARGUMENTS…

While the FIFO exists, the thread that reaches the fail point blocks in opening it, as it would in
a call on a disk that does not respond: `flush.before_sync` is the flush thread,
`log.before_append` the event loop. `Stall` creates the FIFO and removes it.
"""

import os
import sys
from pathlib import Path

from tianzhou.store import failpoint


class Stall:
    """The test's side of the FIFO."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer = -1

    def begin(self) -> None:
        self.close()
        os.mkfifo(self.path)

    def close(self) -> None:
        """Release the FIFO of an earlier stall."""
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1

    def end(self) -> None:
        # A writer releases everything that waits for one. It stays open: the server may have found
        # the name and not opened it yet.
        self._writer = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
        self.path.unlink()


def block_while_it_exists(path: Path) -> None:
    while path.exists():
        try:
            os.close(os.open(path, os.O_RDONLY))
        except FileNotFoundError:
            return


if __name__ == "__main__":
    fifo, point, *arguments = sys.argv[1:]
    failpoint.arm(point, lambda: block_while_it_exists(Path(fifo)))
    sys.argv = ["tianzhou", *arguments]
    from tianzhou.cmd.main import main

    main()
