"""`tianzhou` with Ctrl-C at an exact place, for tests that cannot wait for bad luck.

    python interrupted.py CALLS AGAIN ARGUMENT...

The process sends itself SIGINT after CALLS calls of Python functions, counted from the first
statement of `main`, and once more AGAIN calls later unless AGAIN is 0.
"""

import os
import signal
import sys
from types import FrameType

from tianzhou.cmd.main import main


class Countdown:
    def __init__(self, due: list[int]) -> None:
        self._due = due
        self._seen = 0

    def count(self, _frame: FrameType, _event: str, _argument: object) -> None:
        self._seen += 1
        if self._seen < self._due[0]:
            return
        self._seen = 0
        del self._due[0]
        if not self._due:
            sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    calls, again = map(int, sys.argv[1:3])
    del sys.argv[1:3]
    # The first call is that of `main`; nothing of ours can catch what is raised there.
    sys.setprofile(Countdown([calls + 1, again] if again else [calls + 1]).count)
    main()
